"""CE2 of several seeds against loops over pairs, and predictions of a loss."""

import numpy as np
import pytest
import scipy.stats

from calib_jax import inference
from calib_jax.inference import Value

BINS = 5


def slow_ce2(confidence, right, index):
    """Average products of residuals over all pairs of examples of a bin, in a loop."""
    residual, total = confidence - right, 0.0
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
    value = inference.ce2(confidence, right, num_bins=BINS, adaptive=True).value
    assert value == pytest.approx(slow_ce2(confidence[0], right[0], index), rel=1e-12)


def drawn(seeds=3, rows=60, seed=0):
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.3, 1, (seeds, rows))
    return confidence, random.random((seeds, rows)) < confidence - 0.2


def test_values_are_means_of_all_pairs():
    first, second = drawn(), drawn(seed=1)
    slow = []
    for part in (first, second):
        rows = zip(*part, strict=True)
        slow.append(np.mean([slow_ce2(c, r, np.ceil(np.round(BINS * c, 9))) for c, r in rows]))
    assert inference.ce2(*first, num_bins=BINS).value == pytest.approx(slow[0], rel=1e-12)
    difference = inference.ce2_difference(first, second, num_bins=BINS)
    assert difference.value == pytest.approx(slow[0] - slow[1], rel=1e-12)
    assert (difference.seeds, difference.rows, difference.freedom) == (3, 60, 2)


# ------------------------------------------------------------------------- intervals of seeds

CASES = [(0.05, 1.0, 0.5), (0.0, 1.0, 1.0), (0.2, 0.5, 0.5), (0.0, 0.0, 1.0), (0.02, 2.0, 0.1)]


@pytest.mark.parametrize(("case", "seeds"), [*zip(CASES, (3, 5, 3, 5, 3), strict=True)])
def test_the_interval_of_a_mean_covers_the_truth(case, seeds):
    """Nominal 90 %; 500 tables of 100 examples, standard error .013."""
    of_seed, of_row, of_both = case
    random = np.random.default_rng(3)
    covered = []
    for _ in range(500):
        table = 1 + of_both * random.normal(size=(seeds, 100))
        table += of_seed * random.normal(size=(seeds, 1)) + of_row * random.normal(size=(1, 100))
        value = inference.mean_over_seeds(table)
        covered.append(value.low <= 1 <= value.high)
    assert 0.86 <= np.mean(covered) <= 0.99


@pytest.mark.parametrize(("gaps", "seeds"), [((0.0, 0.0), 3), ((0.05, 0.15), 5)])
def test_intervals_of_ce2_cover_the_truth(gaps, seeds):
    """Nominal 90 %; 40 sets of 1,000 examples whose gap is g + .02 times a seed's normal."""
    random = np.random.default_rng(7)
    truth = [gap**2 + 0.02**2 for gap in gaps]
    hits = np.zeros(3)
    for _ in range(40):
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
    assert np.all(hits / 40 >= 0.82)


@pytest.mark.parametrize("seeds", [2, 5])
@pytest.mark.parametrize("ratio", [0.03, 1, 3, 100])
@pytest.mark.parametrize("size", [0.1, 1e-5])
def test_a_true_hypothesis_is_rejected_no_more_often_than_stated(seeds, ratio, size):
    """Integrate over the estimated variance between seeds; the variance between rows is 1."""
    shares = (np.arange(500) + 0.5) / 500
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


def network(rows=1000, factor=2.0, classes=10, seed=0):
    random = np.random.default_rng(seed)
    z = 2 * random.normal(size=(rows, classes))
    return factor * z, (z + random.gumbel(size=z.shape)).argmax(axis=1)


def test_cross_entropy_predicts_itself():
    z, labels = network()
    found = inference.predict_loss(z, labels, "cross_entropy")
    confidence = np.exp(z - np.logaddexp.reduce(z, axis=1, keepdims=True)).max(axis=1)
    np.testing.assert_allclose(found.temperature.value, found.cross_entropy.value, rtol=1e-6)
    right = z.argmax(axis=1) == labels
    np.testing.assert_allclose(found.gap.value, confidence.mean() - right.mean(), atol=1e-6)
    np.testing.assert_allclose(found.ce2.value, inference.ce2(z, labels).value, atol=1e-6)
    assert found.root_ce2[1] <= found.root_ce2[0] <= found.root_ce2[2]


def test_two_classes_shrink_more_than_many():
    ratios = []
    for classes in (2, 10, 50):
        found = inference.predict_loss(*network(classes=classes), "focal", gamma=3.0)
        ratios.append(found.temperature.value / found.cross_entropy.value)
    assert ratios[0] < 0.35 < 0.45 < ratios[1] < ratios[2]


def test_the_interval_of_the_temperature_is_that_of_repeated_samples():
    found = [inference.predict_loss(*network(400, seed=s), "focal", gamma=2.0) for s in range(20)]
    for name in ("cross_entropy", "temperature", "gap"):
        values = [getattr(one, name) for one in found]
        spread = np.std([value.value for value in values])
        stated = np.mean([value.deviation for value in values])
        assert 0.75 < stated / spread < 1.3


def test_fewer_than_200_rows_are_said_to_be_few():
    z, labels = network(200)
    inference.predict_loss(z, labels, "cross_entropy")  # a warning would be an error
    with pytest.warns(UserWarning, match="199 rows are few .* give 200 or more"):
        inference.predict_loss(z[1:], labels[1:], "cross_entropy")
