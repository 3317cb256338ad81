"""Binned values where a careless metric would be off: edges, 0 and 1, ties; and debiased ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import inference, metrics
from calib_jax.metrics.contract import Predictions
from calib_jax.metrics.terms import ClassGaps, bin_of_equal_width

from . import value_of
from .reference import logits_of, sample, top_label

CATALOGUE = dict(metrics.catalogue())


@pytest.mark.parametrize("num_bins", [10, 15, 41])  # rounding moves 1, 0 and 13 of the edges
def test_bins_by_a_product_are_those_of_the_edges(num_bins):
    edges = (np.arange(num_bins + 1) / num_bins).astype(np.float32)
    values = np.stack([edges, *(np.nextafter(edges, np.float32(end)) for end in (-1, 2))])
    expected = np.clip(np.searchsorted(edges, values) - 1, 0, num_bins - 1)
    np.testing.assert_array_equal(bin_of_equal_width(jnp.asarray(values), num_bins), expected)


def test_probabilities_of_exactly_zero_and_one():
    logits = jnp.asarray([[200.0, 0.0], [200.0, 0.0], [0.0, 200.0], [0.0, 200.0]])
    labels = jnp.asarray([0, 1, 1, 1])
    view = Predictions(logits, labels)
    np.testing.assert_array_equal(view.p, [[1, 0], [1, 0], [0, 1], [0, 1]])
    names = ("ece", "adaptive_ece", "mce", "classwise_ece", "per_class_ece")
    names += ("nll", "mean_entropy", "sharpness", "brier")
    several = {name: metrics.named(name) for name in names}
    several["nowhere"] = metrics.named("per_class_ece", zero_counts=False)
    values = metrics.values_of(several, logits, labels)
    for name in names[:4]:
        assert values[name] == pytest.approx(0.25)
    # The one of class 1 with p_1 = 0 counts in the first bin, or nowhere.
    np.testing.assert_allclose(values["per_class_ece"], [0.25, 0.25])
    np.testing.assert_allclose(values["nowhere"], [0.25, 0.0])
    assert values["nll"] == 50.0
    assert values["mean_entropy"] == values["sharpness"] == 0
    assert values["brier"] == 0.5


@pytest.mark.parametrize("num_classes", [3, 300])
def test_class_probabilities_on_edges(num_classes):
    """By either way of adding them up, for few classes and for many."""
    edges = np.linspace(0, 1, 16, dtype=np.float32)
    columns = [edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(1))]
    p = np.zeros((48, num_classes), np.float32)
    p[:, 1] = np.concatenate(columns)
    p[:, -1] = p[::-1, 1]
    labels = np.resize([0, 1, num_classes - 1], 48)
    gaps = jax.jit(lambda p, labels: ClassGaps(p, labels, 15).weigh(None)["gap"])(p, labels)
    gap = np.zeros((num_classes, 15))
    for row, label in zip(p, labels, strict=True):
        for k in range(num_classes):
            above = [b for b in range(15) if row[k] > edges[b]]
            gap[k, max(above, default=0)] += np.float64(row[k]) - (k == label)
    np.testing.assert_allclose(gaps, gap, rtol=1e-6, atol=1e-6)


def test_a_tie_is_predicted_as_its_first_class():
    logits = jnp.zeros((3, 3))
    labels = jnp.asarray([0, 1, 2])
    assert value_of(metrics.accuracy, logits, labels) == pytest.approx(1 / 3)
    for k in (1, 2, 3):
        assert value_of(metrics.top_k, logits, labels, k=k) == pytest.approx(k / 3)
    assert value_of(metrics.ece, logits, labels) == pytest.approx(0, abs=1e-7)
    np.testing.assert_array_equal(
        value_of(metrics.confusion_counts, logits, labels), [[1, 0, 0]] * 3
    )
    assert np.isnan(value_of(metrics.confusion_counts, logits, labels + 1)).all()


def test_an_excluded_class_is_not_predicted_where_the_others_round_to_zero():
    logits = np.array([[200.0, 0.0, 1.0], [200.0, 0.0, 1.0]], np.float32)
    assert metrics.accuracy(logits, [2, 2], excluded_class=0) == 1


def test_small_variances_keep_their_digits():
    """Confidences that crowd near 1: the variance of 1 - c, and not a difference of near ones."""
    doubt = np.float32([1e-4, 2e-4, 3e-4])
    logits = jnp.stack([jnp.zeros(3), jnp.log(jnp.asarray(doubt))], axis=1)
    view = Predictions(logits, jnp.zeros(3, jnp.int32))
    expected = np.var(np.asarray(view.confidence, np.float64))
    actual = value_of(metrics.sharpness, logits, jnp.zeros(3, jnp.int32))
    assert actual == pytest.approx(expected, rel=1e-3)


def calibration_in_double_precision(logits, labels, num_bins=15):
    """Compute the ECE and the mean confidence of the last bin with float64 sums."""
    confidence, hit = top_label(logits, labels)
    edges = np.linspace(0, 1, num_bins + 1, dtype=np.float32)
    index = np.searchsorted(edges[1:-1], confidence, side="left")
    count = np.bincount(index, minlength=num_bins)
    sums = np.bincount(index, confidence.astype(np.float64), num_bins)
    gap = sums - np.bincount(index, hit, num_bins)
    return np.abs(gap).sum() / len(labels), sums[-1] / count[-1]


@pytest.mark.parametrize(("num_rows", "num_classes"), [(2**19 + 1, 2), (10_000, 600)])
def test_sums_over_many_rows_keep_their_digits(num_rows, num_classes):
    """A float32 sum of one row after the other has the mean .994 for confidences of .99."""
    random = np.random.default_rng(0)
    logits = np.zeros((num_rows, num_classes), np.float32)
    logits[:, 0] = np.log(99.0 * (num_classes - 1))
    labels = (random.random(num_rows) > 0.99).astype(int)
    ece, confidence = calibration_in_double_precision(logits, labels)
    stream, images = (
        kind({"ece": metrics.ece}) for kind in (metrics.Stream, inference.ImageStream)
    )
    stream.update(logits, labels)
    images.update(logits[None], labels[None])
    for value in (metrics.ece(logits, labels), stream.compute()["ece"], images.compute()["ece"]):
        np.testing.assert_allclose(value, ece, atol=2e-5)
    last = metrics.reliability(logits, labels).confidence[-1]
    np.testing.assert_allclose(last, confidence, atol=2e-5)


def test_a_confidence_of_one_is_in_the_last_bin():
    """An inverse temperature of 8 leaves nothing of 1e-5."""
    p = np.asarray([[1.0, 0.0], [0.6, 0.4]], np.float32)
    actual = metrics.mmce_script(p, np.asarray([0, 1]), inverse_temperature=8)
    # 0.6^8 / (0.6^8 + 0.4^8) = 0.9624: in the same bin.
    np.testing.assert_array_equal(actual.weight, [0] * 9 + [2, 0])
    np.testing.assert_allclose(actual.accuracy[9], 1 / (2 + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(actual.confidence[9], (1 + 0.9624) / (2 + 1e-5), rtol=1e-4)
    np.testing.assert_allclose(actual.ece, 0.9624 / (2 + 1e-5), rtol=1e-4)


def debiased(confidence, hit, bins):
    """Return the debiased error, `bins` being one array of row numbers a bin."""
    total = 0.0
    for rows in bins:
        n, a = len(rows), np.mean(hit[rows]) if len(rows) else 0
        if n >= 2:
            gap = np.mean(confidence[rows]) - a
            total += n / len(hit) * (gap**2 - a * (1 - a) / (n - 1))
    return np.sqrt(max(total, 0.0))


def equal_width(confidence, num_bins):
    """Return the rows of each bin (lo, hi]."""
    index = np.ceil(confidence * num_bins) - 1
    return [np.flatnonzero(index == b) for b in range(num_bins)]


def test_a_value_that_is_clipped_or_exactly_zero_has_gradient_zero():
    metric = jax.jit(jax.value_and_grad(metrics.debiased_rms_calibration_error))
    clipped = np.log(np.array([[0.5, 0.5]] * 4, np.float32))
    exact = np.array([[200.0, 0.0]] * 4, np.float32)  # certain and right
    for logits, labels in ((clipped, [0, 0, 1, 1]), (exact, [0, 0, 0, 0])):
        value, gradient = metric(logits, np.array(labels))
        assert value == 0
        np.testing.assert_array_equal(gradient, 0)


def test_bins_of_equal_width():
    logits, labels = sample(levels=20)
    confidence, hit = top_label(logits, labels)
    for num_bins in (4, 60):
        bins = equal_width(confidence, num_bins)
        wanted = debiased(confidence, hit, bins)
        metric = metrics.debiased_rms_calibration_error
        actual = value_of(metric, logits, labels, num_bins=num_bins)
        np.testing.assert_allclose(actual, wanted, rtol=1e-4)
    assert min(map(len, bins)) < 2  # bins that are empty or hold one example were met


def test_bins_of_equal_mass():
    rng = np.random.default_rng(1)
    logits = logits_of(rng.permutation(np.linspace(0.45, 0.95, 40)), 3)
    labels = (rng.random(40) < 0.6).astype(int)
    confidence, hit = top_label(logits, labels)
    bins = np.argsort(confidence).reshape(5, -1)
    metric = metrics.adaptive_debiased_rms_calibration_error
    actual = value_of(metric, logits, labels, num_bins=5)
    np.testing.assert_allclose(actual, debiased(confidence, hit, bins), rtol=1e-4)
