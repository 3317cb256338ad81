"""Debiased squared errors of one model and of two: numbers, laws, size and coverage, bad input."""

import math

import numpy as np
import pytest
from scipy import stats

from calib_jax import inference, metrics
from calib_jax.inference.squared_error import binned, moments

from . import CONFIDENCE, HIT, golden, simulated, softmax


def pairs(confidence, hit, num_bins):
    """Return the debiased squared error as a sum over pairs of different examples of a bin."""
    residual = np.array(confidence) - hit
    index = np.ceil(np.round(np.array(confidence) * num_bins, 6))
    total = 0.0
    for b in np.unique(index):
        r = residual[index == b]
        products = [r[i] * r[j] for i in range(len(r)) for j in range(len(r)) if i != j]
        total += len(r) * np.mean(products) if products else 0
    return total / len(residual)


def sums(model):
    return moments([(1.0, binned(inference.Evaluation(*golden(model)), num_bins=5))])


def test_golden_numbers_of_one_model():
    for model, (value, variance, null) in {
        "a": (-0.025600, 0.016900, 0.001419),
        "b": (0.079100, 0.063012, 0.003234),
    }.items():
        error = inference.debiased_squared_error(*golden(model), num_bins=5)
        assert round(error.value, 6) == value
        assert error.value == pytest.approx(pairs(CONFIDENCE[model], HIT[model], 5), abs=1e-7)
        assert round(12 * sums(model).linear, 6) == variance
        assert round(sums(model).degenerate, 6) == null
        assert error.root == pytest.approx(math.sqrt(max(value, 0)), rel=1e-5)


def wilson(share, number, z):
    """Return both ends of the score interval of a share: the roots of a quadratic equation."""
    # (share - x)^2 = z^2 x (1 - x) / number
    return np.roots([1 + z**2 / number, -2 * share - z**2 / number, share**2])


def ends_by_formulas(confidence, hit, level):
    """Return the kind of the lower end of Sun et al. and both ends, bin by bin."""
    residual, n = confidence - hit, len(hit)
    index, linear = np.ceil(15 * confidence).astype(int), np.zeros(n)
    z_one, z = stats.norm.ppf(level), stats.norm.ppf((1 + level) / 2)
    squares, below, above = [], [], []
    for b in np.unique(index):
        inside = index == b
        c, r = confidence[inside], residual[inside]
        if len(r) < 2:
            continue
        linear[inside] = 2 * r * r.mean() - r.mean() ** 2
        squares.append(max(np.sum(r**2), np.sum(c * (1 - c))) / len(r))
        ends = np.mean(c) - wilson(np.mean(c - r), len(r), z)
        least = 0 if np.prod(ends) < 0 else min(ends**2)
        below.append(len(r) / n * max(0, r.mean() ** 2 - least))
        above.append(len(r) / n * (max(ends**2) - r.mean() ** 2))
    value, deviation = max(0, pairs(confidence, hit, 15)), np.std(linear) / np.sqrt(n)
    kinds = {
        "zero": (value < z_one * np.sqrt(2 * np.sum(np.square(squares))) / n, 0),
        "normal": (value >= 2 * z * deviation, value - z * deviation),
        "half": (value >= 2 * z_one * deviation, value / 2),
        "one-sided": (True, max(0, value - z_one * deviation)),
    }
    kind = next(name for name, (holds, _) in kinds.items() if holds)
    low = min(kinds[kind][1], max(0, value - np.linalg.norm(below)))
    largest = max(squares) / n
    of_sun = z * deviation + (1 + z**2) * largest
    return kind, low, min(1, value + max(of_sun, np.linalg.norm(above) + largest))


def test_both_ends_are_those_of_their_formulas():
    random, kinds = np.random.default_rng(0), set()
    for gap in (0, 0.08, 0.1, 0.12, 0.14, 0.16, 0.2, 0.5):
        confidence = np.float32(random.uniform(0.5, 1, 300)).astype(float)
        hit = random.random(300) < confidence - gap
        kind, *ends = ends_by_formulas(confidence, hit, 0.8)
        error = inference.debiased_squared_error(metrics.Stated(confidence, hit), level=0.8)
        np.testing.assert_allclose(error[1:3], ends, rtol=1e-4, err_msg=kind)
        kinds.add(kind)
    assert len(kinds) == 4


def test_golden_numbers_of_two_models():
    (a, labels_a), (b, labels_b) = golden("a"), golden("b")
    # The two predict different classes where only one is right.
    b = np.where((labels_a == labels_b)[:, None], b, b[:, ::-1])
    change = inference.compare_calibration(a, b, labels_a, num_bins=5)
    # Bins with one example, (.4, .6] of a, are left out of the products of both models.
    of_pair = moments(
        [(s, binned(inference.Evaluation(z, labels_a), num_bins=5)) for s, z in ((1, b), (-1, a))]
    )
    assert of_pair.degenerate == pytest.approx(variance_of_calibrated(5), rel=1e-6)
    assert round(of_pair.linear, 6) == 0.003972
    spared = of_pair.linear - 0.012 * of_pair.observed + of_pair.scarcity
    deviation = math.sqrt(max(spared, of_pair.degenerate))
    assert round(change.value, 6) == 0.104700
    t = stats.t(1.2 / (1 - 0.012))  # n / 10 / (1 - n / 1000) degrees of freedom
    assert change.p_value == pytest.approx(2 * t.sf(change.value / deviation), rel=1e-4)
    assert (change.high - change.value) / t.isf(0.05) == pytest.approx(deviation, rel=1e-3)
    assert change.low == pytest.approx(2 * change.value - change.high)
    assert change.error_a == inference.debiased_squared_error(a, labels_a, num_bins=5)


def variance_of_calibrated(num_bins):
    """Return the variance of the difference of both models' errors if both are 0, by loops."""
    residual = {m: np.array(CONFIDENCE[m]) - HIT[m] for m in "ab"}
    bins = {m: np.ceil(np.round(np.array(CONFIDENCE[m]) * num_bins, 6)) for m in "ab"}
    total = 0.0
    for first in "ab":
        for second in "ab":
            for b in np.unique(bins[first]):
                for c in np.unique(bins[second]):
                    in_b, in_c = bins[first] == b, bins[second] == c
                    if min(in_b.sum(), in_c.sum()) < 2:
                        continue
                    both = in_b & in_c
                    shared = np.sum(residual[first][both] * residual[second][both])
                    if first == second and b == c:
                        spread = np.array(CONFIDENCE[first])[both]
                        shared = max(shared, np.sum(spread * (1 - spread)))
                    sign = 1 if first == second else -1
                    total += sign * shared**2 / (in_b.sum() * in_c.sum())
    return 2 * total / len(residual["a"]) ** 2


def test_equal_models_do_not_differ():
    a, labels, _ = simulated(np.random.default_rng(1), 180, 3)
    same = inference.compare_calibration(a, a, labels)
    assert same.value == 0
    assert same.p_value == 1
    certain = np.tile(np.float32([[100.0, 0.0]]), (60, 1))
    same = inference.compare_calibration(certain, 2 * certain, np.zeros(60, int))
    assert same[:4] == (0, 0, 0, 1)


def of_different_sharpness(random, num_rows):
    """Return two calibrated binary models: b sees the shared logit, a its mean over a state."""
    state = np.array([-1.5, -0.5, 0.5, 1.5])
    shared = 0.3 * random.standard_normal((num_rows, 1))
    every = 1 / (1 + np.exp(-(shared + 4 * state[None])))
    right = every[np.arange(num_rows), random.integers(0, 4, num_rows)]
    labels = (random.random(num_rows) < right).astype(int)
    return [
        np.stack([0 * p, np.log(p / (1 - p))], 1).astype(np.float32) for p in (every.mean(1), right)
    ] + [labels]


def squared_error_of_truth(sharpness, num_classes):
    """Return the squared error of the binned truth, from 100,000 true probabilities."""
    logits, _, truth = simulated(np.random.default_rng(5), 100_000, num_classes, sharpness)
    p = softmax(logits.astype(float))
    gap = p.max(-1) - truth[np.arange(len(p)), p.argmax(-1)]
    index = np.ceil(15 * p.max(-1))
    parts = (gap[index == b] for b in np.unique(index))
    return sum(part.sum() ** 2 / len(part) for part in parts) / len(p)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [200, 1000])
def test_size_and_coverage(num_rows):
    """Check 400 sets: size at 5 %, and coverage of the 90 % interval, within three errors."""
    random = np.random.default_rng(4)
    rejected = 0
    settings = [(num_classes, beta) for num_classes in (2, 10) for beta in (1.0, 1.5)]
    covered = dict.fromkeys(settings, 0)
    truth = {setting: squared_error_of_truth(setting[1], setting[0]) for setting in settings}
    for _ in range(400):
        sharp = inference.compare_calibration(*of_different_sharpness(random, num_rows))
        rejected += sharp.p_value <= 0.05
        for num_classes in (2, 10):
            logits, labels, _ = simulated(random, num_rows, num_classes)
            change = inference.compare_calibration(logits, np.float32(1.5) * logits, labels)
            for beta, error in ((1.0, change.error_a), (1.5, change.error_b)):
                high = truth[num_classes, beta] <= error.high
                covered[num_classes, beta] += high and error.low <= truth[num_classes, beta] + 1e-5
    assert rejected <= 400 * 0.083  # 5 % and three standard errors
    assert min(covered.values()) >= 400 * 0.835


def simulated_pair(random, num_rows):
    """Return two overconfident models of 100 classes with equal errors: each sees a part."""
    of_a, of_b = 2 * random.standard_normal((2, num_rows, 4, 100))
    a, b = (softmax(part) for part in (of_a[:, :1] + of_b, of_a + of_b[:, :1]))
    right = a[:, 0].cumsum(-1) < random.random((num_rows, 1))
    return [np.float32(1.5 * np.log(p.mean(1))) for p in (a, b)] + [np.minimum(right.sum(-1), 99)]


@pytest.mark.slow
def test_the_test_of_two_models_holds_its_size_on_few_rows():
    """Check 120 sets, where the normal test rejected 11 to 14 % at 5 %."""
    random, rejected, covered = np.random.default_rng(4), 0, 0
    for _ in range(120):
        change = inference.compare_calibration(*simulated_pair(random, 100))
        rejected += change.p_value <= 0.05
        covered += change.low <= 0 <= change.high
    assert rejected <= 120 * 0.075
    assert covered >= 120 * 0.865
