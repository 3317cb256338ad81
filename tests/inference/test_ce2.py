"""CE2 of several seeds: values against loops over pairs, and intervals by simulation."""

import numpy as np
import pytest
import scipy.stats

from calib_jax import inference
from calib_jax.inference import Value

BINS = 5


def slow_ce2(confidence, right, num_bins):
    """Average products of residuals over all pairs of examples of a bin, in a loop."""
    residual = confidence - right
    index = np.ceil(np.round(confidence * num_bins, 9))
    total = 0.0
    for b in np.unique(index):
        chosen = np.flatnonzero(index == b)
        pairs = [residual[i] * residual[j] for i in chosen for j in chosen if i != j]
        total += len(chosen) / len(index) * np.mean(pairs) if pairs else 0.0
    return total


def test_bins_of_equal_mass_keep_ties_together():
    confidence, right = drawn(seeds=1, rows=30)
    confidence = np.round(confidence, 1)
    edges = np.quantile(confidence[0], np.arange(1, BINS) / BINS)
    index = sum(confidence[0] > edge for edge in edges)
    residual, total = confidence[0] - right[0], 0.0
    for b in np.unique(index):
        chosen = residual[index == b]
        if len(chosen) > 1:
            outer = np.outer(chosen, chosen)
            off = outer[~np.eye(len(chosen), dtype=bool)]
            total += len(chosen) / 30 * off.mean()
    value = inference.ce2(confidence, right, num_bins=BINS, adaptive=True).value
    assert value == pytest.approx(total, rel=1e-12)


def drawn(seeds=3, rows=60, seed=0):
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.3, 1, (seeds, rows))
    return confidence, random.random((seeds, rows)) < confidence - 0.2


def test_values_are_means_of_all_pairs():
    first, second = drawn(), drawn(seed=1)
    slow = [
        np.mean([slow_ce2(c, r, BINS) for c, r in zip(*part, strict=True)])
        for part in (first, second)
    ]
    assert inference.ce2(*first, num_bins=BINS).value == pytest.approx(slow[0], rel=1e-12)
    difference = inference.ce2_difference(first, second, num_bins=BINS)
    assert difference.value == pytest.approx(slow[0] - slow[1], rel=1e-12)
    assert (difference.seeds, difference.rows, difference.freedom) == (3, 60, 2)


# ------------------------------------------------------------------------- intervals of seeds

CASES = [(0.05, 1.0, 0.5), (0.0, 1.0, 1.0), (0.2, 0.5, 0.5), (0.0, 0.0, 1.0), (0.02, 2.0, 0.1)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_of_a_mean_covers_the_truth(case, seeds):
    """Nominal 90 %; 1,000 tables of 100 examples, standard error .01."""
    of_seed, of_row, of_both = case
    random = np.random.default_rng(3)
    covered = []
    for _ in range(1000):
        table = 1 + of_both * random.normal(size=(seeds, 100))
        table += of_seed * random.normal(size=(seeds, 1)) + of_row * random.normal(size=(1, 100))
        value = inference.mean_over_seeds(table)
        covered.append(value.low <= 1 <= value.high)
    assert 0.86 <= np.mean(covered) <= 0.99


@pytest.mark.parametrize("gaps", [(0.0, 0.0), (0.05, 0.15)])
@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_of_ce2_cover_the_truth(gaps, seeds):
    """Nominal 90 %; 150 sets of 1,000 examples whose gap is g + .02 times a seed's normal."""
    random = np.random.default_rng(7)
    truth = [gap**2 + 0.02**2 for gap in gaps]
    hits = np.zeros(3)
    for _ in range(150):
        uniform, labels = random.random((1, 1000)), random.random((1, 1000))
        confidence = np.repeat(0.6 + 0.3 * uniform, seeds, axis=0)
        parts = []
        for gap in gaps:
            of_seed = gap + 0.02 * random.normal(size=(seeds, 1))
            parts.append((confidence, labels < confidence - of_seed))
        values = [inference.ce2(*part) for part in parts]
        values.append(inference.ce2_difference(*parts))
        wanted = (*truth, truth[0] - truth[1])
        hits += [v.low <= w <= v.high for v, w in zip(values, wanted, strict=True)]
    assert np.all(hits / 150 >= 0.8)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("ratio", [0.03, 0.3, 1, 3, 10, 100])
@pytest.mark.parametrize("size", [0.1, 1e-3, 1e-5])
def test_a_true_hypothesis_is_rejected_no_more_often_than_stated(seeds, ratio, size):
    """Integrate over the estimated variance between seeds; the variance between rows is 1."""
    shares = (np.arange(2000) + 0.5) / 2000
    estimated = ratio * scipy.stats.chi2.ppf(shares, seeds - 1) / (seeds - 1)
    ends = [
        Value(0, np.sqrt(variance + 1), seeds - 1, 1.0).interval(1 - size)[1]
        for variance in estimated
    ]
    rejected = 2 * scipy.stats.norm.sf(np.array(ends) / np.sqrt(ratio + 1))
    assert np.mean(rejected) <= 1.01 * size


def test_the_p_value_is_where_the_interval_reaches_the_margin():
    value = Value(0.3, 0.1, 2, 0.004)
    for p in (0.1, 1e-3, 1e-7):
        low, high = value.interval(1 - p)
        assert value.p_value(low) == value.p_value(high) == pytest.approx(p, rel=1e-6)
    assert value.p_value(0.3) == 1
    assert Value(0.3, 0.1, 2).p_value() == pytest.approx(2 * scipy.stats.t(2).sf(3), rel=1e-6)
    assert Value(0.3).p_value() == 0
    assert np.isnan(Value(np.nan, 0.1).p_value())
