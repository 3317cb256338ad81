"""Arrays as users have them: lists, other libraries, wide integers, masks, byte orders."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import calib_jax
from calib_jax import losses, metrics
from calib_jax.core import arrays
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


def test_arrays_are_not_copied():
    assert np.shares_memory(arrays.as_array(Column(LOGITS)), LOGITS)


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
def test_labels_are_widened_or_clipped_and_weights_and_scores_keep_their_size(dtype):
    smallest, largest = np.iinfo(dtype).min, np.iinfo(dtype).max
    labels = as_labels(np.array([smallest, 0, largest], dtype))
    assert labels.dtype == np.int32
    assert labels.tolist() == [max(int(smallest), -(2**31)), 0, min(int(largest), 2**31 - 1)]
    numbers = np.array([largest, 1], dtype)
    *_, weights = arrays.batch_of("", LOGITS[:2], LABELS[:2], numbers)
    for floats in (weights, arrays.as_floats("", "score", numbers)):
        assert (floats.dtype, *floats.tolist()) == (np.float32, np.float32(largest), 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "logits must be real numbers, got"),
        ([[1.0], [2.0, 3.0]], "logits must be real numbers, got lists of different lengths"),
        (np.array([["a"]]), "logits must be real numbers, got <U1"),
        (metrics.ece, "logits must be real numbers, got"),
    ],
)
def test_anything_else_is_refused(given, message):
    with pytest.raises(TypeError, match=message):
        losses.focal(given, LABELS)


def test_integers_are_no_scores_and_booleans_are_no_labels():
    with pytest.raises(TypeError, match="the score must be floating point, got int"):
        calib_jax.binary([1, 0])
    with pytest.raises(TypeError, match="must be integers, got bool"):
        arrays.batch_of("f", np.zeros((2, 3), np.float32), np.zeros(2, bool))


@pytest.mark.parametrize(
    ("of_logits", "of_labels", "hint"),
    [
        ((3,), (3,), "binary logits need two classes"),
        ((2, 4, 3), (2, 3), r"moveaxis\(logits, 1, -1\)"),
        ((2, 3), (2, 1), r"drop the last axis"),
        ((2, 3), (2, 3), r"one-hot labels must be floating point"),
    ],
)
def test_the_way_out_of_labels_of_another_shape(of_logits, of_labels, hint):
    arguments = np.zeros(of_logits, np.float32), np.zeros(of_labels, int)
    with pytest.raises(ValueError, match=hint):
        arrays.batch_of("f", *arguments, soft_labels=True)


def test_soft_labels_are_taken_where_they_are_declared():
    def shapes(logits, labels, weights=None, *, scale=1.0):
        return jnp.stack([logits.shape[-1], labels.shape[-1], scale])

    soft = np.full((2, 3), 1 / 3, np.float32)
    with pytest.raises(ValueError, match=r"shapes: logits \(2, 3\) need labels of shape"):
        arrays.takes_logits()(shapes)(soft, soft)
    with pytest.raises(ValueError, match=r"f: logits \(2, 3\) need labels of shape"):
        arrays.batch_of("f", soft, soft)
    assert arrays.batch_of("f", soft[:, :1], np.zeros(2, int))[2] is None  # one class, no weights
    taking = arrays.takes_logits(soft_labels=True)(shapes)
    assert taking(soft, soft, scale=2.0).tolist() == [3, 3, 2]
    assert arrays.takes_soft_labels(taking) is arrays.takes_soft_labels(shapes) is True
    assert arrays.takes_soft_labels(arrays.takes_logits()(shapes)) is False


EPS = float(np.finfo(np.float32).eps)
ROWS = [  # soft labels, their type, and whether they are a distribution, or may be zeros
    ([0.5, 0.25, 0.25], "float32", True),
    ([0.5, 0.5 + 0.95e-3, 0], "float32", True),  # printed digits
    ([0.5, 0.5 + 1.05e-3, 0], "float32", False),
    ([0.5, 0.5 - 1.05e-3, 0], "float32", False),
    ([1, -2 * EPS, 0], "float32", True),
    ([1, -2.5 * EPS, 0], "float32", False),
    ([0.5, 0.5 + 2**-9, 0], "float16", True),  # two steps of float16 at 1
    ([0.5, 0.5 + 3 * 2**-10, 0], "float16", False),
    ([0.5, 0.0, 0.0], "float32", False),
    ([1.0, 1.0, 1.0], "float32", False),
    ([1.0, 0.0, np.nan], "float32", False),
    ([1.0, 0.0, np.inf], "float32", False),
    ([0.0, 0.0, 0.0], "float32", "or_zeros"),
]


@pytest.mark.parametrize(("row", "dtype", "expected"), ROWS)
def test_soft_labels_that_are_no_distribution_become_nan(row, dtype, expected):
    labels = jnp.asarray([row, [0, 1, 0]], dtype)
    for soft in (True, "or_zeros"):
        for weights in (None, jnp.ones(2), jnp.float32([0, 1])):
            actual = arrays.masked(jnp.ones((2, 3)), labels, weights, soft)[1]
            absent = weights is not None and weights[0] == 0
            kept = labels[0] if expected in (True, soft) else np.full(3, np.nan)
            np.testing.assert_array_equal(actual[0], np.zeros(3) if absent else kept)
            np.testing.assert_array_equal(actual[1], labels[1])


def test_results_on_an_explicit_mesh_are_sharded_like_the_arguments():
    mesh = jax.make_mesh((4, 2), ("rows", "classes"), axis_types=(AxisType.Explicit,) * 2)
    logits, labels = np.arange(48.0, dtype=np.float32).reshape(8, 6), np.arange(8)
    on_mesh = jax.device_put(logits, NamedSharding(mesh, P("rows", "classes")))

    def function(logits, labels):
        return logits + 1, jnp.max(logits, axis=-1) - labels, jnp.sum(logits)

    expected = function(logits, labels)
    for of_labels in (labels, jax.device_put(labels, NamedSharding(mesh, P("rows")))):
        for per_row in (True, False):
            way = arrays.with_auto_axes(function, on_mesh, of_labels, per_row=per_row)
            specs = [P("rows", "classes"), P("rows"), P()]
            specs = specs if per_row else [P(None, None), P(None), P()]
            assert [result.sharding.spec for result in way] == specs
            for actual, wanted in zip(way, expected, strict=True):
                np.testing.assert_array_equal(actual, wanted)
    for spread in (arrays.gathered(on_mesh), jax.jit(arrays.gathered)(on_mesh)):
        assert spread.sharding.is_fully_replicated
        np.testing.assert_array_equal(spread, logits)
    assert len(arrays.gathered(on_mesh).sharding.device_set) == 1
    for other in (logits, jnp.asarray(logits)):
        assert arrays.gathered(other) is other
        assert arrays.with_auto_axes(lambda *given: given, other, labels)[0] is other


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
