"""The bootstrap: resamples of rows and of clusters, values, intervals, and what it refuses."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from scipy import stats

from calib_jax import inference, metrics
from calib_jax.inference import resampling
from calib_jax.inference.bootstrap import interpolation_error
from tests.metrics import assert_same

SEVERAL = {
    name: metrics.named(name)
    for name in (
        *("nll", "by_correctness", "ece", "adaptive_ece", "classwise_ece", "per_class_ece"),
        *("top_k", "aurc", "confusion_counts", "auroc", "kde_calibration_error"),
    )
}


def sample(num_rows=120, num_classes=4, seed=0):
    """Return logits and labels that are somewhat overconfident."""
    random = np.random.default_rng(seed)
    logits = 2 * random.standard_normal((num_rows, num_classes))
    p = np.exp(logits / 1.5)
    p /= p.sum(-1, keepdims=True)
    labels = (p.cumsum(-1) < random.random((num_rows, 1))).sum(-1)
    return logits.astype(np.float32), np.minimum(labels, num_classes - 1)


def losses(logits, labels):
    """Return the NLL of each row."""
    return -scipy.special.log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


def resampled_counts(key, num_rows, num_resamples, classes=None):
    """Return the multiplicities of a multinomial bootstrap, resample by resample."""
    num_keys = -(-num_resamples // resampling.PER_KEY)
    parts = resampling.drawn(key, 0, num_keys, num_rows, num_rows, classes)
    return np.concatenate(parts)[:num_resamples]


def test_multiplicities_have_the_distribution_of_index_resampling():
    """Check how often an example occurs 0, 1, 2, ... times, by a chi-squared test."""
    for num_rows in (1, 400):
        drawn = resampled_counts(jax.random.key(0), num_rows, 500)
        assert drawn.shape == (500, num_rows)
        np.testing.assert_array_equal(drawn.sum(1), num_rows)
    assert drawn.min() >= 0
    occurs = np.bincount(drawn.astype(int).ravel(), minlength=7)
    law = stats.binom(num_rows, 1 / num_rows)
    expected = drawn.size * np.append(law.pmf(np.arange(6)), law.sf(5))
    observed = np.append(occurs[:6], occurs[6:].sum())
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4
    # No place in the order is preferred, and resamples do not resemble each other.
    assert stats.chisquare(drawn.sum(0)).pvalue > 1e-4
    correlation = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(correlation).max() < 6 / np.sqrt(num_rows)


def test_draws_below_a_bound_are_exact():
    """Also for more rows than 16 bits number."""
    bits = np.random.default_rng(0).integers(0, 2**32, 500, dtype=np.uint32)
    for bound in (1, 400, 2**16 - 1, 2**16 + 1, 3_000_007, 2**31 - 1):
        exact = (bits.astype(np.uint64) * np.uint64(bound)) >> np.uint64(32)
        np.testing.assert_array_equal(resampling._below(bound, jnp.asarray(bits)), exact)


def test_by_class_keeps_the_size_of_every_class():
    classes = np.array([2, 0, 0, 1, 2, 2, 0, 2] * 5)
    drawn = resampled_counts(jax.random.key(0), 40, 80, classes=jnp.asarray(classes))
    for k, size in enumerate(np.bincount(classes)):
        np.testing.assert_array_equal(drawn[:, classes == k].sum(1), size)
    within = drawn[:, classes == 0].sum(0)
    assert stats.chisquare(within).pvalue > 1e-4


def test_draws_are_the_same_with_64_bits_where_promotions_are_forbidden():
    for classes in (None, jnp.asarray([2, 0, 0, 1] * 10)):
        wanted = resampled_counts(jax.random.key(0), 40, 8, classes=classes)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
            actual = resampled_counts(jax.random.key(0), 40, 8, classes=classes)
        np.testing.assert_array_equal(actual, wanted)


def test_samples_are_the_metrics_of_the_resampled_data():
    """Check every metric against itself with the multiplicities as weights."""
    logits, labels = sample()
    own = np.random.default_rng(1).choice([0.0, 1.0, 2.5], 120).astype(np.float32)
    kept, few = own > 0, {"key": jax.random.key(3), "num_resamples": 4}
    drawn = np.zeros((4, 120), np.float32)
    drawn[:, kept] = resampled_counts(few["key"], int(kept.sum()), 4)
    sometimes = np.flatnonzero(np.sum(drawn > 0, axis=0) == 2)[0]
    for impossible in (False, True):
        if impossible:  # then the NLL is infinite where the row is drawn
            logits[sometimes, labels[sometimes]] = -np.inf
        samples = inference.bootstrap(SEVERAL, logits, labels, own, **few)
        for i, multiplicity in enumerate(drawn):
            expected = each_value(logits, labels, multiplicity * own)
            assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], samples), expected)
        infinite = (drawn[:, sometimes] > 0) & impossible
        np.testing.assert_array_equal(np.isinf(samples["nll"]), infinite)
        np.testing.assert_array_equal(np.isinf(samples["by_correctness"].wrong.nll), infinite)
        assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(samples))


@jax.jit
def each_value(logits, labels, weights):
    """Compute every metric by itself, in one program."""
    return {
        name: metric.value(metric.stat(logits, labels, weights)) for name, metric in SEVERAL.items()
    }


def test_an_interpolated_metric_has_an_error_of_one_over_the_number_of_examples():
    logits, labels = sample()
    error = metrics.refinement_nll.interpolation_error
    for weights, total in ((None, 120), (np.tile([0, 3], 60), 180)):
        evaluation = inference.Evaluation(logits, labels, weights)
        found = interpolation_error(metrics.refinement_nll, evaluation)
        assert found == pytest.approx(error / total + 2e-6)
        assert interpolation_error(metrics.ece, evaluation) == 0


def test_many_classes_take_the_sparse_way_to_the_same_values():
    logits, labels = sample(num_rows=50, num_classes=70)
    logits[:, 60] += 6  # large probabilities in a late class, and several a row
    samples = inference.bootstrap(
        metrics.per_class_ece, logits, labels, key=jax.random.key(0), num_resamples=2
    )
    drawn = resampled_counts(jax.random.key(0), 50, 2)
    metric = metrics.per_class_ece
    value = jax.jit(lambda weight: metric.value(metric.stat(logits, labels, weight)))
    for actual, weight in zip(samples, drawn, strict=True):
        expected = value(weight)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_absent_rows_change_no_resample_and_sets_share_a_program():
    logits, labels = sample(num_rows=600)
    ids = np.arange(600) // 3
    labels = labels[3 * ids]  # a class for each cluster
    several = {name: metrics.named(name) for name in ("nll", "adaptive_ece", "confusion_counts")}

    def samples(rows, weights=None):
        few = {"key": jax.random.key(3), "num_resamples": 4, "by_class": True}
        given = logits[rows], labels[rows], weights
        return inference.bootstrap(several, *given, clusters=ids[rows], **few)

    kept, everything = ids % 7 < 4, np.arange(600)
    logits[~kept] = np.nan
    drawn = samples(everything, kept.astype(np.float32))
    assert_same(drawn, samples(np.flatnonzero(kept)))
    counts, per_class = drawn["confusion_counts"], np.bincount(labels[kept], minlength=4)
    np.testing.assert_array_equal(counts.sum(axis=-1), np.tile(per_class, (4, 1)))
    assert len(np.unique(counts, axis=0)) > 1
    programs = sys.modules["calib_jax.inference.bootstrap"]._samples
    before = programs._cache_size()
    samples(everything, (kept & (ids > 10)).astype(np.float32))
    assert programs._cache_size() == before


def test_the_memory_changes_no_sample(monkeypatch):
    """Resamples are drawn and scored in groups of different sizes, the last of which is longer."""
    logits, labels = sample(num_rows=300)
    few = {"key": jax.random.key(5), "num_resamples": 22}
    both = {"ece": metrics.ece, "aurc": metrics.aurc}
    whole = inference.bootstrap(both, logits, labels, **few)
    assert len(np.unique(whole["aurc"])) == 22
    for max_bytes in (1, 3000):
        parts = inference.bootstrap(both, logits, labels, **few, max_bytes=max_bytes)
        assert_same(parts, whole)
    counts = resampling.resamples_on_host(few["key"], 300, 22)
    monkeypatch.setattr(resampling, "_ENTRIES", 4000)
    parts = resampling.resamples_on_host(few["key"], 300, 22)
    assert len(parts) > len(counts)
    np.testing.assert_array_equal(np.concatenate(parts), np.concatenate(counts))


def test_interval_is_a_quantile_of_the_samples():
    samples = np.random.default_rng(0).random((999, 2)).astype(np.float32)
    samples[0] = np.nan
    low, high = inference.interval(jnp.asarray(samples), level=0.8)
    np.testing.assert_allclose(low, np.quantile(samples[1:], 0.1, axis=0), rtol=1e-6)
    np.testing.assert_allclose(high, np.quantile(samples[1:], 0.9, axis=0), rtol=1e-6)
    estimate = jnp.asarray([0.5, 0.25])
    basic = inference.interval(jnp.asarray(samples), level=0.8, method="basic", estimate=estimate)
    np.testing.assert_allclose(basic.low, 2 * estimate - high, rtol=1e-6)
    np.testing.assert_allclose(basic.high, 2 * estimate - low, rtol=1e-6)


def test_estimates_of_binned_errors_have_a_noise_bound():
    data, key = sample(), jax.random.key(0)
    several = {"ece": metrics.ece, "nll": metrics.nll, "sce": metrics.classwise_ece}
    estimates = inference.estimates(several, *data, key=key, num_resamples=10)
    assert list(estimates) == list(several)
    for name in ("ece", "sce"):
        estimate = estimates[name]
        bound = inference.noise_bound(several[name], *data, key=key, num_resamples=20)
        assert estimate.interval == "noise bound"
        np.testing.assert_allclose(estimate[:3], bound[:3], rtol=1e-5)
        assert estimate[4:] == bound[3:]
    assert estimates["nll"].interval == "percentile"
    assert estimates["nll"].floor is estimates["nll"].p_value is None
    alone = inference.estimates(metrics.ece, *data, key=key, num_resamples=10)
    np.testing.assert_allclose(alone[:5:4], estimates["ece"][:5:4], rtol=1e-6)
    for options in ({"method": "basic"}, {"by_class": True}, {"weights": np.linspace(0.5, 1, 120)}):
        few = {"key": key, "num_resamples": 10, **options}
        estimate = inference.estimates(metrics.ece, *data, **few)
        assert estimate.interval == options.get("method", "percentile")
        assert estimate.floor is estimate.p_value is None
    with pytest.raises(TypeError, match="unexpected keyword argument 'resamples'"):
        inference.estimates(metrics.ece, *data, key=key, resamples=10)


def test_paired_differences():
    logits, labels = sample(num_rows=400)
    cooler = logits / 1.5
    key = jax.random.key(1)
    several = {"nll": metrics.nll, "accuracy": metrics.accuracy}
    draws = {"key": key, "num_resamples": 300}
    actual = inference.paired_bootstrap(several, logits, cooler, labels, **draws)
    # The temperature changes no prediction: an exact 0, with certainty.
    assert actual["accuracy"].value == actual["accuracy"].low == actual["accuracy"].high == 0
    assert actual["accuracy"].p_value == 1
    nll = actual["nll"]
    assert nll.value == pytest.approx(metrics.nll(cooler, labels) - metrics.nll(logits, labels))
    assert nll.low < nll.value < nll.high < 0
    assert nll.p_value < 0.11  # as the interval of level 0.9 says, and the data count as well
    # Both saw the same resamples: the interval is that of the mean of the differences.
    difference = losses(cooler, labels) - losses(logits, labels)
    error = difference.std() / np.sqrt(400)
    np.testing.assert_allclose(np.std(nll.samples), error, rtol=0.15)
    swapped = inference.paired_bootstrap(several, cooler, logits, labels, **draws)["nll"]
    np.testing.assert_allclose(swapped.value, -nll.value, rtol=1e-5)
    np.testing.assert_allclose(swapped.p_value, nll.p_value)
    # The interval of level 1 - p just touches 0.
    for method in ("percentile", "basic"):
        options = draws | {"method": method}
        near = inference.paired_bootstrap(several, cooler, logits / 1.4, labels, **options)["nll"]
        p = float(near.p_value)
        assert 0.03 < p < 0.97
        inside, outside = (
            inference.interval(near.samples, level, method=method, estimate=near.value)
            for level in (1 - p + 0.02, 1 - p - 0.02)
        )
        assert inside.low < 0 < inside.high
        assert not outside.low < 0 < outside.high
        if method == "percentile":
            tail = min(np.sum(near.samples <= 0), np.sum(near.samples >= 0))
            quantile = stats.norm.ppf((1 + tail) / (1 + 300)) * np.sqrt(399 / 400)
            np.testing.assert_allclose(p, 2 * stats.t(399).cdf(quantile), rtol=1e-6)


def test_infinite_samples_are_the_ends_of_the_interval():
    samples = np.concatenate([np.arange(10.0), np.full(10, np.inf)]).astype(np.float32)
    low, high = inference.interval(samples, level=0.9)
    assert low == pytest.approx(np.quantile(np.arange(20), 0.05))
    assert high == np.inf
    # The upper quantile is exactly the fourth sample, where the linear rule gives inf x 0.
    assert inference.interval(np.float32([0, 1, np.inf, np.inf, np.inf]), level=0.5) == (1, np.inf)


def test_resamples_of_one_value_are_no_interval():
    key = jax.random.key(0)
    logits, labels = np.float32(np.tile([2, 0], (50, 1))), np.zeros(50, int)
    several = {n: metrics.named(n) for n in ("brier", "nll", "signed_gap", "per_class_recall")}
    few = {"num_resamples": 50, "key": key}
    estimates = inference.estimates(several, logits, labels, **few)
    for estimate in [*estimates.values()][:3]:  # the gap is a difference of rounded sums
        assert estimate.interval == "none"
        assert np.isnan([estimate.low, estimate.high]).all()
    estimate = inference.estimates(metrics.accuracy, logits, labels, method="percentile", **few)
    assert estimate[1:4] == (1, 1, "percentile")
    logits[35:], labels[25:] = [0, 2], 1  # class 0 is always recalled, class 1 is not
    recall = inference.estimates(several, logits, labels, **few)["per_class_recall"]
    assert recall.interval == "percentile"
    assert recall.low[0] == recall.high[0] == 1
    assert recall.low[1] < 0.6 < recall.high[1]


@pytest.mark.parametrize("method", ["percentile", "basic"])
def test_intervals_and_differences_of_samples_under_jit_and_vmap(method):
    random = np.random.default_rng(0)
    one, other = random.normal(size=(2, 50, 3)).astype(np.float32)
    one[3, 0] = np.nan
    value = jnp.zeros(3)
    of = functools.partial(inference.interval, method=method, estimate=value)
    expected = of(one)
    mapped = jax.jit(jax.vmap(of))(jnp.stack([one, one]))
    for end, ends in zip(expected, mapped, strict=True):
        np.testing.assert_allclose(ends, np.stack([end, end]), rtol=1e-5)
    difference = functools.partial(inference.difference, method=method, error=1e-3)
    pairs = (value, jnp.asarray(one)), (value, jnp.asarray(other))
    for traced, eager in zip(jax.jit(difference)(*pairs), difference(*pairs), strict=True):
        np.testing.assert_allclose(traced, eager, rtol=1e-5)


KEY = jax.random.key(5)
NUM_CLUSTERS = 120
SIZES = np.random.default_rng(0).permutation(np.arange(NUM_CLUSTERS) % 8 + 1)  # 1 to 8 examples
ACCURACY = 0.7


def clustered(correlation, seed):
    """Return logits, labels, weights and clusters, with correlated hits within a cluster.

    With probability sqrt(correlation) an example has the hit of its cluster, else one of its own.
    """
    random = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(NUM_CLUSTERS), SIZES)
    shared = random.random(NUM_CLUSTERS)[cluster]
    takes_shared = random.random(len(cluster)) < np.sqrt(correlation)
    hit = np.where(takes_shared, shared, random.random(len(cluster))) < ACCURACY
    weights = random.choice([0.5, 1.0, 2.0], len(cluster)).astype(np.float32)
    logits = np.tile(np.float32([2, 0]), (len(cluster), 1))
    order = random.permutation(len(cluster))  # clusters need not be contiguous
    return logits, np.where(hit, 0, 1)[order], weights[order], cluster[order]


@pytest.mark.parametrize("correlation", [0.0, 1.0])
def test_the_spread_is_that_of_the_sums_of_clusters(correlation):
    """Check the standard deviation of a ratio against its linearised form, in NumPy."""
    *data, cluster = clustered(correlation, seed=1)
    _, labels, weights = data
    residual = weights * ((labels == 0) - np.average(labels == 0, weights=weights))
    wanted = np.sqrt((np.bincount(cluster, residual) ** 2).sum()) / weights.sum()
    samples = inference.bootstrap(metrics.accuracy, *data, key=KEY, clusters=cluster)
    np.testing.assert_allclose(np.std(samples), wanted, rtol=0.1)
