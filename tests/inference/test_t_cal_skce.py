"""Adaptive T-Cal and the kernel test: float64 references, all outcomes, laws, size and power."""

import itertools
import math

import jax
import numpy as np
import pytest

from calib_jax import inference

from .simulations import CONFIDENCE, HIT, golden, outcomes, simulated, softmax

KEY = jax.random.key(0)


def t_cal(confidence, hit):
    """Compute the statistic bin by bin, with its variance as a double sum over pairs."""
    confidence, n = np.float32(confidence).astype(float), hit.shape[-1]
    largest = np.full(hit.shape[:-1], -np.inf)
    for exponent in range(1, max(1, int(2 * math.log2(n / math.sqrt(math.log(n))))) + 1):
        bins = np.ceil(confidence * 2**exponent)
        value, variance = 0.0, 0.0
        for which in set(bins):
            rows = np.flatnonzero(bins == which)
            for i, j in itertools.permutations(rows, 2):
                value += (
                    (confidence[i] - hit[..., i]) * (confidence[j] - hit[..., j]) / (len(rows) - 1)
                )
                spread = [confidence[k] * (1 - confidence[k]) for k in (i, j)]
                variance += 2 * spread[0] * spread[1] / (len(rows) - 1) ** 2
        if variance > 1e-9:
            largest = np.maximum(largest, value / math.sqrt(variance))
    return largest


def skce(p, labels):
    """Compute the statistic pair by pair."""
    n, residual = len(p), np.eye(p.shape[1])[labels] - p
    distance = np.abs(p[:, None] - p[None]).sum(-1)
    nu = np.median([distance[i, j] for i, j in itertools.combinations(range(n), 2)])
    pairs = itertools.permutations(range(n), 2)
    total = sum(math.exp(-distance[i, j] / (2 * nu)) * residual[i] @ residual[j] for i, j in pairs)
    return total / (n * (n - 1))


def test_statistics_are_those_of_pairs():
    logits, labels, _ = simulated(np.random.default_rng(0), 40, 3, 1.5)
    p = softmax(logits.astype(float))
    hit = (p.argmax(-1) == labels).astype(float)
    run = inference.calibration_test
    actual = run("t_cal", logits, labels, key=KEY, num_resamples=20).statistic
    assert actual == pytest.approx(t_cal(p.max(-1), hit), rel=1e-4)
    actual = run("skce", logits, labels, key=KEY, num_resamples=20).statistic
    assert actual == pytest.approx(skce(p, labels), abs=1e-6)
    top = np.stack([p.max(-1), 1 - p.max(-1)], 1)
    actual = run("skce", logits, labels, key=KEY, num_resamples=20, kind="top_label").statistic
    assert actual == pytest.approx(skce(top, 1 - hit.astype(int)), abs=1e-6)


@pytest.mark.parametrize("model", ["a", "b"])
def test_draws_agree_with_all_outcomes(model):
    hits, probability = outcomes(CONFIDENCE[model])
    confidence = np.array(CONFIDENCE[model])
    p = np.stack([confidence, 1 - confidence], 1)
    # The kernel is a quadratic form of c - a, which is fast for 4,096 outcomes.
    distance = np.abs(p[:, None] - p[None]).sum(-1)
    kernel = np.exp(-distance / (2 * np.median(distance[np.triu_indices(12, 1)])))
    np.fill_diagonal(kernel, 0)
    residual = confidence - hits
    values = {
        "skce": 2 * np.einsum("oi,ij,oj->o", residual, kernel, residual) / (12 * 11),
        "t_cal": t_cal(confidence, hits),
    }
    if model == "b":
        del values["t_cal"]  # its confidence 0.75 is an edge of bins, which rounding may cross
    for name, all_values in values.items():
        value = all_values[int("".join(map(str, HIT[model])), 2)]
        exact = probability @ (all_values >= value - 1e-9)
        test = inference.calibration_test(name, *golden(model), key=KEY, num_resamples=20_000)
        assert test.statistic == pytest.approx(value, abs=1e-5)
        assert test.p_value == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))


@pytest.mark.parametrize("name", ["t_cal", "skce"])
def test_order_copies_and_absent_rows_change_nothing(name):
    random = np.random.default_rng(1)
    logits, labels, _ = simulated(random, 40, 3, 1.5)
    logits[10:20] = logits[:10]  # ties
    counts = random.integers(0, 4, 40)
    copies = random.permutation(np.repeat(np.arange(40), counts))
    drawn = {"key": KEY, "num_resamples": 50}
    whole = inference.calibration_test(name, logits[copies], labels[copies], **drawn)
    absent = np.where(counts[:, None] > 0, logits, np.nan)
    weighted = inference.calibration_test(name, absent, labels, counts, **drawn)
    np.testing.assert_allclose(weighted, whole, rtol=1e-5)


def test_bad_input():
    logits, labels = golden("a")
    run = inference.calibration_test
    assert np.isnan(run("t_cal", logits[:1], labels[:1], key=KEY)).all()
    assert np.isnan(run("skce", logits[:1], labels[:1], key=KEY)).all()
    certain = np.tile([[200.0, 0.0]], (20, 1)).astype(np.float32)
    assert np.isnan(run("t_cal", certain, np.zeros(20, int), key=KEY).p_value)
    with pytest.raises(TypeError, match="draws outcomes: give key"):
        run("t_cal", logits, labels)
    with pytest.raises(ValueError, match="kind must be one of"):
        run("skce", logits, labels, key=KEY, kind="top")
    with pytest.raises(ValueError, match="at most 5000 examples, got 5001"):
        run("skce", np.zeros((5001, 2)), np.zeros(5001, int), key=KEY)
    with pytest.raises(TypeError, match="takes no clusters: it needs independent examples"):
        run("skce", logits, labels, key=KEY, clusters=np.arange(12) // 2)


# Classes, rows, sets and the least power: many sets of the fast test, few of the one of all pairs.
RATES = [
    ("t_cal", {}, 2, 1000, 2000, 0.3),
    ("t_cal", {}, 10, 200, 2000, 0.3),
    ("skce", {}, 10, 200, 400, 0.06),
    ("skce", {"kind": "top_label"}, 10, 200, 400, 0.3),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "num_classes", "num_rows", "num_sets", "power"), RATES)
def test_size_and_power(name, options, num_classes, num_rows, num_sets, power, capsys):
    """Check that 5 % of calibrated sets are rejected, within three standard errors."""
    random, rates = np.random.default_rng(2), []
    for sharpness, sets in ((1.0, num_sets), (1.5, 200)):
        rejected = 0
        for trial in range(sets):
            logits, labels, _ = simulated(random, num_rows, num_classes, sharpness)
            drawn = {"key": jax.random.key(trial), "num_resamples": 99, **options}
            rejected += inference.calibration_test(name, logits, labels, **drawn).p_value <= 0.05
        rates.append(rejected / sets)
    with capsys.disabled():
        print(f"\n{name} {options} n={num_rows} K={num_classes}: size, power {rates}")
    assert abs(rates[0] - 0.05) < 3 * math.sqrt(0.05 * 0.95 / num_sets)
    assert rates[1] > power
