"""How many rows a question needs, and which of several models differ."""

import jax
import numpy as np
import pytest
import scipy.stats

from calib_jax import inference, metrics


def pilot(num_rows=2000, num_classes=5, seed=0):
    random = np.random.default_rng(seed)
    z = 2 * random.normal(size=(num_rows, num_classes))
    return z, (z + random.gumbel(size=z.shape)).argmax(axis=1)


def stated(random, num_rows, gap):
    confidence = random.uniform(0.5, 1, num_rows).astype(np.float32)
    return metrics.Stated(confidence, random.random(num_rows) < confidence - gap)


def test_as_many_rows_as_needed_detect_an_ece_and_a_difference_of_eces():
    random = np.random.default_rng(1)
    rows = inference.rows_needed(stated(random, 1000, 0), ece=0.06, ece_difference=0.12)
    found, told = [], []
    for seed in range(200):
        model, options = stated(random, rows.ece, 0.06), {"key": jax.random.key(seed)}
        bound = inference.noise_bound(metrics.ece, model, num_resamples=199, **options)
        found.append(bound.p_value <= 0.05)
        a, b = (stated(random, rows.ece_difference, gap) for gap in (0.12, 0))
        told.append(inference.compare_calibration(a, b).p_value <= 0.05)
    # The standard error of a share of .8 is .03.
    assert 0.7 < np.mean(found) < 0.9
    assert 0.65 < np.mean(told) < 0.95


def test_the_rows_of_error_rates_and_of_temperatures_follow_their_formulas():
    z, y = pilot()
    other = z + np.random.default_rng(2).normal(size=z.shape)
    rows = inference.rows_needed(z, y, other=other, error_difference=0.02, temperature=0.1)
    apart = np.mean((z.argmax(1) == y) != (other.argmax(1) == y))
    effect = scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)
    assert rows.error_difference == np.ceil(effect**2 * ((apart + 0.02) / 0.02**2 - 1))
    accuracy = np.mean(z.argmax(1) == y)
    of_independent = 2 * accuracy * (1 - accuracy)
    alone = inference.rows_needed(z, y, error_difference=0.02).error_difference
    assert alone == np.ceil(effect**2 * ((of_independent + 0.02) / 0.02**2 - 1))
    # At T = 1 the variance of log T is that of the score over the squared mean of its derivative.
    p = np.exp(z - scipy.special.logsumexp(z, axis=1, keepdims=True))
    score = (p * z).sum(1) - z[np.arange(len(y)), y]
    bend = np.mean((p * z**2).sum(1) - (p * z).sum(1) ** 2)
    deviation = np.std(score) / bend
    expected = (scipy.stats.norm.ppf(0.95) * deviation / np.log(1.1)) ** 2
    assert rows.temperature == pytest.approx(expected, rel=0.1)  # the fitted T is not exactly 1


def test_a_certain_model_needs_enough_rows_to_see_an_error():
    certain = metrics.Stated(np.ones(300), np.ones(300, int))
    rows = inference.rows_needed(certain, ece=0.01, temperature=0.1)
    assert rows.ece == np.ceil(np.log(0.2) / np.log(0.99))
    assert rows.temperature is None


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
    z, y = pilot(200)
    models = {"a": z, "b": z + np.random.default_rng(4).normal(size=z.shape)}
    once = inference.ranks(models, y, score="brier")
    copies = {name: np.repeat(m, 3, axis=0) for name, m in models.items()}
    rows = np.repeat(np.arange(200), 3)
    again = inference.ranks(copies, y[rows], score="brier", clusters=rows)
    for one, other in zip(once, again, strict=True):
        assert one[4:] == other[4:]
        np.testing.assert_allclose(one[1:4], other[1:4], rtol=1e-6)
