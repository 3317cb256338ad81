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
        risk = errors_at(answered, grouped) / answered
        np.testing.assert_allclose(found, 1 - risk, rtol=1e-5)
        found = value_of(metrics.risk_at_coverage, logits, labels, coverage=coverage)
        np.testing.assert_allclose(found, risk, rtol=1e-5, atol=1e-7)


GOLDEN_CONFIDENCE = [.55, .62, .68, .71, .77, .83, .86, .90, .93, .96, .97, .99]  # fmt: skip
GOLDEN_HIT = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1])


def test_the_generalised_area_is_the_recorded_number():
    found = value_of(metrics.augrc, logits_of(GOLDEN_CONFIDENCE), 1 - GOLDEN_HIT)
    np.testing.assert_allclose(found, 0.100694, atol=5e-7)


def auroc_of_hits(confidence, hit):
    """Return the share of (hit, error) pairs in which the hit is more confident."""
    difference = confidence[hit == 1][:, None] - confidence[hit == 0][None]
    return np.mean((difference > 0) + 0.5 * (difference == 0))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_generalised_area_by_ranks_and_by_the_auroc(seed):
    """Both forms in NumPy, with ties."""
    logits, labels = sample(seed)
    confidence, hit = top_label(logits, labels)
    confidence, n = np.round(confidence, 6), len(labels)
    assert len(set(confidence)) < n
    found = value_of(metrics.augrc, logits, labels)
    rank = np.array(
        [np.sum(confidence > c) + (np.sum(confidence == c) + 1) / 2 for c in confidence]
    )
    by_ranks = np.sum((1 - hit) * (n - rank + 0.5)) / n**2
    np.testing.assert_allclose(found, by_ranks, rtol=1e-5)
    accuracy = hit.mean()
    by_auroc = (1 - auroc_of_hits(confidence, hit)) * accuracy * (1 - accuracy)
    np.testing.assert_allclose(found, by_auroc + (1 - accuracy) ** 2 / 2, rtol=1e-5)


@pytest.mark.parametrize(("coverage", "errors"), [(0.25, 0), (0.5, 1), (0.75, 2), (1.0, 3)])
def test_the_risk_is_the_mean_loss_of_the_most_confident(coverage, errors):
    options = {"coverage": coverage}
    found = value_of(
        metrics.risk_at_coverage, logits_of(GOLDEN_CONFIDENCE), 1 - GOLDEN_HIT, **options
    )
    np.testing.assert_allclose(found, errors / (12 * coverage), rtol=1e-6)


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
        (metrics.augrc, {}),
        (metrics.risk_at_coverage, {"coverage": 0.35}),
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
        (np.zeros(40, bool), (0.0, 0.0, 0.0, 0.0, 1.0)),
        (np.ones(40, bool), (1.0, 0.0, 0.5, 1.0, 0.0)),
        # the 4 least confident are wrong: a perfect ranking, and 90 % can be answered rightly
        (np.arange(40) >= 36, (0.1 + 0.9 * np.log(0.9), 0.0, 0.1**2 / 2, 0.0, 1.0)),
    ],
)
def test_all_right_all_wrong_and_a_perfect_ranking(wrong, wanted):
    several = ("aurc", "excess_aurc", "augrc", "risk_at_coverage", "selective_accuracy")
    found = [value_of(metrics.named(name), RANKS, wrong.astype(int)) for name in several]
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
