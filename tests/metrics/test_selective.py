"""Selective prediction, against a curve that is walked example by example."""

import itertools
import math

import jax
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.metrics.selective import ConfidentSet

from . import assert_same, value_of
from .reference import logits_of, sample, top_label


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
    actual = value_of(metrics.aurc, logits, labels)
    np.testing.assert_allclose(actual, area(grouped), atol=2e-6)

    errors = sum(wrong for _, wrong in grouped)
    perfect = [(len(labels) - errors, 0), (errors, errors)]
    actual = value_of(metrics.excess_aurc, logits, labels)
    np.testing.assert_allclose(actual, area(grouped) - area(perfect), atol=4e-6)


def test_areas_of_equal_scores_have_no_rounding_errors():
    """A program that divides before it subtracts gives an AUROC of 0.49994 for 3,000 rows."""
    rows = 3000
    labels = (np.arange(rows) % 7 < 3).astype(int)
    right = np.mean(labels)
    stated = metrics.Stated(np.full(rows, 0.3, np.float32), labels)
    equal = np.zeros((rows, 2), np.float32)
    for actual, expected in (
        (metrics.confidence_auroc(stated), 0.5),
        (metrics.augrc(stated), (1 - right) / 2),
        (metrics.auroc(equal, labels), 0.5),
        (metrics.ood_auroc(equal, labels), 0.5),
    ):
        np.testing.assert_allclose(actual, expected, rtol=2e-7)


def test_small_weights_beside_a_large_sum_have_a_width_of_0():
    """The errors of such rows counted in full: 1.3e-5 in place of 1.1e-10."""
    stated = metrics.Stated(np.append(1.0, np.linspace(0.9, 0.1, 1000)), np.arange(1001) == 0)
    weights = np.append(2.0**26, np.ones(1000))
    total, share = np.sum(weights), 1000 / np.sum(weights)
    wanted = {"curve": share + (1 - share) * np.log1p(-share), "sele": 1000 * 500.5 / total**2}
    for estimator, area_of_rows in wanted.items():
        actual = metrics.aurc(stated, weights=weights, estimator=estimator)
        np.testing.assert_allclose(actual, area_of_rows, rtol=0.01)


def test_a_share_is_answered():
    logits, labels = sample(1)
    grouped = groups(logits, labels)
    for coverage in (0.1, 0.333, 1.0):
        answered = coverage * len(labels)
        names = ("selective_accuracy", "risk_at_coverage")
        several = {name: metrics.named(name, coverage=coverage) for name in names}
        values = metrics.values_of(several, logits, labels)
        risk = errors_at(answered, grouped) / answered
        np.testing.assert_allclose(values["selective_accuracy"], 1 - risk, rtol=1e-5)
        np.testing.assert_allclose(values["risk_at_coverage"], risk, rtol=1e-5, atol=1e-7)
    unlabelled = logits_of([0.9, 0.8, 0.6]), np.array([0, 0, 9])  # the least sure
    assert np.isnan(value_of(metrics.risk_at_coverage, *unlabelled, coverage=0.5))
    assert np.isnan(value_of(metrics.coverage_at_risk, *unlabelled))


def estimates_in_order(errors):
    """Return the three estimators of examples in a given order, the most confident first."""
    n = len(errors)
    return {
        "sample": sum(sum(errors[:k]) / k for k in range(1, n + 1)) / n,
        "population": sum(-math.log((j + 1) / (n + 1)) * e for j, e in enumerate(errors)) / n,
        "sele": sum((n - j) / n * e for j, e in enumerate(errors)) / n,
    }


def test_equal_confidences_have_the_mean_over_all_their_orders():
    confidence = np.array([0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6])
    wrong = np.array([0, 1, 0, 1, 0, 1, 0])
    orders = [
        wrong[list(order)]
        for order in itertools.permutations(range(7))
        if list(confidence[list(order)]) == sorted(confidence, reverse=True)
    ]
    assert len(orders) == 12
    of_orders = [estimates_in_order(order) for order in orders]
    for estimator in ("sample", "population", "sele"):
        wanted = np.mean([each[estimator] for each in of_orders])
        for exact, tolerance in ((False, 3e-6), (True, 2e-7)):  # in float64, too
            with jax.enable_x64(exact):
                logits = logits_of(confidence).astype(float if exact else np.float32)
                actual = value_of(metrics.aurc, logits, wrong, estimator=estimator)
            np.testing.assert_allclose(actual, wanted, rtol=tolerance)


def test_the_auroc_of_the_confidence_counts_pairs():
    logits, labels = sample(2)
    confidence, hit = top_label(logits, labels)
    confidence = np.round(confidence, 6)
    right, wrong = confidence[hit == 1][:, None], confidence[hit == 0]
    wanted = np.mean((right > wrong) + (right == wrong) / 2)
    assert 0 < np.mean(right == wrong) < 1
    actual = value_of(metrics.confidence_auroc, logits, labels)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)
    # The relation in the docstring of `augrc`.
    accuracy = np.mean(hit)
    area = (1 - wanted) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    np.testing.assert_allclose(value_of(metrics.augrc, logits, labels), area, rtol=1e-5)


@pytest.mark.parametrize("risk", [0.0, 0.2, 0.5])
def test_the_largest_coverage_with_a_risk(risk):
    """On a fine grid of coverages; the risk there is the given one, where it is reached."""
    logits, labels = sample(1)
    grouped, n = groups(logits, labels), len(labels)
    coverages = np.linspace(1e-9, 1, 5001)
    allowed = [errors_at(c * n, grouped) <= risk * c * n + 1e-9 for c in coverages]
    actual = float(value_of(metrics.coverage_at_risk, logits, labels, risk=risk))
    largest = coverages[np.flatnonzero(allowed)[-1]] if any(allowed) else 0.0
    assert 0 <= actual - largest + 1e-6 <= 2e-4 + 2e-6
    if 0 < actual < 1:
        reached = value_of(metrics.risk_at_coverage, logits, labels, coverage=actual)
        np.testing.assert_allclose(reached, risk, atol=1e-5)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_first_of_two_decisions_of_equal_cost_is_taken(order):
    """3 p0 + p1 = 2 p1, which float32 rounds: the realized cost of class 0 shows the decision."""
    p = np.array([[k, 3 * k, 40 - 4 * k] for k in range(1, 10)]) / 40
    costs = np.array([[3.0, 0.0], [1.0, 2.0], [0.0, 0.0]])[:, order]
    labels = np.zeros(len(p), int)
    actual = value_of(metrics.expected_cost, np.log(p), labels, costs=costs)
    assert actual == costs[0, 0]


def test_without_costs_the_top_label_is_decided_however_near_the_next_one():
    logits = np.float32([[0, 2e-7], [0, 5]])
    assert value_of(metrics.expected_cost, logits, np.array([1, 1])) == 0


def test_the_confident_are_counted():
    logits, labels = sample(2)
    confidence, hit = top_label(logits, labels)
    sure = confidence >= 0.8
    actual = value_of(metrics.confident_set, logits, labels, threshold=0.8)
    assert_same(actual, ConfidentSet(np.mean(sure), np.mean(hit[sure])))
    certain = value_of(metrics.confident_set, np.float32([[200, 0], [3, 0]]), [0, 0], threshold=1)
    assert certain == (0.5, 1)
