"""Arrays as users have them: lists, other libraries, wide integers, masks, byte orders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calib_jax
from calib_jax import losses, metrics
from calib_jax.core.arrays import as_labels
from tests import programs

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(size=(6, 3)).astype(np.float32)
LABELS = np.array([0, 1, 2, 2, 1, 0])


class Column:
    """A column of a table, as of pandas: NumPy reads it."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values)


class Tensor:
    """A tensor as of PyTorch, of a type that NumPy does not have."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        raise TypeError("got an unsupported ScalarType BFloat16")

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def detach(self):
        return self


class Negated(Tensor):
    """A tensor with a lazy sign, which the export of its memory drops."""

    def resolve_neg(self):
        return Tensor(-self.values)


KINDS = {
    "list": lambda array: array.tolist(),
    "column": Column,
    "objects": lambda array: Column(array.astype(object)),
    "tensor": lambda array: Tensor(jnp.asarray(array)),
    "negated tensor": lambda array: Negated(-jnp.asarray(array)),
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "wide": lambda array: array.astype(np.longdouble if array.dtype.kind == "f" else np.uint64),
    "without a masked value": np.ma.masked_array,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array_gives_the_same(kind):
    converted = KINDS[kind]
    for function in (losses.focal, metrics.ece):
        actual = function(converted(LOGITS), converted(LABELS))
        np.testing.assert_allclose(actual, function(LOGITS, LABELS), rtol=1e-6)


def test_masked_values_are_refused():
    masked = np.ma.masked_array(LOGITS, np.arange(18).reshape(6, 3) == 4)
    with pytest.raises(ValueError, match=r"masked values: .* weight 0 .* array\.filled\(0\)"):
        losses.focal(masked, LABELS)


@pytest.mark.parametrize("wrong", [2**32 + 1, -(2**40), 3, -1])
def test_a_label_out_of_range_is_nan_of_any_width(wrong):
    labels = np.where(np.arange(6) == 2, wrong, LABELS)
    for given in (labels, labels.tolist()):
        np.testing.assert_array_equal(np.isnan(losses.focal(LOGITS, given)), np.arange(6) == 2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32, np.int64, np.uint64])
def test_labels_are_widened_or_clipped(dtype):
    largest = np.iinfo(dtype).max
    labels = as_labels(np.array([0, largest], dtype))
    assert labels.dtype == np.int32
    assert labels.tolist() == [0, min(int(largest), 2**31 - 1)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "logits must be real numbers, got"),
        ("text", "logits must be real numbers, got"),
        ([[1.0], [2.0, 3.0]], "logits must be real numbers, got lists of different lengths"),
        (np.array([["a"]]), "logits must be real numbers, got <U1"),
        (metrics.ece, "logits must be real numbers, got"),
    ],
)
def test_anything_else_is_refused(given, message):
    with pytest.raises(TypeError, match=message):
        losses.focal(given, LABELS)


def test_binary():
    np.testing.assert_array_equal(calib_jax.binary([2.0, -1.0]), [[0, 2], [0, -1]])
    with pytest.raises(TypeError, match="the score must be floating point, got int"):
        calib_jax.binary([1, 0])


def test_weights_may_be_given_by_place():
    weights = np.arange(len(LABELS)) + 1.0
    by_place = losses.mmce_penalty(LOGITS, LABELS, weights)
    assert by_place == losses.mmce_penalty(LOGITS, LABELS, weights=weights)
    assert by_place != losses.mmce_penalty(LOGITS, LABELS)


def test_an_eager_loss_is_one_program_for_every_number():
    """A number of an option is an argument, and a text is a constant, of the program."""
    logits, labels = jnp.asarray(GENERATOR.normal(size=(5, 17)), jnp.float32), jnp.arange(5)
    for options in ({}, {"weighting": "gradient"}):
        losses.focal(logits, labels, gamma=0.5, **options)
    with programs.counted() as count:
        actual = [losses.focal(logits, labels, gamma=gamma) for gamma in (0.25, 1.5, 3.0)]
        jax.block_until_ready(losses.focal(logits, labels, gamma=2.0, weighting="gradient"))
    assert count == [0]
    for gamma, loss in zip((0.25, 1.5, 3.0), actual, strict=True):
        expected = losses.flsd(logits, labels, thresholds=(), gammas=(gamma,))
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
