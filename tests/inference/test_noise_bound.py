"""Binned errors with noise bounds: their numbers, their laws, their coverage, and bad input."""

import jax
import numpy as np
import pytest
import scipy.special

from calib_jax import inference, metrics
from calib_jax.inference import class_gaps
from calib_jax.inference import gaps as gaps_of_bins

from . import CONFIDENCE, HIT, gaps, golden, outcomes, simulated

KEY = jax.random.key(0)
FIVE = {
    name: metrics.named(name, num_bins=5)
    for name in (
        *("ece", "mce", "average_calibration_error", "rms_calibration_error"),
        *("overconfidence", "underconfidence"),
        *("adaptive_ece", "adaptive_mce", "classwise_ece"),
    )
}
ALL = FIVE | {"ecce": metrics.ecce, "ks_error": metrics.ks_error}


def ece(bins):
    return sum(abs(s) for _, s in bins) / 12


def mce(bins):
    return max(abs(s) / n for n, s in bins)


def rms(bins):
    return np.sqrt(sum(s**2 / n for n, s in bins) / 12)


def overconfidence(bins):
    return sum(max(s, 0) for _, s in bins) / 12


REFERENCES = {
    "ece": ece,
    "mce": mce,
    "rms_calibration_error": rms,
    "overconfidence": overconfidence,
    "classwise_ece": ece,  # two classes have mirrored bins
}


def running_sums(confidence, gap):
    """Sum the gaps over all confidences up to each one."""
    order = sorted(set(confidence.tolist()))
    return [0, *(gap[confidence <= end].sum() / len(gap) for end in order)]


PATHS = {"ecce": np.ptp, "ks_error": lambda path: max(map(abs, path))}


@pytest.mark.parametrize("model", ["a", "b"])
def test_draws_agree_with_all_outcomes(model):
    confidence = CONFIDENCE[model]
    hits, probability = outcomes(confidence)
    bounds = inference.noise_bound(ALL, *golden(model), key=KEY, num_resamples=20_000)
    bins = [gaps(confidence, hit, 5) for hit in (*hits, HIT[model])]
    paths = [
        running_sums(np.array(confidence), confidence - np.array(hit))
        for hit in (*hits, HIT[model])
    ]
    for name, reference in (REFERENCES | PATHS).items():
        *values, value = (reference(one) for one in (bins if name in REFERENCES else paths))
        values = np.array(values)
        exact = probability @ (values >= value - 1e-9)
        floor = probability @ values
        error = np.sqrt(probability @ (values - floor) ** 2 / 20_000)
        assert bounds[name].value == pytest.approx(value, abs=1e-6), name
        error_of_p = np.sqrt(exact * (1 - exact) / 20_000)
        assert bounds[name].p_value == pytest.approx(exact, abs=4 * error_of_p + 1e-4), name
        assert bounds[name].floor == pytest.approx(floor, abs=4 * error), name


def test_values_are_those_of_the_metrics():
    logits, labels, _ = simulated(np.random.default_rng(0), 60, 3, 1.5)
    logits[20:30] = logits[:10]  # ties
    of_bins = ("average_calibration_error", "underconfidence", "adaptive_ece", "adaptive_mce")
    several = {name: ALL[name] for name in (*of_bins, *PATHS)} | {
        "left": metrics.named("ece", num_bins=4, edges="left"),
        "without": metrics.named("ece", excluded_class=1),
        "classes": metrics.named("classwise_ece", num_bins=5, excluded_class=1),
        "many": metrics.named("adaptive_ece", num_bins=100, excluded_class=1),
    }
    bounds = inference.noise_bound(several, logits, labels, key=KEY, num_resamples=100)
    values = metrics.values_of(several, logits, labels)
    for name, bound in bounds.items():
        assert bound.value == pytest.approx(float(values[name]), abs=2e-6), name


def test_a_mistake_at_confidence_one_is_impossible_for_a_calibrated_model():
    logits = np.tile(np.float32([[100.0, 0.0]]), (60, 1))
    right = inference.noise_bound(
        metrics.ece, logits, np.zeros(60, int), key=KEY, num_resamples=100
    )
    assert right.value == right.low == right.floor == 0
    assert right.p_value == 1
    assert 0 < right.high < 0.1  # Wilson's: errors may be rare
    wrong = inference.noise_bound(
        metrics.ece, logits, (np.arange(60) < 3).astype(int), key=KEY, num_resamples=100
    )
    assert wrong.p_value == pytest.approx(1 / 101)
    assert wrong.value == pytest.approx(0.05)
    assert wrong.low < 0.05 < wrong.high


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [200, 1000])
@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize("sharpness", [1.0, 1.5])
def test_coverage_and_size(num_rows, num_classes, sharpness):
    """Check 200 sets: at least 88 % coverage at 90 %, and the size of the exact test."""
    several = {name: metrics.named(name) for name in ALL}
    random = np.random.default_rng(5)
    covered = dict.fromkeys(several, 0)
    rejected = dict.fromkeys(several, 0)
    for trial in range(200):
        logits, labels, truth = simulated(random, num_rows, num_classes, sharpness)
        bounds = inference.noise_bound(
            several, logits, labels, key=jax.random.key(trial), num_resamples=200
        )
        truths = errors_of_truth(logits, truth)
        for name, bound in bounds.items():
            covered[name] += bound.low <= truths[name] + 1e-6 and truths[name] <= bound.high
            rejected[name] += bound.p_value <= 0.05
    for name in several:
        assert covered[name] >= 176, name
        if sharpness == 1:  # 5 % and three standard errors
            assert rejected[name] <= 20, name


def errors_of_truth(logits, truth):
    """Return the metrics with the true probabilities in place of the labels."""
    num_rows, num_classes = logits.shape
    p = np.exp(logits.astype(float))
    p /= p.sum(-1, keepdims=True)
    top = p.argmax(-1)
    confidence = p.max(-1)
    gap = confidence - truth[np.arange(num_rows), top]
    index = np.ceil(15 * confidence)
    sums = np.array([gap[index == b].sum() for b in range(1, 16)]) / num_rows
    share = np.array([np.mean(index == b) for b in range(1, 16)])
    filled = share > 0
    mean = sums[filled] / share[filled]
    order = np.argsort(confidence)
    copies = np.repeat(gap[order], 15).reshape(15, num_rows).mean(1)  # each example in 15 parts
    path = running_sums(confidence, gap)
    classes = np.ceil(15 * p)
    by_class = [
        abs(np.where(classes == b, p - truth, 0).sum(0)).sum() / num_rows for b in range(1, 16)
    ]
    return {
        "ece": abs(sums).sum(),
        "mce": abs(mean).max(),
        "average_calibration_error": abs(mean).mean(),
        "rms_calibration_error": np.sqrt(share[filled] @ mean**2),
        "overconfidence": np.maximum(sums, 0).sum(),
        "underconfidence": np.maximum(-sums, 0).sum(),
        "adaptive_ece": abs(copies).mean(),
        "adaptive_mce": abs(copies).max(),
        "classwise_ece": sum(by_class) / num_classes,
    } | {name: size(path) for name, size in PATHS.items()}


def test_an_excluded_class_has_no_place():
    """A permutation of the classes moves the excluded one, and changes only the draws."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((400, 3)).astype(np.float32)
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    bounds = []
    for excluded, order in ((0, [0, 1, 2]), (2, [2, 0, 1])):  # class k becomes order[k]
        moved = np.empty_like(logits)
        moved[:, order] = logits
        metric = metrics.classwise_ece.with_options(excluded_class=excluded)
        bounds.append(
            inference.noise_bound(metric, moved, np.asarray(order)[labels], key=jax.random.key(0))
        )
    first, second = bounds
    np.testing.assert_allclose(first.value, second.value, rtol=1e-5)
    np.testing.assert_allclose(first.floor, second.floor, rtol=0.05)
    assert abs(first.p_value - second.p_value) < 0.1


def shares_of_bins(confidence, num_bins, equal_mass):
    """Return the share of each example, sorted by confidence, in every bin."""
    number, ends = len(confidence), np.arange(num_bins + 1)
    if not equal_mass:
        return np.eye(num_bins)[np.ceil(num_bins * confidence).astype(int) - 1]
    rank, ends = np.arange(number)[:, None], number * ends / num_bins
    return np.clip(np.minimum(rank + 1, ends[1:]) - np.maximum(rank, ends[:-1]), 0, 1)


def upper_end(value, moment, largest, number):
    z = scipy.special.ndtri(0.95)
    half = largest * z / (2 * number)
    return min(1, value + z * (half + np.sqrt(moment + half**2)))


def upper_ends(confidence, residual, shares):
    """Compute the upper end of every norm of the gaps from its formula."""
    number, filled = len(residual), shares.sum(0) > 0
    squares = np.stack([residual**2, confidence * (1 - confidence)])
    size, gap = np.maximum(shares.sum(0), 1e-9) / number, residual @ shares / number

    def of_sum(value, factors):
        loads = shares @ factors
        return value, (squares @ loads**2).max() / number**2, loads.max()

    ones = np.ones(len(gap))
    rms = np.sqrt(np.sum(gap**2 / size))
    (_, first, _), (_, second, _) = of_sum(rms, ones), of_sum(rms, abs(gap) / size / rms)
    sums = {
        "ece": of_sum(abs(gap).sum(), ones),
        "average_calibration_error": of_sum(
            np.mean(abs(gap / size)[filled]), filled / size / filled.sum()
        ),
        "overconfidence": of_sum(gap.clip(0).sum(), ones),
        "underconfidence": of_sum(-gap.clip(None, 0).sum(), ones),
        "rms_calibration_error": (rms, max(first, second), 1),
    }
    ends = {name: upper_end(*parts, number) for name, parts in sums.items()}
    moment = (squares @ shares**2).max(0) / number**2
    of_bins = zip(abs(gap / size), moment / size**2, 1 / size, strict=True)
    of_filled = [each for each, some in zip(of_bins, filled, strict=True) if some]
    return ends | {"mce": max(upper_end(*each, number) for each in of_filled)}


def noise_of_norms(gaps):
    """Return how much noise increases a norm: in certain bins that in the gap's direction."""
    certain = abs(gaps.gap) > np.sqrt(np.log(50) * gaps.variance)
    scale = np.where(gaps.share > 0, 1 / np.maximum(gaps.share, 1e-9), 0)

    def of_sum(size, factors=1):
        slope = np.where(size(np.sign(gaps.gap)) > 0, np.sign(gaps.gap), 0)
        return (factors * np.where(certain, slope * gaps.noise, size(gaps.noise))).sum(1)

    excess = {
        "ece": of_sum(abs),
        "average_calibration_error": of_sum(abs, scale / np.sum(gaps.share > 0)),
        "overconfidence": of_sum(lambda gap: np.maximum(gap, 0)),
        "underconfidence": of_sum(lambda gap: np.maximum(-gap, 0)),
        "rms_calibration_error": np.sqrt(gaps.noise**2 @ scale),
        "mce": np.max(abs(gaps.noise) * scale, axis=1),
    }
    return {name: np.quantile(draws, 0.95) for name, draws in excess.items()}


def noise_of_paths(confidence, residual):
    """Return how much noise increases a range of the running sums, near their ends."""
    random, path = np.random.default_rng(1), np.append(0, np.cumsum(residual)) / 50
    margin = 2.5 * np.sqrt(max(np.sum(residual**2), np.sum(confidence * (1 - confidence)))) / 50

    def sums(each):
        return np.cumsum(np.pad(each, ((0, 0), (1, 0))), axis=1) / 50

    noise = sums(random.choice([-1, 1], (4000, 50)) * residual)
    null, reach = sums(confidence - (random.random((4000, 50)) < confidence)), {}
    for name, (up, down) in {
        "ecce": (path >= path.max() - margin, path <= path.min() + margin),
        "ks_error": (path >= max(abs(path)) - margin, path <= margin - max(abs(path))),
    }.items():
        both = noise[:, up].max(1, initial=-9), (-noise[:, down]).max(1, initial=-9)
        excess = sum(both) if name == "ecce" else np.maximum(*both)
        of_null = np.ptp(null, axis=1) if name == "ecce" else abs(null).max(1)
        reach[name] = np.quantile(np.maximum(np.sort(excess), np.sort(of_null)), 0.95)
    return reach


def test_both_ends_are_those_of_their_formulas():
    """For a model that is too unsure, one about as sure as it is right, and one far too sure."""
    random, above_0 = np.random.default_rng(0), set()
    logits = random.standard_normal((50, 3)).astype(np.float32)
    labels = np.where(random.random(50) < 0.6, logits.argmax(axis=1), random.integers(3, size=50))
    for scale in (0.1, 2, 20):
        p = scipy.special.softmax(scale * logits.astype(np.float64), axis=1)
        top, true = p.max(axis=1), p[np.arange(50), labels]
        order = np.argsort(top)
        confidence, residual = top[order], (top - (logits.argmax(axis=1) == labels))[order]
        evaluation = inference.Evaluation(scale * logits, labels)
        actual = inference.noise_bound(ALL, evaluation, key=KEY, num_resamples=2000)
        expected = upper_ends(confidence, residual, shares_of_bins(confidence, 5, False))
        of_mass = upper_ends(confidence, residual, shares_of_bins(confidence, 5, True))
        expected |= {f"adaptive_{name}": of_mass[name] for name in ("ece", "mce")}
        moment = max(np.sum(residual**2), np.sum(confidence * (1 - confidence))) / 50**2
        expected |= {name: upper_end(actual[name].value, moment, 1, 50) for name in PATHS}
        # The terms of all classes add up to at most twice the probability of the others.
        others = max(np.sum((1 - true) ** 2), np.sum(p * (1 - p) ** 2)) * (2 / 3) ** 2 / 50**2
        classwise = upper_end(actual["classwise_ece"].value, others, 2 / 3, 50)
        expected |= {"classwise_ece": classwise}
        assert expected.keys() == ALL.keys()
        for name, end in expected.items():
            assert actual[name].high == pytest.approx(end, rel=1e-5), (name, scale)
        several = FIVE["ece"], FIVE["adaptive_ece"]
        width, mass = map(noise_of_norms, gaps_of_bins.gaps_of(several, evaluation, KEY, 2000))
        noise = width | {f"adaptive_{name}": mass[name] for name in ("ece", "mce")}
        for name, reach in (noise | noise_of_paths(confidence, residual)).items():
            bound, tolerance = actual[name], 0.01 if name in PATHS else 1e-6
            low = max(0, bound.value - reach) if bound.p_value < 0.05 else 0
            assert bound.low == pytest.approx(low, abs=tolerance), (name, scale)
            assert 0 < bound.floor < 1
            above_0.add(name if low > 0 else None)
        bound = actual["classwise_ece"]
        assert 0 <= bound.low <= bound.value
        assert bound.low == 0 or bound.p_value < 0.05
    assert above_0 == {*noise, *PATHS, None}


def test_noise_has_the_larger_variance_and_the_correlations_of_a_calibrated_model():
    random = np.random.default_rng(0)
    confidence = np.sort(np.float32(0.5 + random.random(50) / 2)).astype(float)
    hit = random.random(50) < np.where(confidence < 0.8, 0.5, 1)  # varies more, or not at all
    evaluation = inference.Evaluation(metrics.Stated(confidence, hit))
    several = FIVE["ece"], FIVE["adaptive_ece"]
    found = list(gaps_of_bins.gaps_of(several, evaluation, KEY, 4000))
    for actual, equal_mass in zip(found, (False, True), strict=True):
        shares = shares_of_bins(confidence, 5, equal_mass)
        filled, shares = shares.sum(0) > 0, shares[:, shares.sum(0) > 0]
        centered = (confidence - hit)[:, None] - (confidence - hit) @ shares / shares.sum(0)
        spread = confidence * (1 - confidence)
        variance = np.maximum(spread @ shares**2, (centered**2 * shares**2).sum(0)) / 50**2
        np.testing.assert_allclose(actual.variance[filled], variance, rtol=1e-6)
        covariance = shares.T @ (shares * spread[:, None])
        factor = np.sqrt(variance / np.diag(covariance))
        expected = covariance * np.outer(factor, factor)
        drawn = actual.noise[:, filled]
        np.testing.assert_allclose(np.cov(drawn.T), expected, atol=0.1 * expected.max())
        for draws in (actual.null, actual.ranked):
            of_null = covariance / 50**2
            np.testing.assert_allclose(
                np.cov(draws[:, filled].T), of_null, atol=0.1 * of_null.max()
            )


def test_the_moments_of_every_class_and_bin_are_those_of_numpy():
    random = np.random.default_rng(0)
    logits = 2 * random.standard_normal((300, 3)).astype(np.float32)
    labels = (logits / 2 + random.gumbel(size=logits.shape)).argmax(axis=1)
    p = scipy.special.softmax(logits.astype(np.float64), axis=1)
    cell = 5 * np.arange(3) + np.ceil(5 * p - 1).astype(int)
    residual = p - np.eye(3)[labels]

    def by_cell(values):
        return np.bincount(cell.ravel(), values.ravel(), 15)

    count, gap, square = by_cell(np.ones((300, 3))), by_cell(residual), by_cell(residual**2)
    of_null = by_cell(p * (1 - p))
    expected = {
        "share": count / 300,
        "gap": gap / 300,
        "of_null": of_null / 300**2,
        "variance": np.maximum(of_null, square - gap**2 / np.maximum(count, 1)) / 300**2,
        "moment": np.maximum(of_null, square) / 300**2,
    }
    metric = metrics.classwise_ece.with_options(num_bins=5)
    actual = next(
        class_gaps.gaps_of_classes(metric, inference.Evaluation(logits, labels), KEY, 9, 9)
    )
    for name, values in expected.items():
        np.testing.assert_allclose(
            getattr(actual, name), values, rtol=1e-4, atol=1e-9, err_msg=name
        )


def test_the_rank_among_draws_is_as_fine_with_many_classes():
    """Divided by the number of classes, draws of a sharp model differ by less than millionths."""
    random, num_rows, num_classes = np.random.default_rng(0), 1000, 1000
    label = random.integers(0, num_classes, num_rows)
    confidence = random.beta(40, 1, num_rows)
    logits = np.zeros((num_rows, num_classes), np.float32)
    logits[np.arange(num_rows), label] = np.log(confidence / (1 - confidence) * (num_classes - 1))
    label = np.where(random.random(num_rows) < confidence, label, (label + 1) % num_classes)
    options = {"key": KEY, "num_resamples": 100}
    evaluation, metric = inference.Evaluation(logits, label), metrics.classwise_ece
    gaps = next(class_gaps.gaps_of_classes(metric, evaluation, draws_at_a_time=100, **options))
    value, draws = (np.sum(np.abs(sums), axis=-1) for sums in (gaps.gap, gaps.ranked))
    actual = inference.noise_bound(metric, evaluation, **options).p_value
    assert actual == (1 + np.sum(draws >= value - 1e-6)) / 101
    assert actual < (1 + np.sum(draws >= value - 1e-6 * num_classes)) / 101


def test_cells_without_noise_in_the_draws_have_that_of_their_variance():
    random = np.random.default_rng(0)
    draws = random.standard_normal((5000, 2)) * [1, 0]
    variance, wanted = np.array([1.0, 0.0]), np.array([4.0, 9.0])
    scaled = gaps_of_bins.with_variance(draws, variance, wanted, np.random.default_rng(0))
    np.testing.assert_allclose(scaled.std(axis=0), [2, 3], rtol=0.04)
