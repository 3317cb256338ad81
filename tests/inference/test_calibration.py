"""Tests of calibration, of groups and of stated confidences: numbers, laws, size, power."""

import jax
import numpy as np
import pytest
from scipy import stats

from calib_jax import inference, metrics
from tests.metrics.test_stated import among_classes, answers

from . import CONFIDENCE, HIT, gaps, golden, outcomes, simulated, softmax
from .test_compare_calibration import pairs

KEY = jax.random.key(0)
ASYMPTOTIC = ("cox", "kuiper", "spiegelhalter", "temperature")
DRAWN = ("ece", "squared_error")


def run(name, *data, num_resamples=100):
    options = {"key": KEY, "num_resamples": num_resamples} if name not in ASYMPTOTIC else {}
    return inference.calibration_test(name, *data, **options)


def test_golden_numbers():
    data = golden("a")
    kuiper = inference.calibration_test("kuiper", *data)
    assert round(kuiper.statistic, 6) == 0.108333
    assert round(kuiper.p_value, 6) == 0.917352
    assert round(inference.calibration_test("spiegelhalter", *data).statistic, 6) == -1.090315


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
    logits = np.tile(np.log(np.float32([[0.8, 0.2]])), (60, 1))
    labels = (np.arange(60) < 16).astype(int)
    z = 4 / np.sqrt(60 * 0.16)
    for name in ("cox", "spiegelhalter", "temperature"):
        assert run(name, logits, labels).p_value == pytest.approx(2 * stats.norm.sf(z), rel=1e-3)
    residuals = (np.arange(60) < 16) - 0.2
    of_pairs = residuals.sum() / np.linalg.norm(residuals[:30] + residuals[30:])
    cox = inference.calibration_test("cox", logits, labels, clusters=np.arange(60) % 30)
    assert cox.p_value == pytest.approx(2 * stats.norm.sf(of_pairs), rel=1e-3)
    assert run("kuiper", logits, labels).statistic == pytest.approx(4 / 60, abs=1e-6)


def test_a_p_value_needs_an_expected_variance_of_one():
    """At confidence 0.9, eleven rows have 0.99 and twelve 1.08."""
    for rows in (11, 12):
        logits = np.tile(np.log(np.float32([[0.9, 0.1]])), (rows, 1))
        for name in ("spiegelhalter", "temperature", "cox", "kuiper"):
            p_value = run(name, logits, (np.arange(rows) < 2).astype(int)).p_value
            assert np.isnan(p_value) == (rows == 11), name


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [200, 1000])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_size_and_power(num_rows, num_classes):
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
    assert max(rates[1.0].values()) <= 0.083
    assert min(rates[1.5].values()) > max(rates[1.0].values())


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


def data(num_rows=180, seed=0):
    """Return examples in three groups of equal size, which share their compiled programs."""
    logits, labels, _ = simulated(np.random.default_rng(seed), num_rows, 3, 1.2)
    return logits, labels, np.resize(["a", "b", "c"], num_rows)


def test_errors_are_those_of_the_subsets():
    logits, labels, groups = data()
    p = softmax(logits.astype(float))
    parts = inference.group_errors(logits, labels, groups, key=KEY, num_resamples=400)
    stated = metrics.Stated(p.max(-1).reshape(6, 30), (p.argmax(-1) == labels).reshape(6, 30))
    of_answers = inference.group_errors(stated, groups=groups.reshape(6, 30), key=KEY)
    assert [part.gap for part in of_answers] == pytest.approx([part.gap for part in parts])
    adjusted = inference.holm([part.p_value for part in parts])
    np.testing.assert_allclose([part.p_holm for part in parts], adjusted)
    for part in parts:
        rows = groups == part.name
        confidence, hit = p[rows].max(-1), p[rows].argmax(-1) == labels[rows]
        assert part.size == rows.sum()
        assert part.gap == pytest.approx((confidence - hit).mean(), abs=1e-6)
        wanted = sum(abs(total) for _, total in gaps(confidence, hit, 15)) / rows.sum()
        assert part.error == pytest.approx(wanted, abs=1e-6)
        bound = inference.noise_bound(
            metrics.ece, logits[rows], labels[rows], key=KEY, num_resamples=400
        )
        assert part.error == pytest.approx(bound.value, abs=1e-6)
        assert part.floor == pytest.approx(bound.floor, rel=0.1)
        assert part.p_value == pytest.approx(bound.p_value, abs=0.1)
    for num_bins in (15, 1):  # with one bin, no probability lies above the first
        per_class = np.asarray(metrics.named("per_class_ece", num_bins=num_bins)(logits, labels))
        options = {"key": KEY, "num_bins": num_bins, "num_resamples": 100}
        for k, part in enumerate(inference.class_errors(logits, labels, **options)):
            assert part.error == pytest.approx(per_class[k], abs=1e-6)
            assert part.gap == pytest.approx((p[:, k] - (labels == k)).mean(), abs=1e-6)
            assert (part.name, part.size) == (str(k), (labels == k).sum())


def test_the_draws_are_forty_for_each_part_and_as_good_a_few_at_a_time():
    wrong = np.tile(np.float32([5, 0]), (90, 1)), np.ones(90, int)
    parts = inference.group_errors(*wrong, np.arange(90) // 3, key=KEY)
    assert {part.p_value for part in parts} == {1 / 1201}
    logits, labels, _ = data()
    options = {"key": KEY, "num_resamples": 1500}
    floors = [part.floor for part in inference.class_errors(logits, labels, **options)]
    bound = inference.noise_bound(metrics.classwise_ece, logits, labels, **options)
    assert np.mean(floors) == pytest.approx(bound.floor, rel=1e-6)


def test_clusters_of_copies():
    logits, labels, groups = data(120)
    options = {"key": KEY, "num_resamples": 200}
    alone = inference.group_errors(logits, labels, groups, **options)
    copies = np.repeat(np.arange(120), 20)
    tight = inference.group_errors(
        logits[copies], labels[copies], groups[copies], clusters=copies, **options
    )
    loose = inference.group_errors(logits[copies], labels[copies], groups[copies], **options)
    for part, in_clusters, as_rows in zip(alone, tight, loose, strict=True):
        assert in_clusters.error == pytest.approx(part.error)
        assert in_clusters.floor > 3 * as_rows.floor
        assert in_clusters.p_value > as_rows.p_value


@pytest.fixture(scope="module")
def models():
    """A model's answers as pairs and as logits of 50 classes."""
    stated = metrics.Stated(*answers(0))
    return inference.Evaluation(stated), inference.Evaluation(*among_classes(*answers(0)))


@pytest.mark.parametrize("name", ["ece", "kuiper", "spiegelhalter", "squared_error", "cox"])
def test_tests_are_those_of_an_answer_among_many_classes(models, name):
    stated, logits = models
    key = {} if name in ("kuiper", "spiegelhalter", "cox") else {"key": KEY}
    actual = inference.calibration_test(name, stated, **key)
    wanted = inference.calibration_test(name, logits, **key)
    np.testing.assert_allclose(actual, wanted, rtol=0.02, atol=2e-3)
