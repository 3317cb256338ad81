"""Decisions under costs: what they cost, whether that is what is stated, the best threshold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import inference, metrics
from tests.metrics.laws import assert_laws, value_of
from tests.metrics.reference import logits_of, sample, softmax

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


def test_without_costs_they_are_errors():
    logits, labels = sample()
    error, confidence = (
        value_of(m, logits, labels) for m in (metrics.error, metrics.mean_confidence)
    )
    np.testing.assert_allclose(value_of(metrics.expected_cost, logits, labels), error, rtol=1e-6)
    np.testing.assert_allclose(value_of(metrics.stated_cost, logits, labels), 1 - confidence, 1e-5)


def test_a_matrix_may_be_an_array():
    for matrix in (np.array(COSTS), jnp.array(COSTS)):
        assert metrics.expected_cost.with_options(costs=matrix) == metrics.named(
            "expected_cost", costs=COSTS
        )


def test_a_calibrator_changes_the_cost_and_not_the_errors():
    """Both are estimated and compared on the same resamples."""
    logits, labels, _ = simulated(np.random.default_rng(0), 3000, 4, 2.0)
    cost = metrics.named("expected_cost", abstain_cost=0.3)
    change = inference.paired_bootstrap(
        cost, logits, logits / 2, labels, key=KEY, num_resamples=100
    )
    assert change.value < 0
    assert change.p_value < 0.05
    stated = float(metrics.stated_cost(logits / 2, labels, abstain_cost=0.3))
    assert stated == pytest.approx(float(cost(logits / 2, labels)), abs=0.02)
    assert float(metrics.stated_cost(logits, labels, abstain_cost=0.3)) < stated - 0.03


@pytest.mark.parametrize("metric", [metrics.expected_cost, metrics.stated_cost])
def test_laws(metric):
    logits, labels = sample(3)
    num_classes = logits.shape[-1]
    costs = tuple((0.0, 1.0 + k) for k in range(num_classes))
    assert_laws(metric, logits, labels, costs=costs, abstain_cost=0.9)


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
def test_clusters_of_equal_examples_have_wider_intervals():
    """A set of 40,000 that is 200 examples, each 200 times: the noise is that of 200."""
    logits, labels, _ = simulated(np.random.default_rng(2), 200, 2, 1.5)
    options = {"key": KEY, "abstain_cost": 0.1}
    alone = inference.best_threshold(logits, labels, **options)
    many, of_many = np.repeat(logits, 200, axis=0), np.repeat(labels, 200)
    together = inference.best_threshold(many, of_many, clusters=np.arange(40000) // 200, **options)
    apart = inference.best_threshold(many, of_many, **options)
    assert together.cost == pytest.approx(alone.cost)
    assert together.high - together.low == pytest.approx(alone.high - alone.low, abs=0.05)
    assert apart.high - apart.low < 0.5 * (alone.high - alone.low)


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


def test_bad_input_is_refused():
    logits, labels = logits_of([0.9, 0.8], 3), jnp.array([0, 1])
    wrong_shape = "costs must have a row for each of the 3 classes .* got the shape"
    for function in (
        metrics.expected_cost,
        inference.decision_calibration,
        lambda *data, **options: inference.best_threshold(*data, key=KEY, **options),
    ):
        for costs in (np.zeros((2, 3)), np.zeros(3), np.zeros((3, 0))):
            with pytest.raises(ValueError, match=wrong_shape):
                function(logits, labels, costs=costs)
        with pytest.raises(ValueError, match="costs must be finite"):
            function(logits, labels, costs=np.full((3, 3), np.inf))
        with pytest.raises(ValueError, match="abstain_cost must be a finite number"):
            function(logits, labels, abstain_cost=float("nan"))
    with pytest.raises(ValueError, match="needs two classes, got 3"):
        inference.best_threshold(logits, labels, key=KEY)
    with pytest.raises(ValueError, match="needs one decision for each of the 3 classes"):
        inference.best_threshold(logits, labels, key=KEY, costs=np.zeros((3, 2)), abstain_cost=0.1)


@pytest.mark.slow
def test_default_costs_decide_for_the_top_label():
    """Sums in float32 round, which must not choose among equal costs."""
    logits = np.round(2 * np.random.default_rng(0).standard_normal((3000, 10))).astype(np.float32)
    labels = logits.argmax(axis=1)
    assert metrics.error(logits, labels) == 0
    assert metrics.expected_cost(logits, labels) == 0
    near = 0.01 * np.random.default_rng(1).standard_normal((2000, 1000)).astype(np.float32)
    labels = near.argmax(axis=1)
    assert metrics.expected_cost(near, labels) == metrics.error(near, labels)
    sure = metrics.named("expected_cost", abstain_cost=0.1)
    np.testing.assert_allclose(sure(near, labels), 0.1, rtol=1e-6)


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


def test_stated_confidences_have_no_decisions_of_classes():
    stated = metrics.Stated(np.linspace(0.5, 0.9, 30), np.arange(30) % 2)
    for name, function in {
        "decision_calibration": inference.decision_calibration,
        "best_threshold": lambda data: inference.best_threshold(data, key=KEY, abstain_cost=0.3),
        "class_errors": lambda data: inference.class_errors(data, key=KEY),
    }.items():
        with pytest.raises(TypeError, match=f"{name} needs logits of classes"):
            function(stated)


@pytest.mark.parametrize("large", [1e3, 1e9])
def test_a_large_cost_does_not_make_other_decisions_equal(large):
    random = np.random.default_rng(0)
    logits = random.normal(size=(500, 3)).astype(np.float32)
    labels = random.integers(3, size=500)
    costs = np.concatenate([np.full((3, 1), large), 1 - np.eye(3)], axis=1)
    found = metrics.expected_cost(logits, labels, costs=costs)
    assert float(found) == pytest.approx(np.mean(logits.argmax(axis=1) != labels), abs=1e-6)
    with pytest.raises(ValueError, match="costs must be finite in float32, got NaN or larger"):
        metrics.expected_cost(logits, labels, costs=costs * 1e38)
