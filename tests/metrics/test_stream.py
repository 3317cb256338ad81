"""Streams: batches give the values of the whole, in bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import inference, metrics
from calib_jax.metrics import stream as streams
from tests.inference.test_bootstrap import sample

from . import reference

SEVERAL = {
    name: metrics.named(name) for name in ("accuracy", "ece", "adaptive_ece", "per_class_ece")
}


def batches(logits, labels, size):
    """Cut examples into batches."""
    for start in range(0, len(labels), size):
        yield logits[start : start + size], labels[start : start + size]


def test_batches_give_the_values_of_the_whole():
    logits, labels = sample(num_rows=100)
    stream = metrics.Stream(SEVERAL)
    for part in batches(logits, labels, 30):  # the last one is smaller
        stream.update(*part)
    expected = metrics.values_of(SEVERAL, logits, labels)
    for name, value in stream.compute().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)
    assert stream.num_rows == 100
    assert stream.notes == []


def test_a_batch_of_padding_adds_nothing():
    logits, labels = sample(num_rows=20)
    stream = metrics.Stream({"ece": metrics.ece, "ada": metrics.adaptive_ece})
    stream.update(logits, labels)
    before = stream.compute()
    stream.update(np.full_like(logits, np.nan), np.full_like(labels, 255), np.zeros(20))
    for name, value in stream.compute().items():
        np.testing.assert_allclose(value, before[name], rtol=1e-6)


def test_a_refused_batch_leaves_no_trace():
    logits, labels = sample(num_rows=20)
    stream = metrics.Stream({"ece": metrics.ece})
    stream.update(logits, labels)
    before = stream.compute()["ece"]
    with pytest.raises(ValueError, match="1 of 20 labels are not among the 4 classes, 9 is one"):
        stream.update(logits, np.where(np.arange(20) == 3, 9, labels))
    assert stream.compute()["ece"] == before
    assert stream.num_rows == 20


def test_counts_beyond_those_of_float32():
    """Check that examples still count when there are more than 2**24 of them."""
    stream = metrics.Stream({"accuracy": metrics.accuracy})
    logits, labels = jnp.array([[2.0, 0.0]]), jnp.array([0])
    stream.update(logits, labels, jnp.array([2.0**25]))
    for _ in range(3):
        stream.update(logits, labels)
    assert stream._sums["accuracy"]["weight"] == 2**25 + 3


def test_a_batch_too_large_for_float32_counts_is_cut(monkeypatch):
    """Also a refused one leaves no trace, wherever the wrong label is."""
    logits, labels = sample(num_rows=100)
    stream, whole = (metrics.Stream({"accuracy": metrics.accuracy}) for _ in range(2))
    whole.update(logits, labels)
    monkeypatch.setattr(streams, "_MOST_ROWS", 30)
    stream.update(logits, labels)
    assert stream.compute() == whole.compute()
    with pytest.raises(ValueError, match="1 of 30 labels are not among the 4 classes"):
        stream.update(logits, np.where(np.arange(100) == 70, 9, labels))
    assert stream.num_rows == 100


@pytest.mark.slow
def test_above_the_row_limit_a_fine_histogram_serves_and_says_so():
    logits, labels = sample(num_rows=3000)
    ranking = {
        "adaptive_ece": metrics.adaptive_ece,
        "mce": metrics.mce,
        "adaptive_mce": metrics.adaptive_mce,
    }
    exact = metrics.values_of(ranking, logits, labels)
    stream = metrics.Stream(ranking, row_limit=1000)
    stream.update(logits[:1000], labels[:1000])
    assert not stream.notes
    with pytest.warns(UserWarning, match="adaptive_ece, adaptive_mce: more than 1000 rows"):
        stream.update(logits[1000:2000], labels[1000:2000])
    stream.update(logits[2000:], labels[2000:])  # said once
    (note,) = stream.notes
    assert "count as equal" in note
    actual = stream.compute()
    np.testing.assert_allclose(actual["mce"], exact["mce"], rtol=1e-6)
    rounded = rounded_to_cells(logits, labels)
    for name in ("adaptive_ece", "adaptive_mce"):
        wanted = getattr(reference, name)(*rounded)
        np.testing.assert_allclose(actual[name], wanted, rtol=2e-5, err_msg=name)
        # It differs from the exact value, by at most the mass of a cell.
        assert actual[name] != exact[name]
        np.testing.assert_allclose(actual[name], exact[name], atol=2e-2, err_msg=name)
    # Sums are exact: one bin has no edge inside that a cell could straddle.
    one_bin = metrics.adaptive_ece.with_options(num_bins=1)
    stream = metrics.Stream({"gap": one_bin}, row_limit=0)
    with pytest.warns(UserWarning, match="more than 0 rows"):
        stream.update(logits, labels)
    np.testing.assert_allclose(stream.compute()["gap"], one_bin(logits, labels), rtol=1e-5)


def rounded_to_cells(logits, labels):
    """Return probabilities whose largest is the mean of its cell, in float64, with labels 0 or 1.

    Class 0 is predicted everywhere, and is right where the given prediction is.
    """
    p = reference.softmax(logits)
    confidence, hit = p.max(axis=1), p.argmax(axis=1) == labels
    cell = streams.fine_cell(np.asarray(metrics.adaptive_ece.stat(logits, labels)["score"]))
    number = np.unique(cell, return_inverse=True)[1]
    mean = np.bincount(number, confidence) / np.bincount(number)
    assert len(mean) < len(labels)  # cells are shared
    confidence = mean[number]
    rest = np.repeat((1 - confidence[:, None]) / (p.shape[1] - 1), p.shape[1] - 1, axis=1)
    rounded = np.concatenate([confidence[:, None], rest], axis=1)
    assert (rounded.argmax(axis=1) == 0).all()
    return rounded, np.where(hit, 0, 1), np.ones(len(labels))


def test_fine_cells_are_ordered_and_fine():
    random = np.random.default_rng(0)
    near = 2.0 ** random.uniform(-23, 0, 2000)
    scores = np.concatenate([near, 1 - near / 2, random.uniform(1, 255, 2000)])
    scores = np.sort(np.concatenate([-scores, scores, [0.0, 1.0, -1.0, 0.5, -0.5, 1e9, -1e9]]))
    cell = streams.fine_cell(scores)
    assert np.all(np.diff(cell) >= 0)
    assert cell.min() >= 0
    # Within a cell: a thousandth of the score, or of its distance from 1.
    size = np.abs(scores)
    scale = np.where((size > 0.5) & (size < 1), np.minimum(size, 1 - size), size)
    inside = (size < 255) & (scale > 2.0**-23)
    for one in np.unique(cell[inside]):
        members = (cell == one) & inside
        assert np.ptp(scores[members]) <= 1.001e-3 * scale[members].max()


def test_statistics_computed_elsewhere():
    """Check statistics of a pmapped step, reduced over devices, as a training loop has them."""
    logits, labels = sample(num_rows=80)
    step = jax.pmap(
        lambda z, y: metrics.stats_of(SEVERAL, z, y).all_reduce("batch"), axis_name="batch"
    )
    stats = step(logits.reshape(8, 10, -1), labels.reshape(8, 10))
    stream = metrics.Stream(SEVERAL)
    stream.update_stats(jax.tree.map(lambda leaf: leaf[0], stats), num_rows=80)
    expected = metrics.values_of(SEVERAL, logits, labels)
    for name, value in stream.compute().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)


def test_an_empty_stream_says_so():
    with pytest.raises(ValueError, match="the stream is empty: add a batch"):
        metrics.Stream({"ece": metrics.ece}).compute()


@pytest.mark.parametrize("kind", [metrics.Stream, inference.ImageStream])
def test_a_reset_stream_begins_again(kind):
    logits, _ = sample(num_rows=20)
    right, wrong = ((logits, np.argmax(logits, -1)), (logits, (np.argmax(logits, -1) + 1) % 4))
    stream = kind({"accuracy": metrics.accuracy})
    for examples, expected in ((right, 1), (wrong, 0)):
        stream.update(*(array.reshape(4, 5, *array.shape[1:]) for array in examples))
        assert stream.compute()["accuracy"] == expected
        stream.reset()
        with pytest.raises(ValueError, match="the stream is empty"):
            stream.compute()


def test_large_energies_are_not_one_score():
    random = np.random.default_rng(0)
    logits = random.standard_normal((300, 4)).astype(np.float32) + 600
    labels = (logits.max(axis=1) > np.median(logits.max(axis=1))).astype(int)
    ood = metrics.ood_auroc.with_options(score="energy")
    stream = metrics.Stream({"ood": ood}, row_limit=100)
    with pytest.warns(UserWarning, match="from a fine histogram"):
        stream.update(logits, labels)
    assert stream.compute()["ood"] == pytest.approx(float(ood(logits, labels)), abs=0.1)
    assert abs(float(ood(logits, labels)) - 0.5) > 0.2


def test_a_batch_beyond_the_limit_of_a_metric_that_needs_every_row_adds_nothing():
    random = np.random.default_rng(0)
    logits, labels = random.standard_normal((16, 3)), random.integers(3, size=16)
    stream = metrics.Stream({"nll": metrics.nll, "auroc": metrics.auroc}, row_limit=10)
    stream.update(logits[:8], labels[:8])
    before = stream.compute()
    with pytest.raises(ValueError, match="auroc: 16 examples exceed row_limit=10"):
        stream.update(logits[8:], labels[8:])
    assert (stream.num_rows, stream.compute()) == (8, before)
