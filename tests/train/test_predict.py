"""Predictions batch by batch: those of the whole, in bounded memory, and their files."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from calib_jax.core import InMemory

from . import tasks

DRAW = np.random.default_rng(0)
BLOCKS = [
    (DRAW.standard_normal((8, 5), np.float32), DRAW.integers(5, size=8), np.float32(weights))
    for weights in ([1.0] * 8, [1.0] * 5 + [0.0] * 3)
]


def test_an_example_without_a_label_is_predicted_from_its_input():
    """A network sets inputs of weight 0 to 0, which would give all of them the same logits.

    Blocks hold every example once, in order, and the last one is padded.
    """
    module = models.mlp(num_classes=3, hidden=(5,))
    inputs = np.random.default_rng(0).standard_normal((21, 4)).astype(np.float32)
    labels = np.arange(21, dtype=np.int32) % 2
    weights = np.arange(21, dtype=np.float32) % 3
    source = InMemory(inputs, labels, weights)
    init = jax.jit(functools.partial(module.init, train=False))
    variables = init(jax.random.key(0), inputs[:1])
    objective = losses.objective("cross_entropy")
    state = train.create(variables, objective, tasks.sgd(), 3, 0, class_counts=np.ones(3))
    wanted = jax.jit(functools.partial(module.apply, train=False))(variables, inputs)
    found = train.predict(train.linen(module), state, source, batch_size=8)
    np.testing.assert_allclose(found.logits, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.weights, weights)
    parts = [*train.predict_blocks(train.linen(module), [state], source, batch_size=8)]
    assert {block.shape for _, block, _ in parts} == {(8,)}
    np.testing.assert_array_equal(np.concatenate([part for _, part, _ in parts])[:21], labels)
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
    state = tasks.state_of(losses.objective("brier"))
    twice = jax.tree.map(lambda leaf: 2 * leaf, state.params)
    states = [state, state._replace(params=twice)]
    factors = [np.float32(one.params["in"][0, 0]) for one in states]
    wanted = [np.stack([rows - 30, factor * (rows - 30)], axis=1) for factor in factors]
    options = {"batch_size": 8, "devices": train.local_devices(num_devices)}
    found = train.predict_all(numbered, states, source, resident_bytes=resident_bytes, **options)
    np.testing.assert_array_equal(found.logits, wanted)
    blocks = [*train.predict_blocks(numbered, states, source, **options)]
    of_states = [np.concatenate(parts)[:21] for parts in zip(*(b[0] for b in blocks), strict=True)]
    np.testing.assert_array_equal(of_states, wanted)
    np.testing.assert_array_equal(found.labels, rows % 5)
    assert found.weights is None
    weights = rows % 3
    weighted = InMemory(source.inputs, source.labels, weights)
    found = train.predict_all(numbered, states, weighted, resident_bytes=resident_bytes, **options)
    np.testing.assert_array_equal(found.weights, weights)


def test_a_file_of_predictions_has_no_bfloat16():
    """NumPy would write bytes without a dtype."""
    logits = jnp.asarray([[1.5, -jnp.inf]], jnp.bfloat16)
    arrays = train.Predicted(logits, np.zeros(1, np.int32), None).arrays
    assert {name: array.dtype.name for name, array in arrays.items()} == {
        "logits": "float32",
        "labels": "int32",
    }
    np.testing.assert_array_equal(arrays["logits"], [[1.5, -np.inf]])


def test_written_blocks_are_read_back(tmp_path):
    for dtype, tolerance in (("float32", 0), ("float16", 1e-3)):
        folder = tmp_path / "new" / dtype
        assert train.write_blocks(BLOCKS, folder, dtype=dtype) == len(BLOCKS)
        for written, read in zip(BLOCKS, train.read_blocks(folder), strict=True):
            assert read[0].dtype == dtype
            np.testing.assert_allclose(read[0], written[0], rtol=tolerance, atol=tolerance)
            for one, other in zip(written[1:], read[1:], strict=True):
                np.testing.assert_array_equal(one, other)
    assert train.write_blocks([], tmp_path / "none") == 0


def test_blocks_are_replaced_as_a_whole(tmp_path):
    """Also by fewer blocks; an error on the way leaves the old ones."""
    folder = tmp_path / "test"
    train.write_blocks(BLOCKS, folder)
    old = {path.name: path.read_bytes() for path in folder.iterdir()}

    def failing():
        yield BLOCKS[1]
        raise RuntimeError("the source is broken")

    with pytest.raises(RuntimeError, match="broken"):
        train.write_blocks(failing(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == old
    assert train.write_blocks(BLOCKS[1:2], folder) == 1
    ((logits, *_),) = train.read_blocks(folder)
    np.testing.assert_array_equal(logits, BLOCKS[1][0])
    assert [path.name for path in tmp_path.iterdir()] == ["test"]


def test_a_foreign_file_is_never_removed(tmp_path):
    foreign = tmp_path / "test" / "notes.txt"
    foreign.parent.mkdir()
    foreign.write_text("mine")
    with pytest.raises(ValueError, match=r"holds notes.txt, which is no block of logits: move"):
        train.write_blocks(BLOCKS, tmp_path / "test")
    assert foreign.read_text() == "mine"
    with pytest.raises(NotADirectoryError, match="is a file: give a folder for the logits"):
        train.write_blocks(BLOCKS, foreign)
