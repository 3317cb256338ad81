"""Decisions under costs: what they cost, whether that is what is stated, the best threshold."""

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics
from tests.metrics import value_of
from tests.metrics.reference import softmax

from .simulations import simulated

KEY = jax.random.key(0)
# Four classes, three decisions.
COSTS = ((0.0, 1.0, 4.0), (2.0, 0.0, 1.0), (5.0, 2.0, -1.0), (1.0, 1.5, 2.0))


def decisions(logits, labels, costs, abstain_cost):
    """Decide every example in a loop; return (decision, realized, stated, variance)."""
    matrix, rows = np.array(costs), []
    for p, label in zip(softmax(np.asarray(logits, np.float64)), labels, strict=True):
        expected = [
            sum(p[k] * row[d] for k, row in enumerate(matrix)) for d in range(matrix.shape[1])
        ]
        decision = int(np.argmin(expected))
        if abstain_cost is not None and abstain_cost < expected[decision]:
            rows.append((matrix.shape[1], abstain_cost, abstain_cost, 0.0))
            continue
        variance = sum(
            p[k] * (row[decision] - expected[decision]) ** 2 for k, row in enumerate(matrix)
        )
        rows.append((decision, matrix[label, decision], expected[decision], variance))
    return np.array(rows)


def data(seed=0):
    random = np.random.default_rng(seed)
    logits, labels, _ = simulated(random, 200, 4, 1.3)
    return logits, labels


@pytest.mark.parametrize("abstain_cost", [None, 0.4])
def test_costs_are_those_of_a_loop(abstain_cost):
    logits, labels = data()
    rows = decisions(logits, labels, COSTS, abstain_cost)
    assert set(rows[:, 0]) == set(range(3 + (abstain_cost is not None)))
    options = {"costs": COSTS, "abstain_cost": abstain_cost}
    actual = value_of(metrics.expected_cost, logits, labels, **options)
    np.testing.assert_allclose(actual, rows[:, 1].mean(), rtol=1e-5)
    actual = value_of(metrics.stated_cost, logits, labels, **options)
    np.testing.assert_allclose(actual, rows[:, 2].mean(), rtol=1e-5)

    by_decision = inference.decision_calibration(logits, labels, **options)
    assert set(by_decision) == {0, 1, 2}
    for decision, cost in by_decision.items():
        of_decision = rows[rows[:, 0] == decision]
        num = len(of_decision)
        gap = of_decision[:, 1] - of_decision[:, 2]
        z = gap.sum() / np.sqrt(of_decision[:, 3].sum())
        wanted = (num, of_decision[:, 2].mean(), of_decision[:, 1].mean(), gap.mean())
        np.testing.assert_allclose(cost[:4], wanted, rtol=1e-5, atol=1e-6)
        enough = of_decision[:, 3].sum() >= np.ptp(np.array(COSTS)[:, decision]) ** 2
        p_value = jax.scipy.special.erfc(abs(z) / 2**0.5) if enough else np.nan
        np.testing.assert_allclose(cost.p_value, p_value, 1e-4)
        spread = max(of_decision[:, 3].sum(), np.square(gap - gap.mean()).sum()) / num**2
        np.testing.assert_allclose(cost.high - cost.low, 2 * 1.6448536 * np.sqrt(spread), 1e-5)


def test_the_test_keeps_its_size_and_the_interval_covers():
    random, rejected, covered, num_tests = np.random.default_rng(0), 0, 0, 0
    for _ in range(200):
        logits, labels, truth = simulated(random, 200, 2)
        for decision, cost in inference.decision_calibration(logits, labels).items():
            num_tests += 1
            rejected += cost.p_value <= 0.05
            covered += cost.low <= 0 <= cost.high
            chosen = truth.argmax(axis=1) == decision
            assert cost.examples == chosen.sum()
    assert 0.02 <= rejected / num_tests <= 0.085
    assert covered / num_tests >= 0.86
    logits, labels, _ = simulated(random, 2000, 2, 1.5)
    for cost in inference.decision_calibration(logits, labels).values():
        assert cost.low > 0
        assert cost.p_value < 0.001


def test_weights_are_counts_and_clusters_of_one_are_examples():
    logits, labels = data()
    order = np.random.default_rng(0).permutation(300)
    weights = np.concatenate([np.full(100, 2), np.ones(100), np.zeros(100)])[order]
    rows = np.concatenate([np.arange(200), np.arange(100)])[order]
    copies = np.concatenate([np.arange(200), np.arange(100)])
    options = {"costs": COSTS}
    weighted = inference.decision_calibration(logits[rows], labels[rows], weights, **options)
    copied = inference.decision_calibration(logits[copies], labels[copies], **options)
    for decision, cost in copied.items():
        np.testing.assert_allclose(weighted[decision], cost, rtol=1e-5, atol=1e-7)

    ids = np.arange(200)
    alone = inference.decision_calibration(logits, labels, clusters=ids, **options)
    plain = inference.decision_calibration(logits, labels, **options)
    for decision, cost in plain.items():
        np.testing.assert_allclose(alone[decision][:4], cost[:4], rtol=1e-6)
        assert (alone[decision].high - alone[decision].low) <= cost.high - cost.low + 1e-9
    options = {"key": KEY, "abstain_cost": 0.4, "num_resamples": 100}
    thresholds = [
        inference.best_threshold(logits, labels, clusters=c, **options) for c in (None, ids)
    ]
    np.testing.assert_allclose(*thresholds, rtol=1e-6)
    shuffled = inference.best_threshold(logits[rows], labels[rows], weights, **options)
    copied = inference.best_threshold(logits[copies], labels[copies], **options)
    np.testing.assert_allclose(shuffled, copied, rtol=1e-5)
    few = inference.best_threshold(logits, labels, clusters=ids // 40, **options)
    assert np.isnan(few.low)


@pytest.mark.parametrize("abstain_cost", [None, 0.2])
def test_the_threshold_has_the_least_cost_of_all(abstain_cost):
    logits, labels, _ = simulated(np.random.default_rng(1), 150, 2)
    p = softmax(logits)
    costs = ((0.0, 1.0), (3.0, 0.5))
    score = p[:, 1] if abstain_cost is None else p.max(axis=1)

    def cost_at(threshold):
        total = 0.0
        for s, probabilities, label in zip(score, p, labels, strict=True):
            if abstain_cost is None:
                total += costs[label][int(s > threshold)]
            else:
                total += costs[label][probabilities.argmax()] if s > threshold else abstain_cost
        return total / len(labels)

    least = min(cost_at(threshold) for threshold in [0.0, *score])
    actual = inference.best_threshold(
        logits, labels, key=KEY, costs=costs, abstain_cost=abstain_cost, num_resamples=200
    )
    assert actual.cost == pytest.approx(least, abs=1e-6)
    assert cost_at(actual.threshold + 1e-6) == pytest.approx(least, abs=1e-6)
    assert actual.low <= actual.threshold <= actual.high


@pytest.mark.slow
def test_the_interval_contains_the_best_threshold():
    """Check 40 sets: answering pays where the probability of being right exceeds 0.9."""
    random, covered, width = np.random.default_rng(0), 0, 0.0
    best = 1 / (1 + np.exp(-1.5 * np.log(9)))  # of logits that are 1.5 times too large
    for number in range(40):
        logits, labels, _ = simulated(random, 600, 2, 1.5)
        actual = inference.best_threshold(
            logits, labels, key=jax.random.key(number), abstain_cost=0.1, num_resamples=200
        )
        covered += actual.low <= best <= actual.high
        width += (actual.high - actual.low) / 40
    assert covered >= 36
    assert width < 0.25


def test_rare_errors_have_no_p_value():
    """One error of 20 answers at .999 is no evidence of 1e-12; nor are 100 such decisions."""
    random, num_classes, each = np.random.default_rng(0), 100, 50
    predicted = np.repeat(np.arange(num_classes), each)
    logits = np.where(np.eye(num_classes)[predicted], np.log(0.999 / 0.001 * 99), 0)
    right = random.random(len(predicted)) < 0.999
    labels = np.where(right, predicted, (predicted + 1) % num_classes)
    assert np.sum(~right) > 0
    decisions = inference.decision_calibration(logits.astype(np.float32), labels)
    assert np.all(np.isnan([decision.p_value for decision in decisions.values()]))
    enough = inference.decision_calibration(
        np.tile(np.log([[0.9, 0.1]]), (20, 1)), np.ones(20, int)
    )
    assert enough[0].p_value < 1e-6  # 2 errors are expected of 20, and 20 seen
