"""Dropout: how much is dropped, and that an example's mask is its own."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

from .members import small


def drop(x, rate, seeds, **options):
    return models.Dropout(rate, **options).apply({}, x, True, seeds)


def test_what_is_left_is_scaled_up():
    x = jnp.full((4, 50, 60), 3.0)
    y = np.asarray(drop(x, 0.3, jax.random.split(jax.random.key(0), 4)))
    kept = y != 0
    np.testing.assert_allclose(y[kept], 3 / 0.7, rtol=1e-6)
    # 12,000 draws: five standard deviations.
    assert abs(kept.mean() - 0.7) < 5 * np.sqrt(0.3 * 0.7 / kept.size)
    assert len({row.tobytes() for row in kept}) == 4


def test_a_mask_belongs_to_the_example():
    x, seeds = jnp.ones((6, 40)), jax.random.split(jax.random.key(1), 6)
    whole = drop(x, 0.5, seeds)
    order = jnp.array([4, 2, 5])
    np.testing.assert_array_equal(drop(x[order], 0.5, seeds[order]), whole[order])
    raw = jax.random.key_data(seeds)
    np.testing.assert_array_equal(drop(x, 0.5, raw), whole)


def test_layers_do_not_share_masks():
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x, seeds):
            return [models.Dropout(0.5, name=name)(x, True, seeds) for name in ("one", "other")]

    one, other = Two().apply({}, jnp.ones((2, 100)), jax.random.split(jax.random.key(2), 2))
    agreement = np.mean((one == 0) == (other == 0))
    assert 0.25 < agreement < 0.75


@pytest.mark.parametrize(("rate", "train"), [(0.0, True), (0.5, False)])
def test_without_dropout_no_keys_are_needed(rate, train):
    x = jnp.ones((2, 3))
    np.testing.assert_array_equal(models.Dropout(rate).apply({}, x, train, None), x)


def test_training_without_keys_is_refused():
    network, x = small("wide_resnet28_10"), jax.ShapeDtypeStruct((3, 8, 8, 3), jnp.float32)
    init = functools.partial(network.init, train=True)
    with pytest.raises(ValueError, match=r"dropout 0.3 needs a key.*split\(key, 3\)"):
        jax.eval_shape(init, jax.random.key(0), x)
    with pytest.raises(ValueError, match="keys must be 3, one for each example"):
        jax.eval_shape(init, jax.random.key(0), x, keys=jax.random.split(jax.random.key(0), 2))


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_wrong_rate_is_refused(rate):
    with pytest.raises(ValueError, match="dropout must be at least 0 and less than 1"):
        models.wide_resnet28_10(dropout=rate)
