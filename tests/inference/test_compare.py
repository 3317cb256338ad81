"""Several models on the same rows, and how many rows a question needs."""

import itertools

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from scipy import stats

from calib_jax import inference, metrics
from calib_jax.inference import compare

from . import simulated, softmax

KEY = jax.random.key(0)


def data(num_rows=60, seed=0):
    """Return the logits of two models of three classes, labels, and clusters of four rows."""
    random = np.random.default_rng(seed)
    a, labels, _ = simulated(random, num_rows, 3)
    b = (1.5 * a + 0.5 * random.standard_normal(a.shape)).astype(np.float32)
    return a, b, labels, random.permutation(np.arange(num_rows) // 4)


# --------------------------------------------------------------------------------------------
# Holm.


@pytest.mark.parametrize("seed", range(5))
def test_holm_against_its_steps(seed):
    """Reject one hypothesis after the other, at the largest level that the p-value allows."""
    random = np.random.default_rng(seed)
    p = np.round(random.random((2, 4)) ** 3, 2)  # ties too
    p[0, seed % 4] = np.nan
    actual = inference.holm(p)
    for index, value in np.ndenumerate(p):
        if np.isnan(value):
            assert np.isnan(actual[index])
            continue
        rest = np.sort(p[~np.isnan(p)])
        wanted = max((len(rest) - j) * rest[j] for j in range(len(rest)) if rest[j] <= value)
        assert actual[index] == pytest.approx(min(1, wanted))


# --------------------------------------------------------------------------------------------
# Flips and McNemar.


def with_flips(to_right, to_wrong, num_rows):
    """Return two models with these numbers of changes."""
    numbers = [to_right, to_wrong, num_rows - to_right - to_wrong]
    right = np.repeat([[0, 1], [1, 0], [1, 1]], numbers, axis=0)
    return [np.stack([2.0 * hit, 2.0 - 2 * hit], 1).astype(np.float32) for hit in right.T]


def test_mcnemar_against_the_binomial_test():
    for to_right, to_wrong in [*itertools.product((0, 1, 5), (0, 2, 5)), (3, 11), (700, 790)]:
        total, fewer = to_right + to_wrong, min(to_right, to_wrong)
        num_rows = max(17, total)
        models = with_flips(to_right, to_wrong, num_rows)
        actual = inference.mcnemar(*models, np.zeros(num_rows, int))
        assert actual[:2] == (to_right, to_wrong)
        exact = stats.binomtest(to_right, total).pvalue if total else 1
        assert actual.p_value == pytest.approx(exact, rel=1e-9)
        twice = 2 * stats.binom(total, 0.5).cdf(fewer) - stats.binom(total, 0.5).pmf(fewer)
        assert actual.mid_p == pytest.approx(min(1, twice), rel=1e-9)


def test_flips_are_counted_example_by_example():
    a, b, labels, _ = data()
    counts = np.arange(60) % 3
    pairs = zip(a.argmax(1), b.argmax(1), labels, counts, strict=True)
    wanted = np.zeros(4, int)
    for x, y, label, count in pairs:
        kinds = (x != label == y, x == label != y, x != y and label not in (x, y), x == y)
        wanted += count * np.array(kinds)
    a[counts == 0], labels = np.nan, np.where(counts > 0, labels, 9)
    actual = inference.flips(a, b, labels, counts)
    assert tuple(actual) == tuple(wanted)
    assert inference.mcnemar(a, b, labels, counts)[:2] == actual[:2]
    assert actual.share == pytest.approx(1 - wanted[3] / counts.sum())
    assert inference.flips(b, a, labels, counts)[:2] == actual[1::-1]


# --------------------------------------------------------------------------------------------
# The ECE.


def bounds_of_noise(logits, labels, counts, num_bins, equal_mass):
    """Return the ECE, and by bin the noise in every row of multiplicities and the certain signs."""
    p = softmax(logits.astype(float))
    residual = p.max(1) - (p.argmax(1) == labels)
    spread = p.max(1) * (1 - p.max(1))
    index, n = np.ceil(num_bins * p.max(1)) - 1, len(labels)
    rank = stats.rankdata(p.max(1))  # the example of rank k covers the mass from k - 1 to k
    ece, noise, signs = 0, [], []
    for b in range(num_bins):
        share = (index == b).astype(float)
        if equal_mass:
            above = np.maximum(rank - 1, n * b / num_bins)
            share = np.maximum(0, np.minimum(rank, n * (b + 1) / num_bins) - above)
        r = share * residual
        mean = r.sum() / max(1, share.sum())
        gap = r.mean()
        drawn = (counts - 1) @ r / n
        v = max((share**2) @ spread, (share**2) @ (residual - mean) ** 2) / n**2
        if r.any():
            drawn *= np.sqrt(v / (((r - gap) ** 2).sum() / n**2))
        certain = abs(gap) > np.sqrt(np.log(n) * v)
        ece += abs(gap)
        noise.append(drawn)
        signs.append(np.sign(gap) if certain else 0)
    return ece, np.array(noise), np.array(signs)


def ends_of_difference(runs_a, runs_b):
    """Return the value and the ends, where a sign that is not certain is the worse of both."""
    value = np.mean([run[0] for run in runs_b]) - np.mean([run[0] for run in runs_a])
    (a, sign_a), (b, sign_b) = (
        (np.concatenate([run[1] for run in runs]) / len(runs), np.hstack([run[2] for run in runs]))
        for runs in (runs_a, runs_b)
    )

    def reach(up, sign_up, down, sign_down):
        most = sum(s * e if s else abs(e) for s, e in zip(sign_up, up, strict=True))
        signs = [s or -np.sign(np.cov(most, e)[0, 1]) for s, e in zip(sign_down, down, strict=True)]
        return np.quantile(most - np.array(signs) @ down, 0.95)

    return [value, value - reach(b, sign_b, a, sign_a), value + reach(a, sign_a, b, sign_b)]


@pytest.mark.parametrize(("num_bins", "equal_mass"), [(5, False), (7, True)])
def test_the_interval_of_an_ece_difference_against_loops(num_bins, equal_mass):
    """60 examples in 7 bins of equal mass: examples at the boundaries are split."""
    a, b, labels, _ = data()
    counts = np.random.default_rng(1).multinomial(60, np.full(60, 1 / 60), 4000)
    of_a, of_b = (bounds_of_noise(z, labels, counts, num_bins, equal_mass) for z in (a, b))
    options = {"num_bins": num_bins, "equal_mass": equal_mass}
    actual = inference.compare_ece(a, b, labels, key=KEY, num_resamples=4000, **options)
    np.testing.assert_allclose(actual[3:], [of_a[0], of_b[0]], atol=1e-6)
    np.testing.assert_allclose(actual[:3], ends_of_difference([of_a], [of_b]), atol=0.015)


# --------------------------------------------------------------------------------------------
# Runs, laws of all, bad input.


def test_several_runs_have_the_mean_error():
    a, b, labels, cluster = data()
    for grouped in (False, True):
        clusters = cluster if grouped else None
        one = inference.compare_calibration(a, b, labels, num_bins=5, clusters=clusters)
        copies = inference.compare_calibration(
            [a, a, a], [b, b], labels, num_bins=5, clusters=clusters
        )
        # Without clusters, the variance of a single run is at least that of a calibrated model.
        tolerance = 1e-9 if grouped else 0.003
        np.testing.assert_allclose(np.hstack(copies), np.hstack(one), atol=tolerance)
        c = a[:, ::-1]
        two = inference.compare_calibration(a, [b, c], labels, num_bins=5, clusters=clusters)
        other = inference.compare_calibration(a, c, labels, num_bins=5, clusters=clusters)
        assert two.value == pytest.approx((one.value + other.value) / 2, abs=1e-12)
        mean = (one.error_b.value + other.error_b.value) / 2
        assert two.error_b.value == pytest.approx(mean, abs=1e-12)
    same = inference.compare_calibration([a, b], [b, a], labels)
    assert (same.value, same.p_value) == (0, 1)


def test_the_interval_of_several_runs_against_loops():
    a, b, labels, _ = data()
    runs = [a, b, a[:, ::-1]]
    counts = np.random.default_rng(1).multinomial(60, np.full(60, 1 / 60), 4000)
    of_a, *others = (bounds_of_noise(z, labels, counts, 5, equal_mass=False) for z in runs)
    change = inference.compare_ece(
        runs[0], runs[1:], labels, key=KEY, num_resamples=4000, num_bins=5
    )
    np.testing.assert_allclose(change[:3], ends_of_difference([of_a], others), atol=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [2, 10])
@pytest.mark.parametrize("equal_mass", [False, True])
def test_coverage_of_the_ece_difference(num_classes, equal_mass):
    """Check 400 sets of 1,000 rows: T = 1 against 1.15, and 1.3 against 1.5.

    These models are too sure at every confidence, so that the true error is the same in all bins.
    """
    random = np.random.default_rng(12)
    many, _, truth = simulated(random, 100_000, num_classes)
    errors = {}
    for beta in (1.0, 1.15, 1.3, 1.5):
        p = softmax(beta * many.astype(float))
        gap = p.max(1) - truth.max(1)
        errors[beta] = abs(np.bincount(np.ceil(15 * p.max(1)).astype(int), gap)).sum() / 100_000
    for low, high in ((1.0, 1.15), (1.3, 1.5)):
        wanted, inside = errors[high] - errors[low], 0
        for trial in range(400):
            logits, labels, _ = simulated(random, 1000, num_classes)
            scaled = (np.float32(low) * logits, np.float32(high) * logits)
            options = {"num_resamples": 200, "equal_mass": equal_mass}
            change = inference.compare_ece(*scaled, labels, key=jax.random.key(trial), **options)
            inside += change.low <= wanted <= change.high
        assert inside >= 400 * 0.88


def pilot(num_rows=2000, num_classes=5, seed=0):
    random = np.random.default_rng(seed)
    z = 2 * random.normal(size=(num_rows, num_classes))
    return z, (z + random.gumbel(size=z.shape)).argmax(axis=1)


def test_as_many_rows_as_needed_detect_an_ece_with_the_power():
    """Draw the gaps of a calibrated model and of one whose confidences are too high by .06."""
    random = np.random.default_rng(1)
    confidence = random.uniform(0.5, 1, 1000).astype(np.float32)
    model = metrics.Stated(confidence, random.random(1000) < confidence)
    for size, power in ((0.05, 0.8), (0.2, 0.6)):
        rows = inference.rows_needed(model, ece=0.06, size=size, power=power).ece
        members = np.eye(15)[np.ceil(15 * confidence).astype(int) - 1]
        noise = random.standard_normal((20_000, 15)) / np.sqrt(rows)
        deviations = [
            np.sqrt((c * (1 - c)) @ members / 1000) for c in (confidence, confidence - 0.06)
        ]
        threshold = np.quantile(np.abs(noise * deviations[0]).sum(1), 1 - size)
        found = np.abs(0.06 * members.mean(0) + noise * deviations[1]).sum(1) > threshold
        assert np.mean(found) == pytest.approx(power, abs=0.02)


def test_the_rows_of_differences_and_of_temperatures_follow_their_formulas():
    z, y = pilot()
    other = z + np.random.default_rng(2).normal(size=z.shape)
    rows = inference.rows_needed(z, y, other=other, error_difference=0.02, temperature=0.1)
    apart = np.mean((z.argmax(1) == y) != (other.argmax(1) == y))
    effect = scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)
    assert rows.error_difference == np.ceil(effect**2 * ((apart + 0.02) / 0.02**2 - 1))
    accuracy = np.mean(z.argmax(1) == y)
    of_independent = 2 * accuracy * (1 - accuracy)
    alone = inference.rows_needed(z, y, error_difference=0.02)
    assert alone.error_difference == np.ceil(effect**2 * ((of_independent + 0.02) / 0.02**2 - 1))
    # Two squared errors, one of them .02^2: the confidences of the first are .02 too high.
    members, means, residuals = [], [], []
    for logits in (z, other):
        p = softmax(logits)
        members.append(np.eye(15)[np.ceil(15 * p.max(1)).astype(int) - 1])
        residuals.append(p.max(1) - (p.argmax(1) == y))
        size = np.maximum(members[-1].sum(0), 1)
        means.append((p.max(1) * (1 - p.max(1))) @ members[-1] / size)
    of_both = (members[0] * (residuals[0] * residuals[1])[:, None]).T @ members[1]
    sizes = np.outer(*(np.maximum(of_model.sum(0), 1) for of_model in members))
    shared = np.sum(of_both**2 / sizes)
    own = [np.sum(of_model**2) for of_model in means]
    for n, degenerate in ((alone, 2 * own[0]), (rows, own[0] + own[1] - 2 * shared)):
        n = n.ece_difference
        accuracy = softmax(z).max(1) - 0.02
        linear = 4 * 0.02**2 * np.mean(accuracy * (1 - accuracy))
        variance = linear / n + 2 * degenerate / n**2
        assert effect * np.sqrt(variance) == pytest.approx(0.02**2, rel=2 / n)

    # At the fitted T the variance of log T is that of the score over its mean derivative, squared.
    def slope(t):
        return np.mean((softmax(z / t) * z).sum(1) - z[np.arange(len(y)), y])

    t = scipy.optimize.brentq(slope, 0.5, 2)
    z, p = z / t, softmax(z / t)
    bend = np.mean((p * z**2).sum(1) - (p * z).sum(1) ** 2)
    deviation = np.std((p * z).sum(1) - z[np.arange(len(y)), y]) / bend
    expected = (scipy.stats.norm.ppf(0.95) * deviation / np.log(1.1)) ** 2
    assert rows.temperature == np.ceil(expected)


def test_a_certain_model_needs_enough_rows_to_see_an_error():
    certain = metrics.Stated(np.ones(300), np.ones(300, int))
    rows = inference.rows_needed(certain, ece=0.01, temperature=0.1)
    assert rows.ece == np.ceil(np.log(0.2) / np.log(0.99))
    assert rows.temperature is None
    effect = scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)
    assert rows.ece_difference == np.ceil(effect**2 * 4 * 0.02 * 0.98 / 0.02**2)
    impossible = np.tile([2.0, 0.0, -np.inf], (100, 1))
    assert inference.rows_needed(impossible, np.arange(100) % 2).temperature is None
    z, _ = pilot(40, 3)  # all right: the residuals at low temperatures are 0 but for rounding
    assert inference.rows_needed(z, z.argmax(axis=1)).temperature is None


def test_ranks_are_those_of_paired_tests_with_holm():
    z, y = pilot(300)
    random = np.random.default_rng(3)
    models = {str(noise): z + noise * random.normal(size=z.shape) for noise in (2.0, 0.0, 0.3, 0.1)}
    loss = {
        name: scipy.special.logsumexp(m, axis=1) - m[np.arange(300), y]
        for name, m in models.items()
    }
    names = sorted(loss, key=lambda name: loss[name].mean())
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    p = np.array([scipy.stats.ttest_rel(loss[a], loss[b]).pvalue for a, b in pairs])
    adjusted = inference.holm(p)
    apart = {frozenset(pair) for pair, p in zip(pairs, adjusted, strict=True) if p <= 0.05}
    assert 0 < len(apart) < len(pairs)
    found = inference.ranks(models, y)
    assert [rank.name for rank in found] == names
    for place, rank in enumerate(found):
        better = sum(frozenset((rank.name, name)) in apart for name in names[:place])
        worse = sum(frozenset((rank.name, name)) in apart for name in names[place + 1 :])
        tied = tuple(n for n in names if n != rank.name and frozenset((rank.name, n)) not in apart)
        assert rank[4:] == (1 + better, 4 - worse, tied)
        low, high = scipy.stats.t.interval(
            0.9, 299, loss[rank.name].mean(), scipy.stats.sem(loss[rank.name])
        )
        np.testing.assert_allclose(rank[1:4], (loss[rank.name].mean(), low, high), rtol=1e-5)


def test_copies_in_clusters_leave_the_ranks_unchanged():
    z, y = pilot(100)
    models = {"a": z, "b": z + np.random.default_rng(4).normal(size=z.shape)}
    once = inference.ranks(models, y, score="brier")
    copies = {name: np.repeat(m, 3, axis=0) for name, m in models.items()}
    rows = np.repeat(np.arange(100), 3)
    again = inference.ranks(copies, y[rows], score="brier", clusters=rows)
    for one, other in zip(once, again, strict=True):
        assert one[4:] == other[4:]
        np.testing.assert_allclose(one[1:4], other[1:4], rtol=1e-6)


def test_uncertain_signs_are_those_that_vary_the_difference_most():
    random = np.random.default_rng(1)
    noise = random.standard_normal((200, 3))
    other = 5 + noise @ [1.0, -1.0, 1.0] + random.standard_normal(200)
    least = compare._least(noise, np.ones(3), np.array([False, False, True]), other)
    signs = [np.array([a, b, 1]) for a in (-1, 1) for b in (-1, 1)]
    most = max(np.var(other - noise @ sign) for sign in signs)
    np.testing.assert_allclose(np.var(other - least), most, rtol=1e-9)
