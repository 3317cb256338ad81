"""The guaranteed coverage: its choice of a threshold, its guarantee, and bad input."""

import math

import numpy as np
import pytest
import scipy.stats

from calib_jax import inference, metrics
from calib_jax.inference import decisions
from tests.metrics.reference import logits_of, top_label

from .simulations import simulated, softmax


def chosen_slowly(confidence, hit, num_classes, risk, level):
    """Test every threshold from the highest down, as the fallback procedure; return the lowest."""
    number = math.ceil((16 + math.log(num_classes - 1)) * 64)
    thresholds = [1 / (1 + math.exp(i / 64 - 16)) for i in range(number)] + [0.0]
    starts = [(1 / 8, 0.2), (1 / 4, 0.2), (1 / 2, 0.5)]
    lowest, available = math.nan, 0.0
    for threshold in thresholds:
        above = confidence > np.float32(threshold)
        while starts and np.mean(above) >= starts[0][0]:
            available += starts.pop(0)[1] * (1 - level)
        available += 0.1 * (1 - level) if threshold == 0 else 0
        tail = scipy.stats.binom.cdf(np.sum(~hit[above]), np.sum(above), risk)
        if available > 0 and tail <= available:
            lowest = np.float32(threshold)
        else:
            available = 0.0
    return lowest


@pytest.mark.parametrize(("num_classes", "risk"), [(2, 0.1), (5, 0.2)])
def test_the_threshold_is_the_lowest_accepted(num_classes, risk):
    random = np.random.default_rng(0)
    logits, labels, _ = simulated(random, 1000, num_classes)
    confidence, hit = top_label(logits, labels)
    actual = inference.guaranteed_coverage(logits, labels, risk=risk, level=0.8)
    slow = chosen_slowly(confidence, hit.astype(bool), num_classes, risk, 0.8)
    assert actual.threshold == slow
    above = confidence > slow
    np.testing.assert_allclose(actual[1:], (np.mean(above), np.mean(1 - hit[above])), rtol=1e-6)
    assert 0 < actual.coverage < float(metrics.coverage_at_risk(logits, labels, risk=risk))

    # Weight 0 is absence and weight k is k copies, in any order.
    order = random.permutation(1100)
    weights = np.concatenate([np.full(500, 2), np.ones(500), np.zeros(100)])[order]
    rows = np.concatenate([np.arange(1000), np.arange(100)])[order]
    copies = np.concatenate([np.arange(1000), np.arange(500)])
    weighted = inference.guaranteed_coverage(logits[rows], labels[rows], weights, risk=risk)
    assert weighted == inference.guaranteed_coverage(logits[copies], labels[copies], risk=risk)


@pytest.mark.parametrize("answered", [10**8, 3 * 10**9])
def test_tails_of_very_many_examples(answered):
    """Half of them are at most the mean, and .1 % at most 3.0902 deviations less."""
    deviation = math.sqrt(answered * 0.05 * 0.95)
    errors = np.array([0.05 * answered, 0.05 * answered - 3.0902 * deviation]).astype(int)
    tails = decisions._tails(errors, np.full(2, answered), 0.05)
    np.testing.assert_allclose(tails, [0.5, 0.001], rtol=2e-3)


@pytest.mark.slow
def test_the_error_rate_of_other_examples_is_guaranteed():
    """Check 300 sets: more than 90 % + 3 errors would be wrong with the plain coverage."""
    random, risk = np.random.default_rng(1), 0.1
    _, _, truth = simulated(random, 200_000, 2)
    true_confidence = np.sort(truth.max(axis=1))[::-1]
    true_risk = np.cumsum(1 - true_confidence) / np.arange(1, len(true_confidence) + 1)

    def risk_above(threshold):
        return true_risk[max(0, np.sum(true_confidence > threshold) - 1)]

    broken, plain, covered = 0, 0, 0.0
    for _ in range(300):
        logits, labels, p = simulated(random, 400, 2)
        actual = inference.guaranteed_coverage(logits, labels, risk=risk)
        covered += actual.coverage / 300
        broken += actual.coverage > 0 and risk_above(actual.threshold) > risk
        confidence = np.sort(p.max(axis=1))[::-1]
        wrong = (p.argmax(axis=1) != labels)[np.argsort(-p.max(axis=1))]
        admissible = np.flatnonzero(np.cumsum(wrong) <= risk * np.arange(1, 401))
        plain += len(admissible) > 0 and risk_above(confidence[admissible[-1]]) > risk
    assert broken / 300 <= 0.1
    assert plain / 300 > 0.3
    assert covered > 0.2


@pytest.mark.parametrize("dependent", [False, True])
def test_repeated_samples_of_a_question_are_one_cluster(dependent):
    """Check 200 sets of 300 questions of 5 samples, which are all right or all wrong."""
    random, risk, broken, covered = np.random.default_rng(2), 0.1, 0, 0.0
    for _ in range(200):
        confidence = np.repeat(random.uniform(0.8, 0.99, 300), 5 if dependent else 1)
        right = np.repeat(random.random(300) < 0.905 - 0.01, 5 if dependent else 1)
        logits, labels = logits_of(confidence), (~right).astype(int)
        ids = np.arange(len(right)) // 5 if dependent else None
        actual = inference.guaranteed_coverage(logits, labels, risk=risk, clusters=ids)
        broken += actual.coverage > 0
        right = np.where(confidence > 0.85, True, right)
        labels = (~right).astype(int)
        actual = inference.guaranteed_coverage(logits, labels, risk=risk, clusters=ids)
        covered += actual.coverage / 200
        if dependent:
            plain = inference.guaranteed_coverage(logits, labels, risk=risk)
            assert actual.coverage <= plain.coverage
    assert broken / 200 <= 0.1
    assert covered > 0.7


def test_all_right_all_wrong_and_too_few():
    right = logits_of(np.linspace(0.95, 0.55, 100), 3)
    actual = inference.guaranteed_coverage(right, np.zeros(100, int), risk=0.1)
    assert actual == (0.0, 1.0, 0.0)
    for labels, data in ((np.ones(100, int), right), (np.zeros(5, int), right[:5])):
        actual = inference.guaranteed_coverage(data, labels, risk=0.1)
        assert actual.coverage == 0
        assert math.isnan(actual.threshold)
        assert math.isnan(actual.risk)
    certain = logits_of(np.ones(100), 3)
    assert np.all(softmax(certain)[:, 0] == 1)
    assert inference.guaranteed_coverage(certain, np.zeros(100, int), risk=0.1).coverage == 1
