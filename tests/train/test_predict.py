"""Predictions batch by batch: those of the whole, in bounded memory, and their files."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from calib_jax.core import InMemory

from . import tasks

SOURCE = tasks.examples(21, seed=2, dtype=np.float32)


@functools.cache
def blocks():
    state = tasks.state_of(losses.objective("cross_entropy"), dtype=np.float32)
    return [*train.predict_blocks(tasks.forward, [state, state], SOURCE, batch_size=8)]


def expected():
    logits, _, _ = tasks.forward(
        tasks.variables(dtype=np.float32)["params"], {}, SOURCE.inputs, train=False
    )
    return np.asarray(logits), SOURCE.labels


def test_blocks_hold_every_example_once_in_order():
    """The last block is padded to the shape of the others."""
    assert {block[1].shape for block in blocks()} == {(8,)}
    weights = np.concatenate([weights for _, _, weights in blocks()])
    np.testing.assert_array_equal(weights[weights > 0], np.ones(21))
    for number in range(2):
        logits = np.concatenate([logits[number] for logits, _, _ in blocks()])[weights > 0]
        np.testing.assert_allclose(logits, expected()[0], rtol=1e-5, atol=1e-5)
    labels = np.concatenate([labels for _, labels, _ in blocks()])[weights > 0]
    np.testing.assert_array_equal(labels, SOURCE.labels)


def test_an_example_without_a_label_is_predicted_from_its_input():
    """A network sets inputs of weight 0 to 0, which would give all of them the same logits."""
    module = models.mlp(num_classes=3, hidden=(5,))
    inputs = np.random.default_rng(0).standard_normal((21, 4)).astype(np.float32)
    labels = np.zeros(21, np.int32)
    weights = np.arange(21, dtype=np.float32) % 3
    source = InMemory(inputs, labels, weights)
    variables = module.init(jax.random.key(0), inputs[:1], train=False)
    objective = losses.objective("cross_entropy")
    state = train.create(variables, objective, tasks.sgd(), 3, 0, class_counts=np.ones(3))
    wanted = np.asarray(module.apply(variables, inputs, train=False))
    found = train.predict(train.linen(module), state, source, batch_size=8)
    np.testing.assert_allclose(found.logits, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.weights, weights)
    parts = [*train.predict_blocks(train.linen(module), [state], source, batch_size=8)]
    logits = np.concatenate([of_states[0] for of_states, *_ in parts])
    np.testing.assert_allclose(logits[:21], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate([part for *_, part in parts]), [*weights, 0, 0, 0])


@pytest.mark.parametrize(("num_devices", "resident_bytes"), [(1, 2**30), (8, 0), (8, 2**30)])
def test_predictions_are_in_the_order_of_the_source(num_devices, resident_bytes):
    """Each row holds its own number; no device and no padding changes its place."""

    def numbered(params, model_state, inputs, **options):
        return jnp.concatenate([inputs, inputs * params["in"][0, 0]], axis=1), model_state, None

    rows = np.arange(21, dtype=np.float32)
    source = InMemory(rows[:, None] - 30, (rows % 5).astype(np.int32))
    states = [tasks.state_of(losses.objective("brier"), seed=seed) for seed in (0, 0)]
    options = {"batch_size": 8, "devices": train.local_devices(num_devices)}
    found = train.predict_all(numbered, states, source, resident_bytes=resident_bytes, **options)
    for logits in found.logits:
        np.testing.assert_array_equal(logits[:, 0], rows - 30)
    np.testing.assert_array_equal(found.labels, rows % 5)
    assert found.weights is None
    weights = rows % 3
    weighted = InMemory(source.inputs, source.labels, weights)
    found = train.predict_all(numbered, states, weighted, resident_bytes=resident_bytes, **options)
    np.testing.assert_array_equal(found.weights, weights)


def test_written_blocks_are_read_back(tmp_path):
    of_first = [(logits[0], *rest) for logits, *rest in blocks()]
    for dtype, tolerance in (("float32", 0), ("float16", 1e-3)):
        folder = tmp_path / "new" / dtype
        assert train.write_blocks(of_first, folder, dtype=dtype) == len(of_first)
        for written, read in zip(of_first, train.read_blocks(folder), strict=True):
            assert read[0].dtype == dtype
            np.testing.assert_allclose(read[0], written[0], rtol=tolerance, atol=tolerance)
            for one, other in zip(written[1:], read[1:], strict=True):
                np.testing.assert_array_equal(one, other)
    assert train.write_blocks([], tmp_path / "none") == 0


def test_blocks_are_replaced_as_a_whole(tmp_path):
    """Also by fewer blocks; an error on the way leaves the old ones."""
    folder = tmp_path / "test"
    of_first = [(logits[0], *rest) for logits, *rest in blocks()]
    train.write_blocks(of_first, folder)
    old = {path.name: path.read_bytes() for path in folder.iterdir()}

    def failing():
        yield of_first[1]
        raise RuntimeError("the source is broken")

    with pytest.raises(RuntimeError, match="broken"):
        train.write_blocks(failing(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == old
    assert train.write_blocks(of_first[1:2], folder) == 1
    ((logits, *_),) = train.read_blocks(folder)
    np.testing.assert_array_equal(logits, of_first[1][0])
    assert [path.name for path in tmp_path.iterdir()] == ["test"]


def test_a_foreign_file_is_never_removed(tmp_path):
    of_first = [(logits[0], *rest) for logits, *rest in blocks()]
    foreign = tmp_path / "test" / "notes.txt"
    foreign.parent.mkdir()
    foreign.write_text("mine")
    with pytest.raises(ValueError, match=r"holds notes.txt, which is no block of logits: move"):
        train.write_blocks(of_first, tmp_path / "test")
    assert foreign.read_text() == "mine"
    with pytest.raises(NotADirectoryError, match="is a file: give a folder for the logits"):
        train.write_blocks(of_first, foreign)
