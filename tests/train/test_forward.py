"""Arguments of a network: keys only while training, and only if it takes them."""

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import train


class Keyed(nn.Module):
    @nn.compact
    def __call__(self, x, *, train, mask=None, keys=None):
        assert (keys is not None) == train
        return x if keys is None else x + jax.vmap(jax.random.uniform)(keys)[:, None]


class Plain(nn.Module):
    @nn.compact
    def __call__(self, x, *, train, mask=None):
        return x


@pytest.mark.parametrize("training", [True, False])
def test_keys_are_for_training(training):
    keys, x = jax.random.split(jax.random.key(0), 3), jnp.zeros((3, 2))

    def logits(module):
        return train.linen(module)({}, {}, x, train=training, rng=keys)[0]

    drawn = np.array([float(jax.random.uniform(key)) for key in keys])
    np.testing.assert_allclose(logits(Keyed())[:, 0], drawn if training else 0 * drawn)
    np.testing.assert_array_equal(logits(Plain()), x)


class Normalized(nnx.Module):
    def __init__(self, num_classes=2, *, rngs):
        self.layers = nnx.List([nnx.Linear(2, 4, use_bias=False, rngs=rngs)])
        self.norm = nnx.BatchNorm(4, momentum=0.75, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, num_classes, use_bias=False, rngs=rngs)

    def __call__(self, x, *, mask=None):
        for layer in self.layers:
            x = layer(x)
        mask = None if mask is None else mask[:, None]
        return self.head(self.dropout(self.norm(x, mask=mask)))


def test_an_nnx_module_has_its_modes_statistics_and_keys():
    forward = train.nnx(Normalized(rngs=nnx.Rngs(0)))
    assert callable(forward)
    params, state = forward.variables["params"], {"state": forward.variables["state"]}
    x = jnp.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25], [99.0, 99.0]])
    weights = jnp.array([1.0, 2.0, 1.0, 0.0])  # the last row pads
    keys = jax.random.split(jax.random.key(0), 4)

    def trained(keys):
        return forward(params, state, x, train=True, rng=keys, weights=weights)

    first, changed, _ = trained(keys)
    again, *_ = trained(keys)
    other, *_ = trained(jax.random.split(jax.random.key(1), 4))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    kernels = [np.asarray(params["layers"][0]["kernel"]), np.asarray(params["head"]["kernel"])]
    hidden = np.asarray(x[:3], np.float64) @ kernels[0]
    mean, variance = changed["state"]["norm"]["mean"], changed["state"]["norm"]["var"]
    np.testing.assert_allclose(mean, 0.25 * hidden.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, 0.75 + 0.25 * hidden.var(0), rtol=1e-4)
    evaluated, same, _ = forward(params, state, x, train=False)
    assert same is state
    expected = np.asarray(x, np.float64) @ kernels[0] @ kernels[1] / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(evaluated, expected, rtol=1e-4, atol=1e-4)


def test_an_nnx_batch_norm_of_one_device_is_refused_on_two():
    x, keys = jnp.ones((2, 3, 2)), jax.random.split(jax.random.key(0), (2, 3))

    def logits(axis_name):
        module = Normalized(rngs=nnx.Rngs(0))
        module.norm.axis_name = axis_name
        forward = train.nnx(module)
        params, state = forward.variables["params"], {"state": forward.variables["state"]}

        def call(x, keys):
            return forward(params, state, x, train=True, rng=keys, weights=jnp.ones(3))[0]

        return jax.vmap(call, axis_name=train.AXIS)(x, keys)

    assert logits(train.AXIS).shape == (2, 3, 2)
    with pytest.raises(ValueError, match=r"2 devices train another network .*axis_name=train.AXIS"):
        logits(None)


def test_every_seed_has_its_own_nnx_module():
    factory = train.NnxFactory(lambda rngs: Normalized(3, rngs=rngs))
    first, second = (train.init_variables(factory, jax.random.key(k), None) for k in (0, 1))
    kernels = [variables["params"]["head"]["kernel"] for variables in (first, second)]
    assert not np.allclose(*kernels)
    state = {"state": first["state"]}
    logits, *_ = factory.forward()(first["params"], state, jnp.ones((5, 2)), train=False)
    assert logits.shape == (5, 3)
