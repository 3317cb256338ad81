"""Metrics and bins on random predictions: copies, order, absence, shift, and NumPy's numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from hypothesis import assume
from hypothesis import strategies as st

from calib_jax import calibrators, metrics
from tests.metrics import reference
from tests.metrics.test_laws import values_of_all_metrics

from . import Batch, batches, few_and_many

SEEDS = st.integers(0, 2**32 - 1)


def confidences(seed, rows):
    """Draw confidences of which some are equal, and some lie on edges or at the ends."""
    random = np.random.default_rng(seed)
    kinds = [
        random.random(rows),
        random.integers(0, 31, rows) / 30,
        np.linspace(0, 1, 16, dtype=np.float32)[random.integers(0, 16, rows)],
        np.nextafter(np.float32(1) / 15, random.integers(0, 2, rows)),
    ]
    return np.choose(random.integers(0, 4, rows), kinds).astype(np.float32)


OF_ANSWERS = ("accuracy", "error", "mean_confidence", "signed_gap", "brier", "nll", "ece", "mce")


@jax.jit
def of_metrics(confidence, correct, weights):
    stated = metrics.Stated(confidence, correct)
    return {name: getattr(metrics, name)(stated, weights=weights) for name in OF_ANSWERS}


def by_loops(confidence, correct, weights):
    """The same in float64, from the definitions for one event; bins are (lo, hi]."""
    edges = np.linspace(0, 1, 16, dtype=np.float32)
    bins = np.array([sum(c > edge for edge in edges[1:-1]) for c in confidence])
    c, y, w = (np.float64(column) for column in (confidence, correct, weights))
    w = w / w.sum()
    gaps = [abs(np.sum((w * (c - y))[bins == b])) for b in range(15)]
    sizes = [np.sum(w[bins == b]) for b in range(15)]
    with np.errstate(divide="ignore"):
        log_true = np.log(np.where(y == 1, c, 1 - c))
    return {
        **{"accuracy": w @ y, "error": 1 - w @ y, "mean_confidence": w @ c},
        **{"signed_gap": w @ c - w @ y, "brier": w @ (c - y) ** 2},
        "nll": -(w[w > 0] @ log_true[w > 0]),
        "ece": sum(gaps),
        "mce": max(gap / size for gap, size in zip(gaps, sizes, strict=True) if size > 0),
    }


@few_and_many(
    {"seed": SEEDS, "rows": st.just(20)}, {"seed": SEEDS, "rows": st.sampled_from((1, 2, 20, 50))}
)
def TestMetricsOfStatedConfidences(seed: int, rows: int) -> None:
    """Values are those of loops, with ties, edges, absent rows and confidences of 0 and 1."""
    random = np.random.default_rng(seed)
    confidence = confidences(seed, rows)
    correct = random.random(rows) < random.choice([0.1, 0.5, 0.9])
    weights = random.choice([0, 1, 1, 2, 0.5], rows).astype(np.float32)
    weights[random.integers(rows)] = 1
    actual = of_metrics(confidence, correct, weights)
    for name, wanted in by_loops(confidence, correct, weights).items():
        np.testing.assert_allclose(actual[name], wanted, rtol=2e-5, atol=2e-6, err_msg=name)


RISING = {
    "the same": lambda s: s,
    "a line": lambda s: 4 * s - 20,
    "a cube": lambda s: s**3,
    "a probability": lambda s: 1 / (1 + np.exp(-s)),
}


def of_scores(score, correct):
    params = calibrators.isotonic.fit(calibrators.Scored(jnp.asarray(score), correct))
    return np.asarray(calibrators.isotonic.apply(params, jnp.asarray(score)))


@few_and_many(
    {"seed": SEEDS, "rows": st.just(80)}, {"seed": SEEDS, "rows": st.sampled_from((3, 20, 50))}
)
def TestScoresHaveNoScale(seed: int, rows: int) -> None:
    """Isotonic probabilities are those of SciPy, whatever rising function the scores went through.

    They keep the share of right answers.
    """
    random = np.random.default_rng(seed)
    score = random.integers(-5, 6, rows).astype(np.float32)
    correct = random.random(rows) < 1 / (1 + np.exp(-score * random.choice([-1, 0, 1])))
    assume(0 < correct.sum() < rows)
    values, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    shares = np.bincount(group, correct) / counts
    wanted = scipy.optimize.isotonic_regression(shares, weights=counts).x[group]
    assert len(values) > 1 or np.allclose(wanted, correct.mean())
    for name, change in RISING.items():
        actual = of_scores(change(score).astype(np.float32), correct)
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(actual.mean(), correct.mean(), rtol=1e-5)


# --------------------------------------------------------------------------------------------
# Files.


# Curves have a point for each row, repeated where rows are: their points are compared elsewhere.
FEW_SHAPES, FEW_DTYPES = ((16, 4),), ("int32",)  # as of the laws, which share the program
MANY_SHAPES = (*FEW_SHAPES, (5, 130), (1, 2), (2, 3), (48, 10), (16, 200), (50, 128))
LANES = 16  # rows that a processor computes at once; what remains it computes one by one


def of(batch):
    """Compute all metrics, in one program for each shape."""
    values = jax.device_get(values_of_all_metrics(*batch))
    return {name: value for name, value in values.items() if "curve" not in name}


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
        "few": chosen(FEW_SHAPES, dtypes=FEW_DTYPES, **options),
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
    chosen(((6, 4),), absent=False, dtypes=FEW_DTYPES, **ORDINARY),
    chosen(((6, 4), (6, 9)), absent=False, **ORDINARY),
    share=0.5,
)
def TestWeightsAreCopies(batch: Batch) -> None:
    """Weight k equals k copies, for every metric."""
    repeated = np.repeat(np.arange(len(COPIES)), COPIES)
    copies = padded(batch.rows(repeated), np.ones(len(repeated)))
    assert_same(of(padded(batch, COPIES)), of(copies), impossible=some_impossible(batch))


SLOW = (
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
    for name in SLOW:
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
