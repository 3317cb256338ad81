"""Intervals and tests of calibration for examples in clusters: numbers, laws, size, bad input."""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy import stats

from calib_jax import inference, metrics
from calib_jax.inference import gaps as bin_gaps
from calib_jax.inference.squared_error import binned, moments

from . import simulated, softmax
from .test_noise_bound import FIVE, errors_of_truth

KEY = jax.random.key(0)
DRAWN = ("ece", "classwise_ece", "squared_error", "kuiper")
TESTS = (*DRAWN, "spiegelhalter", "temperature", "cox")


def data(num_clusters=12, size=5, seed=0):
    """Return logits of three classes, labels, and clusters whose rows are not contiguous."""
    random = np.random.default_rng(seed)
    cluster = random.permutation(np.repeat(np.arange(num_clusters), size))
    logits, labels, _ = simulated(random, len(cluster), 3, 1.5)
    return logits, labels, cluster


def run(name, *given, num_resamples=100, **options):
    if name in DRAWN:
        options = {"key": KEY, "num_resamples": num_resamples, **options}
    return inference.calibration_test(name, *given, **options)


def top(logits, labels):
    p = softmax(np.asarray(logits, float))
    return p.max(-1), (p.argmax(-1) == labels).astype(float)


def cluster_sums(logits, labels, cluster, num_bins=5):
    """Return the sums of c - a and the counts, per cluster and bin."""
    confidence, hit = top(logits, labels)
    index = np.ceil(num_bins * confidence).astype(int) - 1
    sums, counts = np.zeros((2, cluster.max() + 1, num_bins))
    np.add.at(sums, (cluster, index), confidence - hit)
    np.add.at(counts, (cluster, index), 1)
    return sums, counts


def products(sums, counts):
    """Return the debiased squared error as a sum over pairs of different clusters."""
    total = 0.0
    for s, n in zip(sums.T, counts.T, strict=True):
        pairs = [(g, h) for g in range(len(s)) for h in range(len(s)) if g != h]
        weight = sum(n[g] * n[h] for g, h in pairs)
        if weight:
            total += n.sum() / counts.sum() * sum(s[g] * s[h] for g, h in pairs) / weight
    return total


def moments_of(models, factors):
    """Return the sum of errors, its variances and a bin's noise, by loops over all bins."""
    num_rows = models[0][1].sum()
    value, u, columns, largest = 0.0, np.zeros(len(models[0][0])), [], 0.0
    for (sums, counts), factor in zip(models, factors, strict=True):
        value += factor * products(sums, counts)
        noise = [0.0]
        for s, n in zip(sums.T, counts.T, strict=True):
            pairs = n.sum() ** 2 - (n**2).sum()
            if pairs:
                scale = factor * n.sum() / num_rows / pairs
                gap = (s.sum() ** 2 - (s**2).sum()) / pairs
                u += [2 * scale * x * (s.sum() - x) - factor * m / num_rows * gap
                      for x, m in zip(s, n, strict=True)]  # fmt: skip
                columns.append((scale, s))
                noise.append(abs(scale) * (s**2).sum())
        largest += max(noise)
    null = 2 * sum(a * b * (x @ y) ** 2 for a, x in columns for b, y in columns)
    return value, ((u - u.mean()) ** 2).sum(), null, largest


def scarcity(first, second, labels, num_bins=5):
    """Return the variance that three more hits and errors of average influence add."""
    num_rows, influence, added = len(labels), 0.0, []
    for sign, logits in ((-1, first), (1, second)):
        confidence, hit = top(logits, labels)
        index = np.ceil(num_bins * np.asarray(confidence, float)).astype(int)
        gap = {b: np.mean((confidence - hit)[index == b]) for b in np.unique(index)}
        influence = influence + sign * 2 * np.array(
            [gap[b] if np.sum(index == b) > 1 else 0 for b in index]
        )
        share, more = np.mean(hit), (np.sum(hit) + 3) / (num_rows + 6)
        added.append(more * (1 - more) - share * (1 - share))
    return max(0, *added) * np.mean(influence**2) / num_rows


def named(sums):
    """Return the value, both variances and a bin's noise."""
    return sums.value, sums.linear, sums.degenerate, sums.largest


def test_errors_of_clusters_against_sums_over_pairs():
    logits, labels, cluster = data()
    other = (0.4 * logits[:, ::-1]).astype(np.float32)
    sums = [cluster_sums(z, labels, cluster) for z in (logits, other)]
    wanted = moments_of(sums[:1], [1])
    evaluation = inference.Evaluation(logits, labels, clusters=cluster)
    bins = binned(evaluation, num_bins=5)
    np.testing.assert_allclose(named(moments([(1.0, bins)])), wanted, rtol=1e-4)
    error = inference.debiased_squared_error(logits, labels, num_bins=5, clusters=cluster)
    z = stats.norm.isf(0.05)
    assert error.value == pytest.approx(wanted[0], rel=1e-4)
    high = max(wanted[0], 0) + z * math.sqrt(wanted[1]) + (1 + z**2) * wanted[3]
    # Above it only where the score interval of the accuracy in a bin is wider.
    assert high - 1e-6 <= error.high <= 1.1 * high

    value, linear, null, _ = moments_of(sums, [-1, 1])
    known = len(np.unique(cluster)) / 1000
    deviation = math.sqrt(max(linear - known * null + scarcity(logits, other, labels), null))
    t = stats.t(100 * known / (1 - known))
    change = inference.compare_calibration(logits, other, labels, num_bins=5, clusters=cluster)
    assert change.value == pytest.approx(value, rel=1e-4)
    assert change.p_value == pytest.approx(2 * t.sf(abs(value) / deviation), rel=1e-3)
    assert change.high - change.value == pytest.approx(t.isf(0.05) * deviation, rel=1e-4)


def paths(logits, labels, cluster):
    """Return the cumulative sums of every cluster alone, over all rows sorted by confidence."""
    confidence, hit = top(logits, labels)
    order = np.argsort(confidence)
    steps = np.where(cluster[order] == np.arange(cluster.max() + 1)[:, None], 1, 0)
    return np.cumsum(steps * (hit - confidence)[order], axis=1) / len(labels)


def classwise_sums(logits, labels, cluster, num_bins=5):
    p = softmax(np.asarray(logits, float))
    index = np.ceil(num_bins * p).astype(int) - 1
    sums = np.zeros((cluster.max() + 1, 3, num_bins))
    for k in range(3):
        np.add.at(sums[:, k], (cluster, index[:, k]), p[:, k] - (labels == k))
    return sums.reshape(len(sums), -1) / len(labels) / 3


@pytest.mark.parametrize("name", DRAWN)
def test_draws_agree_with_all_signs(name, monkeypatch):
    monkeypatch.setattr(bin_gaps, "_RARE", 0.0)  # in no bin are the draws those of outcomes
    logits, labels, cluster = data(10, 6)
    signs = np.array(list(itertools.product((-1, 1), repeat=10)))
    sums, counts = cluster_sums(logits, labels, cluster)
    if name == "ece":
        values = abs(signs @ sums).sum(1) / len(labels)
    elif name == "classwise_ece":
        values = abs(signs @ classwise_sums(logits, labels, cluster)).sum(1)
    elif name == "squared_error":
        values = np.array([products(xi[:, None] * sums, counts) for xi in signs])
    else:
        drawn = signs @ paths(logits, labels, cluster)
        values = np.maximum(drawn.max(1), 0) - np.minimum(drawn.min(1), 0)
    value = values[-1]  # all signs are 1
    exact = np.mean(values >= value - 1e-7)
    options = {} if name == "kuiper" else {"num_bins": 5}
    actual = run(name, logits, labels, clusters=cluster, num_resamples=4000, **options)
    assert actual.statistic == pytest.approx(value, abs=1e-6)
    assert actual.p_value == pytest.approx(
        exact, abs=4 * np.sqrt(exact * (1 - exact) / 4000) + 3e-4
    )
    if name in FIVE:
        bound = inference.noise_bound(
            FIVE[name], logits, labels, key=KEY, num_resamples=4000, clusters=cluster
        )
        assert bound.p_value == actual.p_value
        given = {"key": KEY, "num_bins": 5, "num_resamples": 4000, "clusters": cluster}
        parts = (
            inference.group_errors(logits, labels, np.zeros(60, int), **given)
            if name == "ece"
            else inference.class_errors(logits, labels, **given)
        )
        for floor in (bound.floor, np.mean([part.floor for part in parts])):
            assert floor == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(4000))
        if name == "ece":
            assert parts[0].p_value == pytest.approx(exact, abs=0.03)


def test_upper_ends_are_those_of_the_sums_of_clusters():
    logits, labels, cluster = data(45, 4)
    confidence, hit = top(logits, labels)
    (sums, counts), z, n = (
        cluster_sums(logits, labels, cluster, 3),
        stats.norm.isf(0.05),
        len(labels),
    )
    gap, index = sums.sum(0) / n, np.ceil(3 * confidence).astype(int) - 1
    scale = n / np.maximum(counts.sum(0), 1e-9) * (counts.sum(0) > 0)
    squares = np.stack([(confidence - hit) ** 2, confidence * (1 - confidence)])

    def moments_of(factors):
        """Return the moments of the rows and of the clusters."""
        rows = (squares @ factors[index] ** 2).max()
        return rows / n**2, ((sums @ (factors * np.sign(gap))) ** 2).sum() / n**2

    def end(value, moment, rows, clustered, largest=1):
        half = z / (2 * n) * largest * np.maximum(1, clustered / rows)
        return value + z * (half + np.sqrt(moment + half**2))

    evaluation = inference.Evaluation(logits, labels, clusters=cluster)
    (found,) = bin_gaps.gaps_of((metrics.named("ece", num_bins=3),), evaluation, KEY, 100)
    centered = sums - counts * gap * scale
    variance = np.maximum(np.bincount(index, squares[1], 3), (centered**2).sum(0)) / n**2
    np.testing.assert_allclose(found.variance, variance, rtol=1e-4)
    of_null, of_rows = (np.bincount(index, each, 3)[1:] / n**2 for each in squares[::-1])
    clustered, scales = np.maximum((sums**2).sum(0)[1:] / n**2, of_null), scale[1:]
    of_bins = clustered * scales**2, np.maximum(of_rows, of_null), clustered, scales
    ones, rms = moments_of(np.ones(3)), np.sqrt(gap**2 @ scale)
    of_root = max(*ones, *moments_of(scale * abs(gap) / rms))
    for name, wanted in {
        "ece": end(abs(gap).sum(), max(ones), *ones),
        "rms_calibration_error": end(rms, of_root, *ones),
        "mce": np.max(end(abs(gap[1:]) * scales, *of_bins)),
    }.items():
        metric = metrics.named(name, num_bins=3)
        bound = inference.noise_bound(metric, logits, labels, key=KEY, clusters=cluster)
        assert bound.high == pytest.approx(wanted, rel=1e-4), name
    alike = np.argsort(np.argsort(confidence - hit)) // 4  # clusters of similar residuals
    steps = paths(logits, labels, alike)
    path, rows, clustered = steps.sum(0), squares.sum(1).max() / n**2, (steps[:, -1] ** 2).sum()
    for name, value in {"ecce": np.ptp(path), "ks_error": abs(path).max()}.items():
        metric, wanted = metrics.named(name), end(value, clustered, rows, clustered)
        bound = inference.noise_bound(metric, logits, labels, key=KEY, clusters=alike)
        assert bound.high == pytest.approx(wanted, rel=1e-4), name


@pytest.mark.parametrize("name", ["spiegelhalter", "temperature", "cox"])
def test_scores_are_divided_by_the_spread_of_clusters(name):
    logits, labels, cluster = data()
    confidence, hit = top(logits, labels)
    exact = logits.astype(float)
    if name == "cox":
        odds = np.log(confidence / (1 - confidence))
        score = (hit - confidence)[:, None] * np.stack([np.ones(len(hit)), odds], 1)
    elif name == "temperature":
        score = (softmax(exact) * exact).sum(-1) - exact[np.arange(len(hit)), labels]
    else:
        score = (1 - 2 * confidence) * (confidence - hit)
    sums = np.array([score[cluster == g].sum(0) for g in range(12)])
    actual = run(name, logits, labels, clusters=cluster)
    if name == "cox":
        wanted = sums.sum(0) @ np.linalg.inv(sums.T @ sums) @ sums.sum(0)
        p_value = stats.chi2(2).sf(wanted)
    else:
        wanted = sums.sum() / np.sqrt((sums**2).sum())
        p_value = 2 * stats.norm.sf(abs(wanted))
    assert actual.statistic == pytest.approx(wanted, rel=1e-3)
    assert actual.p_value == pytest.approx(p_value, rel=1e-2)


def test_a_bin_without_a_rare_outcome_is_not_miscalibrated():
    """Twelve examples are right at confidence .95, as in 54 % of data sets of a calibrated model.

    Their gap of .05 is the largest of all bins. A calibrated model reaches it with no miss or at
    least two of 12, and flips of the signs of 12 equal residuals in 2 of 4,096. The other
    bin has a variance of 10.5 hits, so it takes sign flips; its residuals are 0 in every cluster.
    """
    confidence = np.repeat([0.95, 0.7], [12, 50])
    logits = np.stack([np.log(confidence / (1 - confidence)), np.zeros(62)], axis=1)
    labels = np.concatenate([np.zeros(12, int), np.arange(50) % 10 >= 7])
    tens = 12 + np.arange(50) // 10

    def bound(cluster):
        clusters = np.concatenate([cluster, tens])
        return inference.noise_bound(
            metrics.mce, logits, labels, key=KEY, num_resamples=2000, clusters=clusters
        )

    alone = bound(np.arange(12))
    assert alone.value == pytest.approx(0.05, abs=1e-6)
    wanted = stats.binom.pmf(0, 12, 0.05) + stats.binom.sf(1, 12, 0.05)
    assert alone.p_value == pytest.approx(wanted, abs=0.05)
    together = bound(np.zeros(12, int))  # all are right, or none
    assert together.p_value > 0.99
    assert together.floor == pytest.approx(0.95 * 0.05 + 0.05 * 0.95, abs=0.02)


def test_few_clusters():
    """With one cluster nothing is known; few clusters, also one large one, show too little."""
    logits, labels, cluster = data()
    one = inference.Evaluation(logits, labels, clusters=cluster)
    share = stats.norm.cdf(np.sqrt(12 / 11) * stats.t(11).ppf(0.05))
    samples, found = (
        f(metrics.nll, one, key=KEY) for f in (inference.bootstrap, inference.estimates)
    )
    np.testing.assert_allclose(found[1:3], np.quantile(samples, (share, 1 - share)), rtol=1e-5)
    one = np.zeros(60, int)
    bound = inference.noise_bound(FIVE["ece"], logits, labels, key=KEY, clusters=one)
    assert (bound.low, bound.p_value) == (0, 1)
    assert np.isnan(run("squared_error", logits, labels, clusters=one)).all()
    for few in (np.minimum(cluster, 8), np.where(np.arange(60) < 30, 0, cluster)):
        one, two = (inference.Evaluation(z, labels, clusters=few) for z in (logits, 2 * logits))
        parts = [run(name, one).p_value for name in ("spiegelhalter", "temperature", "cox")]
        threshold = inference.best_threshold(one, key=KEY, abstain_cost=0.4)
        parts += [threshold[1:3], *(d[4:] for d in inference.decision_calibration(one).values())]
        change = inference.compare_calibration(one, two)
        parts += [change[1:4], change.error_a[1:3], inference.ranks({"a": one, "b": two})[0][2:4]]
        for compare in (inference.compare_metrics, inference.paired_bootstrap):
            found = compare(metrics.nll, one, two, key=KEY)
            parts += [found[1:3], found.p_value]
        parts.append(inference.estimates(metrics.nll, one, key=KEY)[1:3])
        assert all(np.isnan(part).all() for part in parts)
        assert np.isfinite([threshold.threshold, change.value, found.value]).all()


def correlated(random, num_classes, sharpness, correlation, num_clusters=100, size=10):
    """Return logits, labels, truth and clusters; hits in a cluster have correlated latents."""
    cluster = np.repeat(np.arange(num_clusters), size)
    logits, _, truth = simulated(random, len(cluster), num_classes, sharpness)
    shared, alone = random.standard_normal(num_clusters), random.standard_normal(len(cluster))
    latent = np.sqrt(correlation) * shared[cluster] + np.sqrt(1 - correlation) * alone
    order = np.argsort(-truth, axis=1)  # the best class first, so that hits are correlated
    ordered = np.take_along_axis(truth, order, axis=1)
    drawn = (ordered.cumsum(-1) < stats.norm.cdf(latent)[:, None]).sum(-1)
    labels = order[np.arange(len(order)), np.minimum(drawn, num_classes - 1)]
    return logits, labels, truth, cluster


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_size_and_coverage(num_classes, correlation):
    """Check 400 sets of 100 clusters of 10: the size of all tests, the coverage of intervals."""
    random = np.random.default_rng(7)
    several = {name: metrics.named(name) for name in ("ece", "adaptive_ece")}
    rejected = dict.fromkeys((*TESTS, "compare", "ece by row"), 0)
    covered = {(name, beta): 0 for name in (*several, "squared") for beta in (1.0, 1.5)}
    for trial in range(400):
        drawn = {"key": jax.random.key(trial), "num_resamples": 199}
        for beta in (1.0, 1.5):
            logits, labels, truth, cluster = correlated(random, num_classes, beta, correlation)
            bounds = inference.noise_bound(several, logits, labels, clusters=cluster, **drawn)
            error = inference.debiased_squared_error(logits, labels, clusters=cluster)
            truths = errors_of_truth(logits, truth)
            truths["squared"] = truths["rms_calibration_error"] ** 2
            for name, bound in {**bounds, "squared": error}.items():
                inside = bound.low <= truths[name] + 1e-6 and truths[name] <= bound.high
                covered[name, beta] += inside
            if beta == 1:
                for name in TESTS:
                    options = drawn if name in DRAWN else {}
                    p = inference.calibration_test(
                        name, logits, labels, clusters=cluster, **options
                    )
                    rejected[name] += p.p_value <= 0.05
                rejected["ece by row"] += (
                    inference.calibration_test("ece", logits, labels, **drawn).p_value <= 0.05
                )
                other = np.log(softmax(logits.astype(float)).mean(0))  # calibrated, of one value
                other = np.tile(other.astype(np.float32), (len(labels), 1))
                change = inference.compare_calibration(logits, other, labels, clusters=cluster)
                rejected["compare"] += change.p_value <= 0.05
    by_row = rejected.pop("ece by row")
    # Skewed sums of clusters: neither signs nor a chi-squared distribution reproduce them.
    assert max(rejected.pop(name) for name in ("classwise_ece", "cox")) <= 400 * 0.12
    # 1,000 other sets: 4 to 8 % of 100 clusters, most with two classes and a correlation of 1.
    assert max(rejected.values()) <= 400 * 0.1
    squared = [covered.pop(("squared", beta)) for beta in (1.0, 1.5)]
    assert min(squared) >= 400 * 0.77  # asymptotic, of 100 clusters
    assert min(covered.values()) >= 400 * 0.88
    if correlation:
        assert by_row > 400 * 0.1
