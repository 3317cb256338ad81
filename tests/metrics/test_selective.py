"""Selective prediction, against a curve that is walked example by example."""

import itertools
import math

import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.metrics.selective import ConfidentSet
from tests.selection import first_case

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
    actual = value_of(metrics.aurc, logits, labels)
    np.testing.assert_allclose(actual, area(grouped), atol=2e-6)

    errors = sum(wrong for _, wrong in grouped)
    perfect = [(len(labels) - errors, 0), (errors, errors)]
    actual = value_of(metrics.excess_aurc, logits, labels)
    np.testing.assert_allclose(actual, area(grouped) - area(perfect), atol=4e-6)


@first_case
@pytest.mark.parametrize("rows", [300, 1000, 3000])
def test_areas_of_equal_scores_have_no_rounding_errors(rows):
    """A program that divides before it subtracts gives an AUROC of 0.49994 for 3,000 rows."""
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


def test_a_share_is_answered():
    logits, labels = sample(1)
    grouped = groups(logits, labels)
    for coverage in (0.1, 0.333, 0.9, 1.0):
        answered = coverage * len(labels)
        actual = value_of(metrics.selective_accuracy, logits, labels, coverage=coverage)
        risk = errors_at(answered, grouped) / answered
        np.testing.assert_allclose(actual, 1 - risk, rtol=1e-5)
        actual = value_of(metrics.risk_at_coverage, logits, labels, coverage=coverage)
        np.testing.assert_allclose(actual, risk, rtol=1e-5, atol=1e-7)


GOLDEN_CONFIDENCE = [.55, .62, .68, .71, .77, .83, .86, .90, .93, .96, .97, .99]  # fmt: skip
GOLDEN_HIT = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1])


def test_the_generalised_area_is_the_recorded_number():
    actual = value_of(metrics.augrc, logits_of(GOLDEN_CONFIDENCE), 1 - GOLDEN_HIT)
    np.testing.assert_allclose(actual, 0.100694, atol=5e-7)


def test_the_area_over_samples_is_the_recorded_number():
    actual = value_of(
        metrics.aurc, logits_of(GOLDEN_CONFIDENCE), 1 - GOLDEN_HIT, estimator="sample"
    )
    np.testing.assert_allclose(actual, 0.162873, atol=5e-7)


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
        actual = value_of(metrics.aurc, logits_of(confidence), wrong, estimator=estimator)
        wanted = np.mean([each[estimator] for each in of_orders])
        np.testing.assert_allclose(actual, wanted, rtol=3e-6)


@pytest.mark.slow
def test_the_estimators_agree_on_many_examples():
    """Sums of a hundred thousand terms in float64; SELE is a lower bound."""
    random = np.random.default_rng(0)
    n = 100_000
    wrong = random.random(n) < np.linspace(0.05, 0.5, n)
    rows = metrics.aurc.stat(logits_of([0.9]), np.array([0]))
    columns = {"score": np.linspace(1, 0.5, n), "hit": 1 - wrong, "weight": np.ones(n)}
    rows = type(rows)({name: column.astype(np.float32) for name, column in columns.items()})
    rank = np.arange(1, n + 1)
    harmonic = np.cumsum(1 / rank)
    weights = {
        "sample": harmonic[-1] - harmonic + 1 / rank,
        "population": np.log((n + 1) / rank),
        "sele": (n + 1 - rank) / n,
    }
    actual = {name: float(metrics.aurc.value(rows, estimator=name)) for name in weights}
    for name, weight in weights.items():
        np.testing.assert_allclose(actual[name], np.mean(weight * wrong), rtol=3e-6)
    np.testing.assert_allclose(actual["population"], actual["sample"], atol=5 / n)
    np.testing.assert_allclose(metrics.aurc.value(rows), actual["sample"], atol=5 / n)
    assert actual["sele"] < actual["sample"]


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
    assert_laws(metrics.confidence_auroc, logits, labels)


def test_the_definitions_of_torch_uncertainty():
    """Its trapezoids and its coverage, in NumPy, on examples without equal confidences."""
    wrong, n = 1 - GOLDEN_HIT[::-1], 12
    share = np.arange(1, n + 1) / n
    risks = np.cumsum(wrong) / np.arange(1, n + 1)
    data = logits_of(GOLDEN_CONFIDENCE), 1 - GOLDEN_HIT
    sample_area = value_of(metrics.aurc, *data, estimator="sample")
    of_trapezoids = np.trapezoid(risks, share) / (1 - 1 / n)
    np.testing.assert_allclose(
        (n * sample_area - (risks[0] + risks[-1]) / 2) / (n - 1), of_trapezoids, rtol=1e-6
    )
    general = np.trapezoid(risks * share, share) / (1 - 1 / n)
    area = value_of(metrics.augrc, *data)
    np.testing.assert_allclose((area - wrong[0] / (2 * n**2)) / (1 - 1 / n), general, rtol=1e-6)
    for risk in (0.0, 0.1, 0.15, 0.2, 0.25, 1.0):
        actual = value_of(metrics.coverage_at_risk, *data, risk=risk)
        of_examples = max((k for k in range(1, n + 1) if risks[k - 1] <= risk), default=0)
        assert int(np.floor(actual * n + 1e-4)) == of_examples


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
    actual = value_of(metrics.augrc, logits, labels)
    rank = np.array(
        [np.sum(confidence > c) + (np.sum(confidence == c) + 1) / 2 for c in confidence]
    )
    by_ranks = np.sum((1 - hit) * (n - rank + 0.5)) / n**2
    np.testing.assert_allclose(actual, by_ranks, rtol=1e-5)
    accuracy = hit.mean()
    by_auroc = (1 - auroc_of_hits(confidence, hit)) * accuracy * (1 - accuracy)
    np.testing.assert_allclose(actual, by_auroc + (1 - accuracy) ** 2 / 2, rtol=1e-5)


@pytest.mark.parametrize(("coverage", "errors"), [(0.25, 0), (0.5, 1), (0.75, 2), (1.0, 3)])
def test_the_risk_is_the_mean_loss_of_the_most_confident(coverage, errors):
    options = {"coverage": coverage}
    actual = value_of(
        metrics.risk_at_coverage, logits_of(GOLDEN_CONFIDENCE), 1 - GOLDEN_HIT, **options
    )
    np.testing.assert_allclose(actual, errors / (12 * coverage), rtol=1e-6)


@pytest.mark.parametrize("risk", [0.0, 0.05, 0.2, 0.3, 0.5])
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


def test_the_confident_are_counted():
    logits, labels = sample(2)
    confidence, hit = top_label(logits, labels)
    sure = confidence >= 0.8
    actual = value_of(metrics.confident_set, logits, labels, threshold=0.8)
    assert_same(actual, ConfidentSet(np.mean(sure), np.mean(hit[sure])))


def test_nobody_is_confident():
    logits, labels = sample(2)
    actual = value_of(metrics.confident_set, logits, labels)
    assert actual.share == 0
    assert np.isnan(actual.accuracy)


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (metrics.aurc, {}),
        (metrics.aurc, {"estimator": "sample"}),
        (metrics.aurc, {"estimator": "population"}),
        (metrics.aurc, {"estimator": "sele"}),
        (metrics.coverage_at_risk, {"risk": 0.3}),
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
    covered = value_of(metrics.coverage_at_risk, RANKS, wrong.astype(int), risk=0.0)
    np.testing.assert_allclose(covered, np.mean(~wrong), atol=1e-6)
    actual = [value_of(metrics.named(name), RANKS, wrong.astype(int)) for name in several]
    np.testing.assert_allclose(actual, wanted, atol=1e-6)


def test_equal_confidence_makes_no_difference_between_examples():
    """Confidences of exactly 1 are the rule on a training set, and have no order."""
    logits = logits_of(np.ones(40), 3)
    assert np.all(softmax(logits)[:, 0] == 1)
    labels = (np.arange(40) < 10).astype(int)
    for values in (labels, labels[::-1]):
        np.testing.assert_allclose(value_of(metrics.aurc, logits, values), 0.25, rtol=1e-6)
        actual = value_of(metrics.selective_accuracy, logits, values, coverage=0.3)
        np.testing.assert_allclose(actual, 0.75, rtol=1e-6)


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
    with pytest.raises(ValueError, match="risk must lie in"):
        value_of(metrics.coverage_at_risk, logits, labels, risk=5)
    with pytest.raises(ValueError, match="estimator must be one of 'curve'"):
        value_of(metrics.aurc, logits, labels, estimator="mean")
