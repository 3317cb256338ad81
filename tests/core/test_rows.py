"""Rows that count and rows that do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.core import rows


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_absent_rows_can_do_no_harm(dtype):
    logits = jnp.asarray([[1.0, 2.0], [jnp.nan, jnp.inf], [3.0, 4.0]])
    weights = jnp.asarray(np.array([1, 0, 1], dtype))
    clean, labels, _ = rows.present(logits, jnp.asarray([1, 255, 0]), weights)
    np.testing.assert_array_equal(clean, [[1, 2], [0, 0], [3, 4]])
    np.testing.assert_array_equal(labels, [1, 0, 0])
    values = jnp.asarray([5.0, jnp.nan, 7.0])
    np.testing.assert_array_equal(rows.weigh(values, weights), [5, 0, 7])


@pytest.mark.parametrize(
    ("shape", "kept"),
    [((4, 3), (4, 3)), ((4,), (4,)), ((2, 5, 2), (2, 3, 1)), ((2, 1, 9), (2, 1, 5))],
)
def test_large_examples_keep_an_even_grid_of_their_labels(shape, kept):
    labels = jnp.arange(np.prod(shape)).reshape(shape)
    logits = jnp.stack([labels, -labels], axis=-1).astype(float)
    some = rows.thinned(logits, labels, 2 * labels, 5)
    assert some[1].shape == kept
    np.testing.assert_array_equal(some[0], jnp.stack([some[1], -some[1]], axis=-1))
    np.testing.assert_array_equal(some[2], 2 * some[1])
    assert rows.thinned(logits, labels, None, 5)[2] is None


@pytest.mark.parametrize("function", [rows.counted, jax.jit(rows.counted)])
def test_weights_below_1_are_scaled_to_a_mean_of_1_and_counts_stay(function):
    of_arrays = lambda *weights: np.asarray(function(jnp.float32(weights)))  # noqa: E731
    np.testing.assert_array_equal(of_arrays(0, 1, 2.5, 7), [0, 1, 2.5, 7])
    np.testing.assert_allclose(of_arrays(0, 1, 0.5, 1.5), [0, 1, 0.5, 1.5], rtol=1e-6)
    np.testing.assert_allclose(of_arrays(0, 1e-3, 3e-3), [0, 0.5, 1.5], rtol=1e-6)
    np.testing.assert_array_equal(of_arrays(*[1 / 30] * 30), np.ones(30))
    np.testing.assert_array_equal(of_arrays(0, 0), [0, 0])
    for wrong in (np.nan, -1, np.inf):
        odd = of_arrays(wrong, 0.5, 0.5)[0]
        assert not 0 <= odd < np.inf


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, 1e38])
def test_a_row_without_a_usable_weight_is_nan(wrong):
    weights = jnp.asarray([2.0, 0.0, wrong])
    logits, _, used = rows.present(jnp.ones((3, 2)), jnp.asarray([1, 7, 1]), weights)
    assert np.isnan(logits[2]).all()
    assert used[2] == 1
    if wrong == -1:  # the others are as they were
        np.testing.assert_array_equal(logits[:2], [[1, 1], [0, 0]])
        np.testing.assert_array_equal(used[:2], [2, 0])


def test_weights_of_too_large_a_sum_are_unusable():
    logits, _, _ = rows.present(jnp.ones((20, 2)), jnp.zeros(20, int), jnp.full(20, 1e29))
    assert np.isnan(logits).all()
