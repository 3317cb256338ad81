"""Streams: batches give the values of the whole, in bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.metrics import contract
from calib_jax.metrics import stream as streams
from tests.inference.test_bootstrap import sample

from . import value_of

SEVERAL = {
    name: metrics.named(name) for name in ("accuracy", "ece", "adaptive_ece", "per_class_ece")
}


def test_batches_give_the_values_of_the_whole():
    logits, labels = sample(num_rows=80)
    stream = metrics.Stream(SEVERAL)
    for rows in (slice(0, 30), slice(30, 60), slice(60, 80)):
        stream.update(logits[rows], labels[rows])
    expected = metrics.values_of(SEVERAL, logits, labels)
    for name, value in stream.compute().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)
    assert stream.num_rows == 80
    stream.reset()
    with pytest.raises(ValueError, match="the stream is empty"):
        stream.compute()


def test_shares_of_batches_are_kept():
    stream = metrics.Stream({"accuracy": metrics.accuracy})
    for label, share in ((0, 0.5), (1, 0.125)):
        stream.update(np.array([[2.0, 0.0]], np.float32), np.array([label]), np.array([share]))
    assert stream.compute()["accuracy"] == pytest.approx(0.8)


def test_counts_beyond_those_of_float32():
    """Check that examples still count when there are more than 2**24 of them."""
    stream = metrics.Stream({"accuracy": metrics.accuracy})
    logits, labels = jnp.array([[2.0, 0.0]]), jnp.array([0])
    stream.update(logits, labels, jnp.array([2.0**25]))
    for _ in range(3):
        stream.update(logits, labels)
    assert stream._stats["accuracy"]["weight"] == 2**25 + 3


def test_fine_cells_are_ordered_and_fine():
    random = np.random.default_rng(0)
    near = 2.0 ** random.uniform(-23, 0, 2000)
    scores = np.concatenate([near, 1 - near / 2, random.uniform(1, 255, 2000)])
    scores = np.concatenate([-scores, scores, [0.0, 1.0, -1.0, 0.5, -0.5, 1e9, -1e9]])
    scores = np.sort(scores.astype(np.float32)).astype(np.float64)
    cell = streams.fine_cell(scores)
    assert np.all(np.diff(cell) >= 0)
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


def test_a_batch_beyond_the_limit_of_a_metric_that_needs_every_row_adds_nothing():
    random = np.random.default_rng(0)
    logits, labels = random.standard_normal((16, 3)), random.integers(3, size=16)
    stream = metrics.Stream({"nll": metrics.nll, "auroc": metrics.auroc}, row_limit=10)
    stream.update(logits[:8], labels[:8])
    before = stream.compute()
    with pytest.raises(ValueError, match="auroc: 16 examples exceed row_limit=10"):
        stream.update(logits[8:], labels[8:])
    assert (stream.num_rows, stream.compute()) == (8, before)


def test_blocks_on_one_device_hold_every_row(monkeypatch):
    """The rows are an odd number, and the last block is shorter."""
    logits, labels = sample(num_rows=79)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(contract, "_block_rows", lambda rows, classes: 16)
    actual = metrics.values_of(SEVERAL, logits, labels)
    without_blocks = jax.jit(lambda *data: {k: value_of(SEVERAL[k], *data) for k in SEVERAL})
    for name, value in without_blocks(logits, labels).items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, err_msg=name)
