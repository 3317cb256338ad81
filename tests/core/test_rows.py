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
    clean, labels = rows.present(logits, jnp.asarray([1, 255, 0]), weights)
    np.testing.assert_array_equal(clean, [[1, 2], [0, 0], [3, 4]])
    np.testing.assert_array_equal(labels, [1, 0, 0])
    values = jnp.asarray([5.0, jnp.nan, 7.0])
    np.testing.assert_array_equal(rows.weigh(values, weights), [5, 0, 7])


def test_no_harm_in_gradients_either():
    weights = jnp.asarray([1.0, 0.0])

    def loss(logits):
        clean, _ = rows.present(logits, jnp.asarray([0, -1]), weights)
        return jnp.sum(rows.weigh(jax.nn.logsumexp(clean, axis=-1), weights))

    gradient = jax.grad(loss)(jnp.asarray([[0.0, 0.0], [jnp.nan, jnp.inf]]))
    np.testing.assert_allclose(gradient, [[0.5, 0.5], [0.0, 0.0]])


def test_without_weights_everything_counts():
    logits, labels, values = jnp.ones((2, 3)), jnp.asarray([0, 7]), jnp.ones(2)
    assert rows.present(logits, labels, None) == (logits, labels)
    assert rows.weigh(values, None) is values


def test_fractions_weigh_and_below_zero_is_absent():
    values = jnp.asarray([2.0, 2.0, 2.0])
    np.testing.assert_array_equal(rows.weigh(values, jnp.asarray([0.5, 3.0, -1.0])), [1, 6, 0])


def test_any_leading_axes_and_soft_labels():
    logits = jnp.ones((2, 3, 4))
    weights = jnp.asarray([[1, 0, 1], [0, 1, 1]], jnp.float32)
    soft = jnp.full((2, 3, 4), 0.25)
    clean, labels = rows.present(logits, soft, weights)
    np.testing.assert_array_equal(clean.sum(-1), 4 * weights)
    np.testing.assert_array_equal(labels.sum(-1), weights)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8])
def test_valid_labels(dtype):
    labels = np.array([0, 2, 3, 127], dtype)
    np.testing.assert_array_equal(rows.valid(jnp.asarray(labels), 3), [True, True, False, False])
    below = 255 if dtype == np.uint8 else -1
    assert not rows.valid(jnp.asarray(below, dtype), 3)


@pytest.mark.parametrize(
    ("dtype", "num_classes"), [(np.uint8, 256), (np.uint8, 300), (np.int8, 200)]
)
def test_a_narrow_label_among_many_classes_is_valid(dtype, num_classes):
    """Check that the number of classes need not fit into the labels' type."""
    labels = jnp.asarray(np.array([0, 3, 127], dtype))
    np.testing.assert_array_equal(rows.valid(labels, num_classes), [True, True, True])
