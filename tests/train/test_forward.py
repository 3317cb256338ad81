"""Arguments of a network, and the norms of its last layer against autodiff by example."""

import functools

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from calib_jax.train.forward import EDGES

NETWORK = models.mlp(num_classes=4, hidden=(7,))


class Foreign(nn.Module):
    """A network with statistics and random streams of its own."""

    @nn.compact
    def __call__(self, x, *, train, mask=None, keys=None):
        assert (keys is not None) == train
        seen = self.variable("batch_stats", "seen", jnp.zeros, ())
        if not train:
            return x
        seen.value += jnp.sum(mask)
        noise = jax.random.uniform(self.make_rng("noise"), x.shape)
        noise += jax.vmap(jax.random.uniform)(keys)[:, None]
        return nn.Dropout(0.5, deterministic=False)(x) + noise


def test_a_linen_network_has_its_statistics_and_streams():
    x, keys = jnp.ones((3, 2)), jax.random.split(jax.random.key(0), 3)
    state, forward = train.init_variables(Foreign(), keys[0], x), train.linen(Foreign())
    logits, changed, _ = forward({}, state, x, train=True, rng=keys, weights=jnp.array([0.5, 2, 0]))
    wanted, _ = Foreign().apply(
        {}, x, train=True, mask=jnp.ones(3), keys=keys, mutable=["batch_stats"],
        rngs={"dropout": keys[0], "params": jax.random.fold_in(keys[0], 1)},
    )  # fmt: skip
    np.testing.assert_array_equal(logits, wanted)
    assert float(changed["batch_stats"]["seen"]) == 2
    evaluated, same, aux = forward({}, state, x, train=False, rng=keys)
    np.testing.assert_array_equal(evaluated, x)
    assert same is state
    assert aux is None
    dense = nn.Sequential([nn.Dense(4)])  # takes its input alone
    params = train.init_variables(dense, keys[0], x)["params"]
    assert train.linen(dense)(params, {}, x, train=True)[0].shape == (3, 4)
    with pytest.raises(TypeError, match="'inputs', which training never sets"):
        train.linen(nn.GRUCell(3))


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
    again, *_ = trained(keys[:1])  # of the whole batch
    other, *_ = trained(jax.random.split(jax.random.key(1), 4))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    kernels = [np.asarray(params["layers"][0]["kernel"]), np.asarray(params["head"]["kernel"])]
    hidden = np.asarray(x[:3], np.float64) @ kernels[0]
    mean, variance = changed["state"]["norm"]["mean"], changed["state"]["norm"]["var"]
    np.testing.assert_allclose(mean, 0.25 * hidden.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, 0.75 + 0.25 * hidden.var(0), rtol=1e-4)
    evaluated, same, aux = forward(params, state, x, train=False)
    assert same is state
    assert aux is None
    looking = train.nnx(Normalized(rngs=nnx.Rngs(0)), features=True)
    _, _, given = looking(params, state, x, train=False)
    np.testing.assert_allclose(given @ kernels[1], evaluated, rtol=1e-4, atol=1e-4)
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
    logits, _, aux = factory.forward()(first["params"], state, jnp.ones((5, 2)), train=False)
    assert logits.shape == (5, 3)
    assert aux is None


# --------------------------------------------------------------------------------------------
# The last layer.


def case(weights):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((len(weights), 2, 2, 1)))
    labels = jnp.asarray(random.integers(4, size=len(weights)))
    params = {
        name: {"kernel": random.normal(0, 0.3, sizes), "bias": random.normal(0, 0.3, sizes[1])}
        for name, sizes in (("hidden1", (4, 7)), ("head", (7, 4)))
    }
    return x, labels, jnp.asarray(weights), {"params": params}


@pytest.mark.parametrize("name", ["bsce_gra", "adafocal"])
def test_norms_are_those_of_every_example_alone(name, x64):
    x, labels, weights, variables = case([1.0, 2.0, 0.0, 1.0, 1.0])
    objective = losses.objective(name)
    state = objective.init(4)
    network = NETWORK.clone(dtype="float64")

    def loss_of(head, x, label):
        params = {**variables["params"], "head": head}
        logits = network.apply({"params": params}, x[None], train=False)
        return objective.value(state, logits, label[None], jnp.ones(1))[0]

    gradients = jax.jit(jax.vmap(jax.grad(loss_of), (None, 0, 0)))
    leaves = jax.tree.leaves(gradients(variables["params"]["head"], x, labels))
    expected = np.sqrt(sum(np.square(leaf).reshape(5, -1).sum(axis=1) for leaf in leaves))
    hidden = jax.tree.map(np.asarray, variables["params"]["hidden1"])
    features = np.maximum(np.asarray(x).reshape(5, -1) @ hidden["kernel"] + hidden["bias"], 0)

    forward = functools.partial(train.linen(network, features=True), train=False)
    logits, _, given = jax.jit(forward)(variables["params"], {}, x, weights=weights)
    real = np.asarray(weights) > 0
    np.testing.assert_allclose(given[real], features[real], rtol=1e-12)
    look = train.LastLayer(objective)
    stat = jax.jit(look.stat)(state, logits, labels, weights, given)
    means = look.means(stat)
    assert means["last_gradient_norm"] == pytest.approx(np.average(expected, weights=weights))
    norms = np.linalg.norm(features, axis=1)
    assert means["feature_norm"] == pytest.approx(np.average(norms, weights=weights))
    counts, _ = np.histogram(expected, EDGES, weights=weights)
    np.testing.assert_array_equal(stat["histogram"], counts)
    kernel = variables["params"]["head"]["kernel"]
    assert look.weight_norm(variables["params"]) == pytest.approx(np.sqrt(np.sum(kernel**2)))


def test_norms_beyond_the_bins_are_in_the_last_ones():
    look = train.LastLayer(losses.objective("cross_entropy"))
    sure = jnp.array([[200.0, 0.0], [0.0, 200.0]])
    features = jnp.array([[1.0], [1e9]])
    stat = jax.jit(look.stat)((), sure, jnp.array([0, 0]), jnp.ones(2), features)
    assert stat["histogram"][0] == stat["histogram"][-1] == 1  # no gradient, and 1.4e9
    assert (EDGES[0], EDGES[8], EDGES[-1], len(EDGES)) == (1e-8, 1e-7, 1e4, 97)
