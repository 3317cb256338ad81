"""What a network is called with: keys only while training, and only if it takes them."""

import flax.linen as nn
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


def test_a_network_without_the_parameters_of_a_call_is_named():
    class Bare(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x

    class Open(nn.Module):
        @nn.compact
        def __call__(self, x, **options):
            return x

    with pytest.raises(TypeError, match=r"Bare.__call__ has no parameter train and no mask: wri"):
        train.linen(Bare())
    assert train.linen(Open())
