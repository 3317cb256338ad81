"""Probabilities in the place of logits: found by their values, and logits are let through.

They are judged once, over all rows of an input, where the input enters. A part of an input, or an
input of few rows, may look like probabilities by chance.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import binary, calibrators, inference, metrics, report
from calib_jax.core import values
from calib_jax.core.values import LEAST_ROWS, refuse_probabilities, refuse_probability_column
from tests.selection import first_case, some

RANDOM = np.random.default_rng(0)
P = RANDOM.dirichlet(np.full(10, 0.5), size=40).astype(np.float32)


@pytest.mark.parametrize("num_classes", [2, 10, 100])
@pytest.mark.parametrize("digits", [2, 3, 4, 6, None])
def test_probabilities_are_refused_however_they_are_printed(num_classes, digits):
    p = RANDOM.dirichlet(np.full(num_classes, 0.3), size=60)
    p = p if digits is None else p.round(digits)
    for dtype in (np.float32, np.float64):
        with pytest.raises(ValueError, match=r"nll: all \d\d rows of the logits look like prob"):
            refuse_probabilities("nll", p.astype(dtype))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision(dtype):
    with pytest.raises(ValueError, match="all 40 rows"):
        refuse_probabilities("nll", jnp.asarray(P, dtype))


@pytest.mark.parametrize(
    "logits",
    [
        RANDOM.standard_normal((40, 10)),
        RANDOM.uniform(size=(40, 2)),
        np.zeros((40, 10)),
        RANDOM.integers(-5, 6, size=(40, 10)).astype(float),
        P + 1,
        P - 1,
        np.log(P),
        np.eye(10)[np.arange(40) % 10],
        np.concatenate([P, P[:2] + 1]),
    ],
    ids=["normal", "uniform", "zero", "integers", "up", "down", "log", "one-hot", "some"],
)
def test_logits_are_let_through(logits):
    refuse_probabilities("nll", logits.astype(np.float32))
    refuse_probabilities("nll", jnp.asarray(logits, jnp.float32))


@pytest.mark.parametrize("num_classes", [2, 10, 1000])
def test_the_rounding_of_16_bits_leaves_probabilities(num_classes):
    """Also where the rounded numbers are given in float32."""
    logits = 3 * RANDOM.standard_normal((200, num_classes)).astype(np.float32)
    for dtype in (jnp.bfloat16, jnp.float16):
        p = jax.nn.softmax(jnp.asarray(logits, dtype))
        for given in (p, p.astype(jnp.float32)):
            with pytest.raises(ValueError, match="200 rows"):
                refuse_probabilities("nll", given)


@pytest.mark.parametrize("position", [0, 60, 120])
def test_few_odd_rows_do_not_hide_probabilities(position):
    p = RANDOM.dirichlet(np.ones(4), size=121).astype(np.float32)
    for odd in (0.0, np.nan, -1.0):
        p[position] = odd
        count = "all 120" if odd == 0 else "120 of 121"  # a row of zeros is not judged
        with pytest.raises(ValueError, match=f"nll: {count} rows of the logits"):
            refuse_probabilities("nll", p)


def test_rows_of_weight_zero_are_neither_for_nor_against():
    rows = np.concatenate([P[:2] + 5, P]).astype(np.float32)
    weights = np.r_[0.0, 0.0, np.ones(40)]
    refuse_probabilities("nll", rows)
    with pytest.raises(ValueError, match="all 40 rows"):
        refuse_probabilities("nll", jnp.asarray(rows), jnp.asarray(weights))
    refuse_probabilities("nll", P, np.zeros(40))
    refuse_probabilities("nll", P[:0])


def test_one_column():
    column = RANDOM.uniform(size=30).astype(np.float32)
    for given in (column, column[:, None], jnp.asarray(column)):
        with pytest.raises(ValueError, match=r"score: all 30 values .* lie in \[0, 1\]"):
            refuse_probability_column("score", given)
    column[3] = -0.1
    refuse_probability_column("score", column)
    with pytest.raises(ValueError, match="all 29 values"):
        refuse_probability_column("score", column, np.arange(30) != 3)
    refuse_probabilities("score", column[:, None])


def test_whoever_looks_at_values_refuses_them():
    labels = np.zeros(40, int)
    with pytest.raises(ValueError, match="ece: all 40 rows of the logits look like") as caught:
        values.flat_rows("ece", P, labels, None)
    assert all(len(line) < 121 for line in str(caught.value).split("\n"))
    jax.jit(lambda z: values.flat_rows("ece", z, labels, None)[0])(P)


# Every way in which arrays enter the library.
KEY = jax.random.key(0)
LABELS = np.arange(40) % 10
ENTRIES = {
    "metric": metrics.nll,
    "several metrics": lambda z, y, w=None: metrics.values_of({"nll": metrics.nll}, z, y, w),
    "bootstrap": lambda z, y, w=None: inference.bootstrap(
        metrics.accuracy, z, y, w, key=KEY, num_resamples=2
    ),
    "test": lambda z, y, w=None: inference.calibration_test("spiegelhalter", z, y, w),
    "groups": lambda z, y, w=None: inference.group_errors(z, y, y % 2, w, key=KEY, num_resamples=2),
    "fit": lambda z, y, w=None: calibrators.temperature.fit(z, y, w),
    "report": lambda z, y, w=None: report.score(
        z, y, weights=w, metrics=["accuracy"], num_resamples=2, method="basic"
    ),
}


@pytest.mark.parametrize("entry", some(ENTRIES, 4))
def test_rows_of_positive_weight_are_judged_from_twenty_on(entry):
    call, few = ENTRIES[entry], LEAST_ROWS - 1
    assert LEAST_ROWS == 20
    call(P[:few], LABELS[:few])
    weights = np.where(np.arange(40) < few, 1.0, 0.0)
    call(P, LABELS, weights)
    weights[-1] = 1
    for given in ((P[:20], LABELS[:20]), (P, LABELS, weights)):
        with pytest.raises(ValueError, match="rows of the logits look like probabilities"):
            call(*given)


def test_one_column_is_judged_from_twenty_values_on():
    column = RANDOM.uniform(size=20).astype(np.float32)
    refuse_probability_column("score", column[:19])
    refuse_probability_column("score", column, np.arange(20) > 0)
    with pytest.raises(ValueError, match="all 20 values"):
        refuse_probability_column("score", column)
    few = {"metrics": ["accuracy"], "num_resamples": 2, "method": "basic"}
    assert report.score(column[:19], np.ones(19, int), **few).settings["classes"] == 2
    with pytest.raises(ValueError, match="all 20 values of the one column"):
        report.score(column, np.ones(20, int), **few)


def test_logits_that_look_like_probabilities_in_small_inputs():
    params = calibrators.temperature.fit(3 * np.log(P), LABELS)
    expected = np.array([0.25, 0.75], np.float32) / params.temperature
    for rows in (1, 40):
        calibrated = calibrators.temperature.apply(params, np.array([[0.25, 0.75]] * rows))
        np.testing.assert_allclose(calibrated[-1] - calibrated[-1, 0], expected - expected[0], 1e-5)
    assert calibrators.temperature.apply(params, [0.25, 0.75]).shape == (2,)
    assert metrics.nll(binary(np.array([1.0])), np.array([1])) == pytest.approx(0.3133, rel=1e-3)


@pytest.mark.parametrize("rows", [1, 20])
def test_a_batch_of_a_stream_may_look_like_probabilities(rows):
    stream = metrics.Stream(metrics.nll)
    stream.update(np.array([[0.25, 0.75]] * rows, np.float32), np.zeros(rows, int))
    stream.update(np.array([[3.0, -1.0]], np.float32), np.zeros(1, int))
    whole = np.array([[0.25, 0.75]] * rows + [[3.0, -1.0]], np.float32)
    expected = metrics.nll(whole, np.zeros(rows + 1, int))
    assert stream.compute()["nll"] == pytest.approx(float(expected), rel=1e-6)


def test_probabilities_in_a_stream_are_found_over_all_its_batches():
    for add in (
        lambda stream: stream.update(P, LABELS),
        lambda stream: [stream.update(P[i : i + 1], LABELS[i : i + 1]) for i in range(20)],
    ):
        stream = metrics.Stream(metrics.nll)
        add(stream)
        with pytest.raises(ValueError, match=r"nll: all \d\d rows of the logits look like"):
            stream.compute()
        stream.reset()
        stream.update(P[:19], LABELS[:19])
        stream.compute()


@first_case
@pytest.mark.parametrize("alike", [1, 25])
def test_a_group_of_a_report_may_look_like_probabilities(alike):
    logits = 3 * RANDOM.standard_normal((60, 2)).astype(np.float32)
    logits[:alike] = [0.25, 0.75]
    groups = np.where(np.arange(60) < alike, "alike", "other")
    labels = RANDOM.integers(2, size=60)
    scored = report.score(
        logits, labels, groups=groups, metrics=["accuracy", "ece"], num_resamples=20
    )
    assert {part.part for part in scored.groups} == {"alike", "other"}
    # Folds are fitted on a part of the examples, and applied to another.
    report.score(
        logits[:alike + 2], labels[: alike + 2], calibrate="temperature", cross_fit=2,
        metrics=["accuracy"], num_resamples=2, method="basic",
    )  # fmt: skip


def test_copies_are_not_counted_as_rows():
    test = {"key": KEY, "num_resamples": 20}
    inference.calibration_test("ece", P[:19], LABELS[:19], np.full(19, 3), **test)
    inference.noise_bound(metrics.ece, P[:19], LABELS[:19], np.full(19, 3), **test)
