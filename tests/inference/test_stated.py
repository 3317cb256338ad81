"""Tests, intervals and comparisons of stated confidences."""

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics
from tests.metrics.test_stated import among_classes, answers

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def models():
    """Two models that answer the same questions, as pairs and as logits of 50 classes."""
    pairs = answers(0), answers(1)
    stated = [inference.Evaluation(metrics.Stated(*pair)) for pair in pairs]
    return stated, [inference.Evaluation(*among_classes(*pair)) for pair in pairs]


@pytest.mark.parametrize("name", ["ece", "kuiper", "spiegelhalter", "squared_error", "cox"])
def test_tests_are_those_of_an_answer_among_many_classes(models, name):
    (stated, _), (logits, _) = models
    key = {} if name in ("kuiper", "spiegelhalter", "cox") else {"key": KEY}
    actual = inference.calibration_test(name, stated, **key)
    wanted = inference.calibration_test(name, logits, **key)
    np.testing.assert_allclose(actual, wanted, rtol=0.02, atol=2e-3)


def test_the_temperature_test_reads_the_log_odds(models):
    """The score of log 1/T of a Bernoulli event, in NumPy."""
    c, a = (np.float64(column) for column in answers(0))
    odds = np.log(c / (1 - c))
    z = np.sum((c - a) * odds) / np.sqrt(np.sum(c * (1 - c) * odds**2))
    actual = inference.calibration_test("temperature", models[0][0])
    np.testing.assert_allclose(actual.statistic, z, rtol=1e-4)


def test_intervals_and_thresholds(models):
    (stated, _), (logits, _) = models
    several = {"ece": metrics.ece, "aurc": metrics.aurc}
    actual = inference.estimates(several, stated, key=KEY)
    wanted = inference.estimates(several, logits, key=KEY)
    for name in several:
        np.testing.assert_allclose(actual[name].low, wanted[name].low, rtol=0.03, atol=2e-3)
        np.testing.assert_allclose(actual[name].high, wanted[name].high, rtol=0.03, atol=2e-3)
    assert inference.guaranteed_coverage(stated, risk=0.7).coverage > 0.2
    groups = np.arange(400) % 3
    for one, other in zip(
        inference.group_errors(stated, groups=groups, key=KEY),
        inference.group_errors(logits, groups=groups, key=KEY),
        strict=True,
    ):
        assert (one.name, one.size) == (other.name, other.size)


@pytest.mark.slow
def test_two_models_that_answer_the_same_questions_are_compared(models):
    stated, _ = models
    c, a = (np.float64(columns) for columns in zip(answers(0), answers(1), strict=True))
    brier = np.mean((c[1] - a[1]) ** 2 - (c[0] - a[0]) ** 2)
    exact = inference.mcnemar(*stated)
    right = a.astype(bool)
    counts = np.sum(~right[0] & right[1]), np.sum(right[0] & ~right[1])
    assert (exact.to_right, exact.to_wrong) == counts
    squared = inference.compare_calibration(*stated)
    gap = [inference.debiased_squared_error(one).value for one in stated]
    np.testing.assert_allclose(squared.value, gap[1] - gap[0], atol=1e-6)
    pairs = [metrics.Stated(*answers(seed)) for seed in (0, 1)]
    of_ece = inference.compare_ece(*stated, key=KEY)
    ece_a, ece_b = (float(metrics.ece(pair)) for pair in pairs)
    np.testing.assert_allclose(of_ece.value, ece_b - ece_a, atol=1e-6)
    assert of_ece.low < of_ece.value < of_ece.high
    # Lists of runs, of one run each.
    lists = ([pair] for pair in pairs)
    runs = inference.compare_metrics({"brier": metrics.brier}, *lists, key=KEY)
    np.testing.assert_allclose(runs["brier"].value, brier, rtol=1e-4)
    with pytest.raises(ValueError, match="400 and 3 confidences"):
        inference.compare_calibration(stated[0], metrics.Stated(*answers(0, 3)))


def test_flips_of_answers_count_every_answer_once():
    right_a, right_b = np.arange(12) % 2, np.arange(12) % 3 == 0
    a, b = (metrics.Stated(np.full(12, 0.7), right) for right in (right_a, right_b))
    assert inference.flips(a, b) == (2, 4, 0, 6)
