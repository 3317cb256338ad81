"""Laws of all tests and comparisons: the order of rows, and classes of probability 0."""

import inspect
import math

import jax
import numpy as np
import pytest

from calib_jax import inference

COMPARISONS = {
    "compare_calibration": inference.compare_calibration,
    "compare_ece": inference.compare_ece,
}
TESTS = sorted(inference.calibration_tests())


def data():
    """Return two models and labels; half of the rows of the first model are copies of others."""
    random = np.random.default_rng(0)
    first = (2 * random.normal(size=(200, 3))).astype(np.float32)
    first[:50] = first[50:100]
    second = (0.6 * first + 0.3 * random.normal(size=first.shape)).astype(np.float32)
    labels = np.where(random.random(200) < 0.6, first.argmax(1), random.integers(0, 3, 200))
    return first, second, labels


def options_of(function):
    return {"key": jax.random.key(3)} if "key" in inspect.signature(function).parameters else {}


def run_test(name, logits, labels):
    asymptotic = name in ("cox", "kuiper", "spiegelhalter", "temperature")
    options = {} if asymptotic else {"key": jax.random.key(3), "num_resamples": 100}
    return inference.calibration_test(name, logits, labels, **options)


@pytest.mark.parametrize("name", TESTS)
def test_the_order_of_rows_does_not_matter_to_a_test(name):
    logits, _, labels = data()
    order = np.random.default_rng(1).permutation(len(labels))
    one, other = run_test(name, logits, labels), run_test(name, logits[order], labels[order])
    assert one.p_value == pytest.approx(other.p_value, rel=1e-9)
    assert one.statistic == pytest.approx(other.statistic, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_order_of_rows_does_not_matter_to_a_comparison(name):
    first, second, labels = data()
    order = np.random.default_rng(1).permutation(len(labels))
    compare = COMPARISONS[name]
    options = options_of(compare)
    one = compare(first, second, labels, **options)
    other = compare(first[order], second[order], labels[order], **options)
    # The resamples of compare_ece are drawn by row, so they differ.
    tolerance = 0.02 if name == "compare_ece" else 2e-6
    np.testing.assert_allclose(jax.tree.leaves(other), jax.tree.leaves(one), atol=tolerance)


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("where", ["first", "second", "both"])
def test_a_true_class_of_probability_0_gives_no_false_certainty(name, where):
    """One such row changes a p-value and an interval little, or makes them NaN."""
    first, second, labels = data()
    compare = COMPARISONS[name]
    options = options_of(compare)
    before = compare(first, second, labels, **options)
    for chosen, logits in (("first", first), ("second", second)):
        if where in (chosen, "both"):
            logits[150, labels[150]] = -np.inf
    with np.errstate(invalid="ignore"):
        after = compare(first, second, labels, **options)
    if hasattr(before, "p_value"):
        wrong = after.p_value == 0 or abs(after.p_value - before.p_value) > 0.1
        assert math.isnan(after.p_value) or not wrong
    assert math.isnan(after.low) or (math.isfinite(after.low) and math.isfinite(after.high))
