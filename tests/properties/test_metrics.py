"""All metrics at once on random predictions: copies, order, absence, shift, and NumPy's numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import assume

from calib_jax import metrics
from tests.metrics import reference

from .cases import Batch, batches, few_and_many

CATALOGUE = dict(metrics.catalogue())
# Curves have a point for each row, repeated where rows are: their points are compared elsewhere.
VALUES = {name: metric for name, metric in CATALOGUE.items() if "curve" not in name}
FEW_SHAPES = ((16, 4),)
MANY_SHAPES = (*FEW_SHAPES, (5, 130), (1, 2), (2, 3), (48, 10), (16, 200), (50, 128))
LANES = 16  # rows that a processor computes at once; what remains it computes one by one


@functools.cache
def compiled():
    """Compile all metrics as one program for each shape."""
    return jax.jit(lambda *batch: metrics.values_of(VALUES, *batch))


def of(batch):
    return jax.tree.map(np.asarray, compiled()(*map(jnp.asarray, batch)))


# The root of a difference that is 0 but for rounding, whose own rounding is as large.
ROOTS = {"debiased_rms_calibration_error", "adaptive_debiased_rms_calibration_error"}
# Examples that share no possible class are no neighbours, and the nearest of them is arbitrary.
NEIGHBOURS = {"kde_calibration_error"}


def some_impossible(batch):
    """Check whether a class of some example has probability 0 in float32."""
    z = batch.logits[batch.weights > 0]
    return np.any(z.max(axis=1) - z.min(axis=1) > 80)


def assert_same(actual, wanted, *, impossible, tolerance=1e-4, size=1.0):
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        if name in NEIGHBOURS and impossible:
            continue
        for a, b in zip(jax.tree.leaves(actual[name]), jax.tree.leaves(value), strict=True):
            finite = np.isfinite(b)
            np.testing.assert_array_equal(np.isfinite(a), finite, name)
            largest = max(np.abs(b[finite]).max(initial=0), size)
            if name in ROOTS:
                a, b = np.square(a), np.square(b)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * largest, err_msg=name)


def without_ties_made_by_rounding(batch, *, equal_rows):
    """Skip cases in which the last bit of a probability decides what ranks before what.

    Equal rows have equal bits only where none of them is computed apart from the others.
    """
    z = batch.logits[batch.weights > 0]
    p = reference.softmax(z)
    for column in (*p.T, p.max(axis=1)):
        order = np.argsort(column, kind="stable")
        near = np.diff(column[order]) < 1e-6
        alike = (z[order][1:] == z[order][:-1]).all(axis=1)
        assume(not np.any(near & ~(alike & equal_rows)))


def chosen(shapes, **options):
    return {"batch": batches(shapes, **options)}


def sizes(**options):
    """Return the strategies of the two sizes of a property."""
    return {
        "few": chosen(FEW_SHAPES, dtypes=("int32",), **options),
        "many": chosen(MANY_SHAPES, **options),
    }


ORDINARY = {"exponents": (-6, 4)}


@few_and_many(**sizes(**ORDINARY), share=0.5)
def TestRowsHaveNoOrderAndAbsentOnesNoContent(batch: Batch) -> None:
    """Rows may be permuted, and those of weight 0 hold anything, for every metric."""
    if len(batch.labels) % LANES:
        without_ties_made_by_rounding(batch, equal_rows=False)
    wanted = of(batch)
    order = np.random.default_rng(0).permutation(len(batch.labels))
    absent = (batch.weights == 0)[:, None]
    clean = batch._replace(
        logits=np.where(absent, np.float32(1), batch.logits),
        labels=np.where(absent[:, 0], 0, batch.labels).astype(batch.labels.dtype),
    )
    assert_same(of(clean.rows(order)), wanted, impossible=some_impossible(batch))


ROWS = LANES  # of either form below: one program serves both
COPIES = np.array([2, 0, 1, 3, 1, 2])


def padded(batch, weights):
    """Add absent rows until there are `ROWS` of them."""
    index = np.resize(np.arange(len(weights)), ROWS)
    weights = np.pad(weights, (0, ROWS - len(weights)))
    return batch.rows(index)._replace(weights=weights.astype(np.float32))


@few_and_many(
    chosen(((6, 4),), absent=False, dtypes=("int8", "int32"), **ORDINARY),
    chosen(((6, 4), (6, 9)), absent=False, **ORDINARY),
    share=0.5,
)
def TestWeightsAreCopies(batch: Batch) -> None:
    """Weight k equals k copies, for every metric."""
    repeated = np.repeat(np.arange(len(COPIES)), COPIES)
    copies = padded(batch.rows(repeated), np.ones(len(repeated)))
    assert_same(of(padded(batch, COPIES)), of(copies), impossible=some_impossible(batch))


REFERENCES = (
    *("accuracy", "error", "nll", "brier", "mean_confidence", "mean_entropy", "signed_gap"),
    *("ece", "mce", "rms_calibration_error", "adaptive_ece", "classwise_ece"),
)


@few_and_many(**sizes(exponents=(-6, 1), impossible=False), share=0.5)
def TestNumbersAreThoseOfNumPy(batch: Batch) -> None:
    """Values of a dozen metrics are those of loops in float64."""
    present = batch.weights > 0
    p = reference.softmax(batch.logits[present])
    # On an edge of a bin rounding decides, and where two probabilities are nearly equal.
    inner = np.abs(15 * p - np.round(15 * p)) < 1e-4
    assume(not np.any(inner & (p > 1e-3) & (p < 0.999)))
    gaps = np.diff(np.sort(p, axis=1), axis=1)[:, -1:]
    assume(not np.any((gaps > 0) & (gaps < 1e-6)))
    without_ties_made_by_rounding(batch, equal_rows=len(batch.labels) % LANES == 0)
    actual = of(batch)
    for name in REFERENCES:
        if p.min() < 1e-30 and name == "nll":
            continue
        arguments = p, batch.labels[present].astype(int), batch.weights[present].astype(float)
        wanted = getattr(reference, name)(*arguments)
        np.testing.assert_allclose(actual[name], wanted, rtol=1e-4, atol=2e-5, err_msg=name)


@few_and_many(**sizes(), share=0.5)
def TestMetricsStayInTheirRange(batch: Batch) -> None:
    """Shares lie in [0, 1], at every scale and with impossible classes."""
    actual = of(batch)
    for name in ("accuracy", "error", "mean_confidence", "ece", "mce", "adaptive_ece"):
        assert -1e-6 <= actual[name] <= 1 + 1e-6, (name, actual[name])
    assert actual["nll"] >= -1e-6
    assert -1e-6 <= actual["brier"] <= 2 + 1e-6
    assert actual["nll"] < np.inf or np.isneginf(batch.logits).any()
