"""The bootstrap: its resamples, its values, its intervals, and what it refuses."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calib_jax import inference, metrics
from calib_jax.inference.resamples import prepared_terms, resampling
from calib_jax.metrics.contract.terms import ClassGaps
from tests.metrics.laws import assert_same

SEVERAL = {
    name: metrics.named(name)
    for name in (
        *("accuracy", "nll", "brier", "ece", "mce", "adaptive_ece", "classwise_ece"),
        *("per_class_ece", "top_k", "aurc", "classwise_reliability", "confusion_counts"),
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


def counts(num_rows, num_keys, classes=None, seed=0):
    """Return the multiplicities of some resamples."""
    keys = jax.random.split(jax.random.key(seed), num_keys)
    return np.asarray(multiplicities(keys, num_rows, classes))


multiplicities = jax.jit(resampling.multiplicities, static_argnums=1)


def resampled_counts(key, num_rows, num_resamples, classes=None):
    """Return the multiplicities of a multinomial bootstrap, resample by resample."""
    numbers = jnp.arange(-(-num_resamples // resampling.PER_KEY))
    keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
    drawn = resampling.in_order(multiplicities(keys, num_rows, classes))
    return np.asarray(drawn)[:num_resamples]


@pytest.mark.parametrize("num_rows", [1, 2, 7, 1000])
def test_a_multinomial_resample_has_as_many_examples(num_rows):
    drawn = counts(num_rows, num_keys=25)
    assert drawn.shape == (100, num_rows)
    np.testing.assert_array_equal(drawn.sum(1), num_rows)
    assert drawn.min() >= 0


def test_multiplicities_have_the_distribution_of_index_resampling():
    """Check how often an example occurs 0, 1, 2, ... times, by a chi-squared test."""
    num_rows = 400
    drawn = counts(num_rows, num_keys=125)
    occurs = np.bincount(drawn.astype(int).ravel(), minlength=7)
    law = stats.binom(num_rows, 1 / num_rows)
    expected = drawn.size * np.append(law.pmf(np.arange(6)), law.sf(5))
    observed = np.append(occurs[:6], occurs[6:].sum())
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4
    # No place in the order is preferred, and resamples do not resemble each other.
    assert stats.chisquare(drawn.sum(0)).pvalue > 1e-4
    correlation = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(correlation).max() < 6 / np.sqrt(num_rows)


def test_a_large_total_is_still_drawn_without_preference():
    """Check the filling draws, which multiply 32 bits by a bound above 2**16."""
    bits = np.array([0, 1, 2**31, 2**32 - 1, 123456789], np.uint32)
    for bound in (1, 3, 65535, 65536, 65537, 10**6, 2**31 - 1):
        expected = bits.astype(np.uint64) * bound >> 32
        np.testing.assert_array_equal(resampling._below(bound, jnp.asarray(bits)), expected)


def test_by_class_keeps_the_size_of_every_class():
    classes = np.array([2, 0, 0, 1, 2, 2, 0, 2] * 5)
    drawn = counts(40, num_keys=20, classes=jnp.asarray(classes))
    for k, size in enumerate(np.bincount(classes)):
        np.testing.assert_array_equal(drawn[:, classes == k].sum(1), size)
    within = drawn[:, classes == 0].sum(0)
    assert stats.chisquare(within).pvalue > 1e-4


@pytest.mark.parametrize("weighted", [False, True])
def test_samples_are_the_metrics_of_the_resampled_data(weighted):
    """Check every metric against itself with the multiplicities as weights."""
    logits, labels = sample()
    own = np.random.default_rng(1).choice([0.0, 1.0, 2.5], 120).astype(np.float32)
    weights = own if weighted else None
    samples = inference.bootstrap(
        SEVERAL, logits, labels, weights, key=jax.random.key(3), num_resamples=4
    )
    kept = own > 0 if weighted else np.ones(120, bool)
    drawn = resampled_counts(jax.random.key(3), int(kept.sum()), 4)
    for i, multiplicity in enumerate(drawn):
        weight = np.zeros(120, np.float32)
        weight[kept] = multiplicity * (own[kept] if weighted else 1)
        expected = each_value(logits, labels, weight)
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], samples), expected)


@jax.jit
def each_value(logits, labels, weights):
    """Compute every metric by itself, in one program."""
    return {
        name: metric.value(metric.stat(logits, labels, weights)) for name, metric in SEVERAL.items()
    }


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


def test_chunks_change_nothing():
    logits, labels = sample()
    one, many = (
        inference.bootstrap(
            metrics.ece, logits, labels, key=jax.random.key(0), num_resamples=37, max_bytes=size
        )
        for size in (1, 2**28)
    )
    assert one.shape == (37,)
    np.testing.assert_allclose(one, many, rtol=1e-5)
    assert len(np.unique(np.asarray(one))) > 30


@pytest.mark.parametrize("option", ["by_class", "clusters"])
def test_absent_rows_change_no_resample_and_sets_share_a_program(option):
    logits, labels = sample(num_rows=600)
    ids = np.arange(600) // 3
    several = {name: metrics.named(name) for name in ("nll", "adaptive_ece")}

    def samples(rows, weights=None):
        options = {"by_class": True, "clusters": ids[rows]}
        few = {"key": jax.random.key(3), "num_resamples": 4, option: options[option]}
        return inference.bootstrap(several, logits[rows], labels[rows], weights, **few)

    kept, everything = np.arange(600) % 7 < 4, np.arange(600)
    logits[~kept] = np.nan
    assert_same(samples(everything, kept.astype(np.float32)), samples(np.flatnonzero(kept)))
    programs = sys.modules["calib_jax.inference.resamples.bootstrap"]._samples
    before = programs._cache_size()
    samples(everything, (kept & (ids > 10)).astype(np.float32))
    assert programs._cache_size() == before


def test_values_that_are_trees():
    logits, labels = sample()
    samples = inference.bootstrap(
        metrics.per_class_ece, logits, labels, key=jax.random.key(0), num_resamples=10
    )
    assert samples.shape == (10, 4)
    low, high = inference.interval(samples)
    assert low.shape == high.shape == (4,)
    assert np.all(low <= high)


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


def test_estimates_report_the_value_of_the_data():
    logits, labels = sample()
    actual = inference.estimates(
        {"ece": metrics.ece, "nll": metrics.nll}, logits, labels, key=jax.random.key(0)
    )
    for name, metric in {"ece": metrics.ece, "nll": metrics.nll}.items():
        np.testing.assert_allclose(actual[name].value, metric(logits, labels), rtol=1e-6)
    samples = inference.bootstrap(metrics.nll, logits, labels, key=jax.random.key(0))
    np.testing.assert_allclose(actual["nll"][1:3], inference.interval(samples), rtol=1e-6)
    # The mean of resampled ECEs lies above the value, which is why it is not what is reported.
    assert jnp.mean(inference.bootstrap(metrics.ece, logits, labels, key=jax.random.key(0))) > (
        actual["ece"].value
    )


def test_estimates_of_binned_errors_have_a_noise_bound():
    data, key = sample(), jax.random.key(0)
    several = {"ece": metrics.ece, "nll": metrics.nll, "sce": metrics.classwise_ece}
    estimates = inference.estimates(several, *data, key=key, num_resamples=10)
    assert list(estimates) == list(several)
    for name in ("ece", "sce"):
        estimate, bound = (
            estimates[name],
            inference.noise_bound(several[name], *data, key=key, num_resamples=20),
        )
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
    actual = inference.paired_bootstrap(several, logits, cooler, labels, key=key)
    # The temperature changes no prediction: an exact 0, with certainty.
    assert actual["accuracy"].value == actual["accuracy"].low == actual["accuracy"].high == 0
    assert actual["accuracy"].p_value == 1
    nll = actual["nll"]
    assert nll.value == pytest.approx(metrics.nll(cooler, labels) - metrics.nll(logits, labels))
    assert nll.low < nll.value < nll.high < 0
    assert nll.p_value < 0.1  # as the interval of level 0.9 says
    # Both saw the same resamples: the interval is that of the mean of the differences.
    rows = jax.vmap(lambda z, y: metrics.nll.stat(z[None], y[None])["loss"])
    difference = np.asarray(rows(cooler, labels) - rows(logits, labels))
    error = difference.std() / np.sqrt(400)
    np.testing.assert_allclose(np.std(nll.samples), error, rtol=0.1)
    swapped = inference.paired_bootstrap(metrics.nll, cooler, logits, labels, key=key)
    np.testing.assert_allclose(swapped.value, -nll.value, rtol=1e-5)
    np.testing.assert_allclose(swapped.p_value, nll.p_value)


@pytest.mark.parametrize("method", ["percentile", "basic"])
def test_the_p_value_belongs_to_the_interval(method):
    """Check that the interval of level 1 - p just touches 0."""
    logits, labels = sample(num_rows=100)
    noise = np.random.default_rng(5).standard_normal(logits.shape).astype(np.float32)
    noisy = (logits + 0.3 * noise) / 1.35  # a little worse, a little better calibrated
    kind = {"key": jax.random.key(2), "num_resamples": 999, "method": method}
    actual = inference.paired_bootstrap(metrics.nll, logits, noisy, labels, **kind)
    p = float(actual.p_value)
    assert 0.03 < p < 0.97
    inside, outside = (
        inference.interval(actual.samples, level, method=method, estimate=actual.value)
        for level in (1 - p + 0.02, 1 - p - 0.02)
    )
    assert inside.low < 0 < inside.high
    assert not outside.low < 0 < outside.high


def test_samples_without_a_value_belong_to_no_tail():
    """Of the samples that have a value, as if the others had not been drawn."""
    random = np.random.default_rng(0)
    some = random.standard_normal(40).astype(np.float32) + 1
    with_nan = np.concatenate([some, np.full(60, np.nan, np.float32)])
    for method in ("percentile", "basic"):
        wanted, actual = (
            inference.difference(
                (jnp.float32(0), 0 * samples), (jnp.float32(1), samples), method=method
            )
            for samples in (some, with_nan)
        )
        assert actual.p_value == wanted.p_value
        assert 0 < actual.p_value < 1
        np.testing.assert_array_equal((actual.low, actual.high), (wanted.low, wanted.high))


def test_a_difference_without_any_value_has_no_p_value():
    logits, labels = sample(num_rows=20)
    actual = inference.paired_bootstrap(
        metrics.ood_auroc,
        *(logits, 2 * logits, 0 * labels),  # nothing is out of distribution
        key=jax.random.key(0),
        num_resamples=4,
    )
    for field in actual[:4]:
        assert np.isnan(field)


def test_infinite_samples_are_the_ends_of_the_interval():
    samples = np.concatenate([np.arange(10.0), np.full(10, np.inf)]).astype(np.float32)
    low, high = inference.interval(samples, level=0.9)
    assert low == pytest.approx(np.quantile(np.arange(20), 0.05))
    assert high == np.inf
    # The upper quantile is exactly the fourth sample, where the linear rule gives inf x 0.
    assert inference.interval(np.float32([0, 1, np.inf, np.inf, np.inf]), level=0.5) == (1, np.inf)


@pytest.mark.slow
def test_a_true_class_of_probability_zero_is_infinite_where_it_is_drawn():
    logits, labels = sample(num_rows=30)
    logits[3, labels[3]] = -np.inf
    several = {"nll": metrics.nll, "by_correctness": metrics.by_correctness, "ece": metrics.ece}
    key = jax.random.key(3)
    samples = inference.bootstrap(several, logits, labels, key=key, num_resamples=16)
    drawn = resampled_counts(key, 30, 16)
    np.testing.assert_array_equal(np.isinf(samples["nll"]), drawn[:, 3] > 0)
    np.testing.assert_array_equal(np.isinf(samples["by_correctness"].wrong.nll), drawn[:, 3] > 0)
    assert 0 < (drawn[:, 3] > 0).sum() < 16
    for leaf in jax.tree.leaves(samples):
        assert not np.isnan(leaf).any()
    finite = drawn[:, 3] == 0
    others = np.delete(logits, 3, axis=0), np.delete(labels, 3)
    loss = [metrics.nll.value(metrics.nll.stat(*others, np.delete(w, 3))) for w in drawn[finite]]
    np.testing.assert_allclose(samples["nll"][finite], loss, rtol=1e-5)


def test_models_of_one_shape_share_a_program():
    """Ten models of different sharpness: the metric is traced once for all of them."""
    traces = []

    def counted(sums):
        traces.append(1)
        return metrics.classwise_ece.finish(sums)

    declared = metrics.classwise_ece.function
    metric = metrics.Metric(declared, metrics.classwise_ece.prepare, counted)
    logits, labels = sample(num_rows=64, num_classes=10)
    for scale in np.geomspace(0.5, 8, 10).astype(np.float32):
        inference.bootstrap(metric, scale * logits, labels, key=jax.random.key(0), num_resamples=2)
    assert len(traces) == 1


def test_larger_models_share_a_program_unless_they_are_nearly_flat():
    random = np.random.default_rng(0)
    logits = jnp.asarray(random.standard_normal((8192, 10)), jnp.float32)
    labels = jnp.zeros(8192, jnp.int32)
    sizes = [
        len(prepared_terms.large_entries(ClassGaps(jax.nn.softmax(scale * logits), labels, 30)).row)
        // 8192
        for scale in (0.1, 1, 3, 5, 10, 20, 40)
    ]
    assert sizes == [10, 8, 4, 4, 2, 2, 2]


def test_infinite_and_huge_weights_are_refused():
    logits, labels = sample(num_rows=20)
    weights = np.ones(20, np.float32)
    for wrong, sentence in ((np.inf, "1 of 20 weights are .*infinite"), (1e38, "weights sum to")):
        weights[2] = wrong
        with pytest.raises(ValueError, match=sentence):
            metrics.nll(logits, labels, weights)
        with pytest.raises(ValueError, match=sentence):
            inference.bootstrap(metrics.nll, logits, labels, weights, key=jax.random.key(0))


def test_refusals():
    logits, labels = sample(num_rows=20)
    key = jax.random.key(0)
    with pytest.raises(ValueError, match=r"level must be a fraction between 0 and 1, got 90"):
        inference.estimates(metrics.ece, logits, labels, key=key, level=90)
    with pytest.raises(ValueError, match="method must be one of 'percentile', 'basic', got 'bca'"):
        inference.interval(jnp.zeros(3), method="bca")
    with pytest.raises(ValueError, match="give estimate="):
        inference.interval(jnp.zeros(3), method="basic")
    with pytest.raises(ValueError, match="num_resamples must be at least 1, got 0"):
        inference.bootstrap(metrics.ece, logits, labels, key=key, num_resamples=0)
    for wrong, message in (
        ({"max_bytes": 0}, "max_bytes must be at least 1, got 0"),
        ({"num_resamples": -5}, "num_resamples must be at least 1, got -5"),
        ({"num_resample": 5}, "unexpected keyword argument 'num_resample'|has no option"),
    ):
        for metric in (metrics.ece, metrics.nll):  # with a noise bound, and without one
            for draw in (inference.estimates, inference.bootstrap):
                with pytest.raises((ValueError, TypeError), match=message):
                    draw(metric, logits, labels, key=key, **wrong)
            with pytest.raises((ValueError, TypeError), match=message):
                inference.paired_bootstrap(metric, logits, logits, labels, key=key, **wrong)
    with pytest.raises(TypeError, match="metrics must be a metric or a mapping"):
        inference.bootstrap({}, logits, labels, key=key)
    with pytest.raises(TypeError, match="call it outside jit"):
        jax.jit(lambda z: inference.bootstrap(metrics.ece, z, labels, key=key))(logits)
    bad = logits.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="1 of 20 rows have NaN or infinite logits"):
        inference.bootstrap(metrics.ece, bad, labels, key=key)
    weights = np.ones(20, np.float32)
    weights[3] = 0
    samples = inference.bootstrap(metrics.ece, bad, labels, weights, key=key, num_resamples=3)
    assert np.isfinite(samples).all()
    with pytest.raises(ValueError, match="all 20 weights are 0"):
        inference.bootstrap(metrics.ece, logits, labels, np.zeros(20), key=key)


def test_estimates_are_shown_as_numbers():
    logits, labels = sample(num_rows=40)
    key = jax.random.key(0)
    shown = repr(inference.estimates(metrics.ece, logits, labels, key=key, num_resamples=20))
    assert re.fullmatch(
        r"Estimate\(value=0\.\d+, low=[\d.e-]+, high=0\.\d+, interval='noise bound',"
        r" floor=0\.\d+, p_value=[\d.]+\)",
        shown,
    )
    assert "floor" not in repr(inference.estimates(metrics.nll, logits, labels, key=key))


def test_resamples_of_one_value_are_no_interval():
    key = jax.random.key(0)
    logits, labels = np.float32(np.tile([2, 0], (50, 1))), np.zeros(50, int)
    several = {"brier": metrics.brier, "nll": metrics.nll}
    estimates = inference.estimates(several, logits, labels, key=key, num_resamples=50)
    for estimate in estimates.values():
        assert estimate.interval == "none"
        assert np.isnan([estimate.low, estimate.high]).all()
    kind = {"method": "percentile", "num_resamples": 50, "key": key}
    assert inference.estimates(metrics.accuracy, logits, labels, **kind)[1:4] == (
        1,
        1,
        "percentile",
    )
