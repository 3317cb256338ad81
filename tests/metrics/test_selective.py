"""Selective prediction, against a curve that is walked example by example."""

import numpy as np
import pytest

from calib_jax import metrics

from .laws import assert_laws, assert_same, value_of
from .reference import logits_of, sample, softmax, top_label


def groups(logits, labels):
    """Return (examples, errors) of every distinct confidence, the highest first."""
    confidence, hit = top_label(logits, labels)
    confidence = np.round(confidence, 6)
    return [
        (np.sum(confidence == level), np.sum(1 - hit[confidence == level]))
        for level in sorted(set(confidence), reverse=True)
    ]


def errors_at(coverage, grouped):
    """Return the errors among the first `coverage` examples, a group being split evenly."""
    total = 0.0
    for count, errors in grouped:
        total += errors * min(coverage, count) / count
        coverage -= min(coverage, count)
    return total


def area(grouped, steps=20_000):
    """Return the mean risk over a fine grid of coverages."""
    n = sum(count for count, _ in grouped)
    coverages = (np.arange(steps) + 0.5) / steps * n
    return np.mean([errors_at(c, grouped) / c for c in coverages])


def test_the_area_is_the_mean_risk_over_all_coverages():
    logits, labels = sample()
    grouped = groups(logits, labels)
    assert len(grouped) < len(labels)
    found = value_of(metrics.aurc, logits, labels)
    np.testing.assert_allclose(found, area(grouped), atol=2e-6)

    errors = sum(wrong for _, wrong in grouped)
    perfect = [(len(labels) - errors, 0), (errors, errors)]
    found = value_of(metrics.excess_aurc, logits, labels)
    np.testing.assert_allclose(found, area(grouped) - area(perfect), atol=4e-6)


def test_a_share_is_answered():
    logits, labels = sample(1)
    grouped = groups(logits, labels)
    for coverage in (0.1, 0.333, 0.9, 1.0):
        answered = coverage * len(labels)
        found = value_of(metrics.selective_accuracy, logits, labels, coverage=coverage)
        np.testing.assert_allclose(found, 1 - errors_at(answered, grouped) / answered, rtol=1e-5)


def test_the_confident_are_counted():
    logits, labels = sample(2)
    confidence, hit = top_label(logits, labels)
    sure = confidence >= 0.8
    found = value_of(metrics.confident_set, logits, labels, threshold=0.8)
    assert_same(found, metrics.ConfidentSet(np.mean(sure), np.mean(hit[sure])))


def test_nobody_is_confident():
    logits, labels = sample(2)
    found = value_of(metrics.confident_set, logits, labels)
    assert found.share == 0
    assert np.isnan(found.accuracy)


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (metrics.aurc, {}),
        (metrics.excess_aurc, {}),
        (metrics.selective_accuracy, {"coverage": 0.35}),
        (metrics.confident_set, {"threshold": 0.6}),
    ],
)
def test_laws(metric, options):
    assert_laws(metric, *sample(3), **options)


RANKS = logits_of(np.linspace(0.95, 0.55, 40), 3)


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        (np.zeros(40, bool), (0.0, 0.0, 1.0)),
        (np.ones(40, bool), (1.0, 0.0, 0.0)),
        # the 4 least confident are wrong: a perfect ranking, and 90 % can be answered rightly
        (np.arange(40) >= 36, (0.1 + 0.9 * np.log(0.9), 0.0, 1.0)),
    ],
)
def test_all_right_all_wrong_and_a_perfect_ranking(wrong, wanted):
    found = [
        value_of(metric, RANKS, wrong.astype(int))
        for metric in (metrics.aurc, metrics.excess_aurc, metrics.selective_accuracy)
    ]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_equal_confidence_makes_no_difference_between_examples():
    """Confidences of exactly 1 are the rule on a training set, and have no order."""
    logits = logits_of(np.ones(40), 3)
    assert np.all(softmax(logits)[:, 0] == 1)
    labels = (np.arange(40) < 10).astype(int)
    for values in (labels, labels[::-1]):
        np.testing.assert_allclose(value_of(metrics.aurc, logits, values), 0.25, rtol=1e-6)
        found = value_of(metrics.selective_accuracy, logits, values, coverage=0.3)
        np.testing.assert_allclose(found, 0.75, rtol=1e-6)


def test_one_example():
    logits, labels = logits_of([0.7]), np.array([1])
    assert value_of(metrics.aurc, logits, labels) == 1
    assert value_of(metrics.excess_aurc, logits, labels) == 0
    assert value_of(metrics.selective_accuracy, logits, labels) == 0


def test_options_are_checked():
    logits, labels = sample()
    with pytest.raises(ValueError, match="coverage must be greater than 0"):
        value_of(metrics.selective_accuracy, logits, labels, coverage=0.0)
    with pytest.raises(ValueError, match="coverage must lie in"):
        value_of(metrics.selective_accuracy, logits, labels, coverage=90)
    with pytest.raises(ValueError, match="threshold must lie in"):
        value_of(metrics.confident_set, logits, labels, threshold=99)
