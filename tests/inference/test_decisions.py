"""Decisions under costs and at a guaranteed coverage: values, thresholds, guarantees."""

import math

import jax
import numpy as np
import pytest
import scipy.stats

from calib_jax import inference, metrics
from calib_jax.inference import decisions
from tests.metrics import value_of
from tests.metrics.reference import logits_of, softmax, top_label

from . import simulated

KEY = jax.random.key(0)
# Four classes, three decisions.
COSTS = ((0.0, 1.0, 4.0), (2.0, 0.0, 1.0), (5.0, 2.0, -1.0), (1.0, 1.5, 2.0))


def decided(logits, labels, costs, abstain_cost):
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
    rows = decided(logits, labels, COSTS, abstain_cost)
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


def interval_slowly(score, above, below, cluster):
    """Return the interval of the best threshold, whose noise flips the signs of clusters' costs."""
    thresholds = np.append(0, np.unique(score))
    costs = np.where(score[:, None] > thresholds, above[:, None], below[:, None])
    mean, members = costs.mean(0), cluster == np.arange(cluster.max() + 1)[:, None]
    signs = np.random.default_rng(0).choice([-1, 1], (4000, len(members)))
    draws = signs @ (members @ (costs - mean)) / len(score)
    reach = np.quantile(draws - draws.min(1, keepdims=True), 0.9, axis=0)
    kept = np.flatnonzero(mean - mean.min() <= reach)
    return thresholds[[kept[0], min(kept[-1] + 1, len(mean) - 1)]]


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
    matrix, answer = np.array(costs), 1 if abstain_cost is None else p.argmax(axis=1)
    above = matrix[labels, answer]
    below = matrix[labels, 0] if abstain_cost is None else np.full(150, abstain_cost)
    for cluster in (np.arange(150), np.arange(150) // 3):
        options = {"costs": costs, "abstain_cost": abstain_cost, "clusters": cluster}
        actual = inference.best_threshold(logits, labels, key=KEY, num_resamples=20_000, **options)
        assert actual.cost == pytest.approx(least, abs=1e-6)
        assert cost_at(actual.threshold + 1e-6) == pytest.approx(least, abs=1e-6)
        assert actual.low <= actual.threshold <= actual.high
        np.testing.assert_allclose(
            actual[1:3], interval_slowly(score, above, below, cluster), atol=0.01
        )


@pytest.mark.slow
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


def test_the_lowest_of_many_scores_is_a_threshold():
    logits = np.stack([np.linspace(1, 3, 250), np.zeros(250)], axis=1).astype(np.float32)
    labels = np.arange(250) < 1  # only the answer of the lowest score is wrong
    options = {"key": KEY, "abstain_cost": 0.1, "num_resamples": 20}
    actual = inference.best_threshold(logits, labels.astype(int), **options)
    assert actual.threshold == pytest.approx(1 / (1 + np.exp(-1)))


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
    decided = inference.decision_calibration(logits.astype(np.float32), labels)
    assert np.all(np.isnan([decision.p_value for decision in decided.values()]))
    enough = inference.decision_calibration(
        np.tile(np.log([[0.9, 0.1]]), (20, 1)), np.ones(20, int)
    )
    assert enough[0].p_value < 1e-6  # 2 errors are expected of 20, and 20 seen
    few = np.tile(np.log([[0.6, 0.4]]), (9, 1)), np.ones(9, int)  # 9 show too little
    assert np.isnan(inference.decision_calibration(*few)[0][4:]).all()
    assert np.isnan(inference.best_threshold(*few, key=KEY, abstain_cost=0.4)[1:3]).all()


def tail_of(wrong, cluster, size, risk):
    """Return the p-value of a risk: exact, or the bound of Hoeffding and Bentkus for clusters."""
    if not len(wrong):
        return 1
    if cluster is None:
        return scipy.stats.binom.cdf(np.sum(wrong), len(wrong), risk)
    number = len(np.unique(cluster))
    total = (np.sum(wrong) + risk * (size * number - len(wrong))) / size
    mean = min(total / number, risk)
    gain = mean * math.log(mean / risk) + (1 - mean) * math.log((1 - mean) / (1 - risk))
    bentkus = math.e * scipy.stats.binom.cdf(math.ceil(total - 1e-9), number, risk)
    return min(math.exp(-number * gain), bentkus)


def chosen_slowly(confidence, hit, num_classes, risk, level, cluster):
    """Test every threshold from the highest down, as the fallback procedure; return the lowest."""
    number = math.ceil((16 + math.log(num_classes - 1)) * 64)
    thresholds = [1 / (1 + math.exp(i / 64 - 16)) for i in range(number)] + [0.0]
    starts = [(1 / 8, 0.2), (1 / 4, 0.2), (1 / 2, 0.5)]
    lowest, available = math.nan, 0.0
    size = None if cluster is None else np.max(np.bincount(cluster))
    for threshold in thresholds:
        above = confidence > np.float32(threshold)
        while starts and np.mean(above) >= starts[0][0]:
            available += starts.pop(0)[1] * (1 - level)
        available += 0.1 * (1 - level) if threshold == 0 else 0
        tail = tail_of(~hit[above], None if cluster is None else cluster[above], size, risk)
        if available > 0 and tail <= available:
            lowest = np.float32(threshold)
        else:
            available = 0.0
    return lowest


@pytest.mark.parametrize(
    ("num_classes", "risk", "grouped"), [(2, 0.1, False), (5, 0.2, False), (2, 0.2, True)]
)
def test_the_threshold_is_the_lowest_accepted(num_classes, risk, grouped):
    random = np.random.default_rng(0)
    logits, labels, _ = simulated(random, 1000, num_classes)
    confidence, hit = top_label(logits, labels)
    cluster = np.arange(1000) % 700 if grouped else None  # of one or two examples
    options = {"risk": risk, "level": 0.8, "clusters": cluster}
    actual = inference.guaranteed_coverage(logits, labels, **options)
    slow = chosen_slowly(confidence, hit.astype(bool), num_classes, risk, 0.8, cluster)
    assert actual.threshold == slow
    above = confidence > slow
    np.testing.assert_allclose(actual[1:], (np.mean(above), np.mean(1 - hit[above])), rtol=1e-6)
    assert 0 < actual.coverage < float(metrics.coverage_at_risk(logits, labels, risk=risk))

    # Weight 0 is absence and weight k is k copies, in any order.
    order = random.permutation(1000)
    weights = np.repeat([2, 1, 0], [400, 200, 400])[order]
    copies = np.concatenate([np.arange(600), np.arange(400)])
    rows = copies[order]
    weighted = inference.guaranteed_coverage(logits[rows], labels[rows], weights, risk=risk)
    assert weighted == inference.guaranteed_coverage(logits[copies], labels[copies], risk=risk)


@pytest.mark.parametrize("answered", [10**8, 3 * 10**9])
def test_tails_of_very_many_examples(answered):
    """Half of them are at most the mean, and .1 % at most 3.0902 deviations less."""
    deviation = math.sqrt(answered * 0.05 * 0.95)
    errors = np.array([0.05 * answered, 0.05 * answered - 3.0902 * deviation]).astype(int)
    tails = decisions._tails(errors, np.full(2, answered), 0.05)
    np.testing.assert_allclose(tails, [0.5, 0.001], rtol=2e-3)


@pytest.mark.parametrize(("num_clusters", "coverage"), [(21, 0), (24, 1)])
def test_clusters_that_are_all_right_have_the_bound_of_hoeffding(num_clusters, coverage):
    """.9^22 is the first power of .9 below .1; the bound of Bentkus is e times as large."""
    ids = np.repeat(np.arange(num_clusters), 2)
    data = logits_of(np.full(len(ids), 0.9)), np.zeros(len(ids), int)
    actual = inference.guaranteed_coverage(*data, risk=0.1, clusters=ids)
    assert actual.coverage == coverage


@pytest.mark.slow
def test_repeated_samples_of_a_question_are_one_cluster():
    """Check 100 sets of 300 questions of 5 samples, which are all right or all wrong."""
    random, risk, broken, covered = np.random.default_rng(2), 0.1, 0, 0.0
    for _ in range(100):
        confidence = np.repeat(random.uniform(0.8, 0.99, 300), 5)
        right = np.repeat(random.random(300) < 0.905 - 0.01, 5)
        logits, labels = logits_of(confidence), (~right).astype(int)
        ids = np.arange(1500) // 5
        actual = inference.guaranteed_coverage(logits, labels, risk=risk, clusters=ids)
        broken += actual.coverage > 0
        right = np.where(confidence > 0.85, True, right)
        labels = (~right).astype(int)
        actual = inference.guaranteed_coverage(logits, labels, risk=risk, clusters=ids)
        covered += actual.coverage / 100
        plain = inference.guaranteed_coverage(logits, labels, risk=risk)
        assert actual.coverage <= plain.coverage
    assert broken / 100 <= 0.1
    assert covered > 0.7


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
