"""Tests of calibration by name: their numbers, their laws, their size and power, bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from calib_jax import inference, metrics
from calib_jax.inference.calibration import _survival_of_range

from .simulations import CONFIDENCE, HIT, golden, outcomes, simulated, softmax
from .test_compare_calibration import pairs

KEY = jax.random.key(0)
ASYMPTOTIC = ("cox", "kuiper", "spiegelhalter", "temperature")
DRAWN = ("ece", "squared_error")


def run(name, *data, num_resamples=100):
    options = {"key": KEY, "num_resamples": num_resamples} if name not in ASYMPTOTIC else {}
    return inference.calibration_test(name, *data, **options)


def test_spiegelhalter_is_negative_for_an_overconfident_model():
    """Unlike the usual Z, as its docstring states."""
    logits = np.tile(np.float32([2.0, 0.0]), (100, 1))  # a confidence of 88 %
    labels = (np.arange(100) < 40).astype(int)
    confidence, hit = 1 / (1 + np.exp(-2.0)), labels == 0
    usual = np.sum((hit - confidence) * (1 - 2 * confidence))
    assert usual > 0 > run("spiegelhalter", logits, labels).statistic


def test_golden_numbers():
    data = golden("a")
    kuiper = inference.calibration_test("kuiper", *data)
    assert round(kuiper.statistic, 6) == 0.108333
    assert round(kuiper.p_value, 6) == 0.917352
    assert round(inference.calibration_test("spiegelhalter", *data).statistic, 6) == -1.090315


@pytest.mark.parametrize(("x", "survival"), [(1.5, 0.512941), (2, 0.181494), (2.5, 0.049673)])
def test_range_of_a_brownian_motion(x, survival):
    assert round(_survival_of_range(x), 6) == survival


@pytest.mark.parametrize("x", [0.3, 0.5, 0.7, 1.0, 3.0])
def test_both_series_of_the_range_agree(x):
    """Compare with the series that converges for small x."""
    h = np.arange(60) + 0.5
    terms = (8 / x**2 + 2 / (h * np.pi) ** 2) * np.exp(-2 * (h * np.pi / x) ** 2)
    assert _survival_of_range(x) == pytest.approx(1 - terms.sum(), abs=1e-6)


@pytest.mark.parametrize("model", ["a", "b"])
def test_draws_agree_with_all_outcomes(model):
    hits, probability = outcomes(CONFIDENCE[model])
    values = np.array([pairs(CONFIDENCE[model], hit, 5) for hit in hits])
    value = pairs(CONFIDENCE[model], HIT[model], 5)
    exact = probability @ (values >= value - 1e-9)
    test = inference.calibration_test(
        "squared_error", *golden(model), key=KEY, num_resamples=20_000, num_bins=5
    )
    assert test.statistic == pytest.approx(value, abs=1e-7)
    assert test.p_value == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000))


def test_a_test_of_a_metric_is_that_of_its_bound():
    data = golden("a")
    for name in ("ece", "adaptive_ece", "classwise_ece", "mce"):
        test = inference.calibration_test(name, *data, key=KEY, num_resamples=100, num_bins=5)
        metric = metrics.named(name, num_bins=5)
        bound = inference.noise_bound(metric, *data, key=KEY, num_resamples=100)
        assert test == (bound.value, bound.p_value)


def test_score_tests_are_derivatives_of_likelihoods():
    """Differentiate numerically, in float64, the likelihoods that define both score tests."""
    logits, labels, _ = simulated(np.random.default_rng(0), 60, 3, 1.5)
    exact, rows = logits.astype(float), np.arange(60)
    step = 1e-5

    def nll(b):
        return -np.log(softmax(b * exact))[rows, labels].sum()

    p = softmax(exact)
    variance = (p * exact**2).sum(-1) - (p * exact).sum(-1) ** 2
    z = (nll(1 + step) - nll(1 - step)) / (2 * step) / np.sqrt(variance.sum())
    actual = inference.calibration_test("temperature", logits, labels)
    assert actual.statistic == pytest.approx(z, rel=1e-4)
    assert actual.p_value == pytest.approx(2 * stats.norm.sf(abs(z)), rel=1e-3)

    confidence, hit = p.max(-1), p.argmax(-1) == labels
    odds = np.log(confidence / (1 - confidence))
    design = np.stack([np.ones(60), odds], 1)
    score = design.T @ (hit - confidence)
    information = design.T @ (design * (confidence * (1 - confidence))[:, None])
    wanted = score @ np.linalg.solve(information, score)
    actual = inference.calibration_test("cox", logits, labels)
    assert actual.statistic == pytest.approx(wanted, rel=1e-4)
    assert actual.p_value == pytest.approx(stats.chi2(2).sf(wanted), rel=1e-4)


def test_equal_confidences_need_one_degree_of_freedom():
    """Check 30 mistakes of 60 at confidence 0.8, where Cox and Kuiper see one sum."""
    logits = jnp.tile(jnp.log(jnp.array([[0.8, 0.2]])), (60, 1))
    labels = (jnp.arange(60) < 16).astype(int)
    z = 4 / np.sqrt(60 * 0.16)
    for name in ("cox", "spiegelhalter", "temperature"):
        assert run(name, logits, labels).p_value == pytest.approx(2 * stats.norm.sf(z), rel=1e-3)
    assert run("kuiper", logits, labels).statistic == pytest.approx(4 / 60, abs=1e-6)


@pytest.mark.parametrize("name", [*ASYMPTOTIC, *DRAWN])
def test_order_copies_and_absent_rows_change_nothing(name):
    random = np.random.default_rng(1)
    logits, labels, _ = simulated(random, 40, 3, 1.5)
    logits[10:20] = logits[:10]  # ties
    counts = random.integers(0, 4, 40)
    copies = random.permutation(np.repeat(np.arange(40), counts))
    whole = run(name, logits[copies], labels[copies])
    assert 0 < whole.p_value <= 1
    absent = np.where(counts[:, None] > 0, logits, np.nan)
    np.testing.assert_allclose(run(name, absent, labels, counts), whole, rtol=1e-9)


@pytest.mark.parametrize("name", ASYMPTOTIC)
def test_no_p_value_without_information(name):
    certain = jnp.tile(jnp.array([[100.0, 0.0]]), (60, 1))
    assert np.isnan(run(name, certain, jnp.zeros(60, int)).p_value)
    assert np.isnan(run(name, jnp.array([[2.0, 0.0]]), jnp.array([1])).p_value)


def test_half_is_the_confidence_that_spiegelhalter_cannot_judge():
    assert np.isnan(run("spiegelhalter", jnp.zeros((60, 2)), jnp.zeros(60, int))).all()
    assert np.isnan(run("temperature", jnp.zeros((60, 2)), jnp.zeros(60, int))).all()
    assert run("cox", jnp.zeros((60, 2)), jnp.zeros(60, int)).p_value < 1e-6


def test_classes_of_probability_zero():
    logits = jnp.tile(jnp.array([[1.5, 0.0, -jnp.inf]]), (20, 1))
    labels = (jnp.arange(20) < 5).astype(int)
    for name in ASYMPTOTIC:
        without = run(name, logits[:, :2], labels)
        np.testing.assert_allclose(run(name, logits, labels), without, rtol=1e-5)


def test_bad_input():
    logits, labels = golden("a")
    with pytest.raises(ValueError, match="did you mean 'kuiper'"):
        inference.calibration_test("kuipers", logits, labels)
    with pytest.raises(TypeError, match="draws outcomes: give key"):
        inference.calibration_test("ece", logits, labels)
    with pytest.raises(TypeError, match="has no option 'num_bins'"):
        inference.calibration_test("kuiper", logits, labels, num_bins=5)
    with pytest.raises(TypeError, match="'ece' has no option 'bins'"):
        inference.calibration_test("ece", logits, labels, key=KEY, bins=5)
    with pytest.raises(ValueError, match="12 of 12 weights are not integers"):
        inference.calibration_test("cox", logits, labels, np.linspace(0.3, 0.9, 12))
    with pytest.raises(ValueError, match="need labels of shape"):
        inference.calibration_test("cox", logits, np.ones((12, 2)) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [200, 1000])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_size_and_power(num_rows, num_classes, capsys):
    """Check 400 calibrated sets: a rate at 5 % within three standard errors, 8 % if asymptotic."""
    random = np.random.default_rng(2)
    rates = {}
    for sharpness in (1.0, 1.5):
        rejected = dict.fromkeys((*ASYMPTOTIC, *DRAWN), 0)
        for trial in range(400):
            logits, labels, _ = simulated(random, num_rows, num_classes, sharpness)
            for name in rejected:
                drawn = {"key": jax.random.key(trial), "num_resamples": 99} if name in DRAWN else {}
                test = inference.calibration_test(name, logits, labels, **drawn)
                rejected[name] += test.p_value <= 0.05
        rates[sharpness] = {name: count / 400 for name, count in rejected.items()}
    with capsys.disabled():
        print(f"\nn={num_rows} K={num_classes}", *rates.values(), sep="\n  ")
    assert max(rates[1.0].values()) <= 0.083
    assert min(rates[1.5].values()) > max(rates[1.0].values())


def test_survival_is_that_of_the_density():
    """Integrate Feller's density of the range."""

    def density(r):
        k = np.arange(1, 200)
        return 8 * np.sum((-1.0) ** (k - 1) * k**2 * stats.norm.pdf(k * r))

    area, _ = integrate.quad(density, 1.2, 8)
    assert _survival_of_range(1.2) == pytest.approx(area, abs=1e-8)


def test_confident_models_are_tested_on_their_own_scale():
    """Squared errors of 1e-7 are below the rounding that ties of larger ones need."""
    random = np.random.default_rng(0)
    margin = random.uniform(5, 10, 50_000)
    wrong = random.random(len(margin)) < 3 / (1 + np.exp(margin))
    logits = np.stack([margin, np.zeros_like(margin)], axis=1).astype(np.float32)
    test = inference.calibration_test(
        "squared_error", logits, wrong.astype(int), key=jax.random.key(0), num_resamples=200
    )
    assert test.p_value < 0.01
