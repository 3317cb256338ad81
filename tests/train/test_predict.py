"""Predictions batch by batch: those of the whole, in bounded memory, and their files."""

import functools

import jax
import jaxtyping
import numpy as np
import pytest

from calib_jax import losses, metrics, models, train
from calib_jax.core import InMemory
from tests import compilations

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


def test_blocks_are_read_in_order_beyond_five_digits(tmp_path):
    for number in (99_999, 100_000):
        np.savez(
            tmp_path / f"block_{number:05d}.npz",
            logits=np.full((1, 2), number, np.float32),
            labels=[0],
            weights=[1.0],
        )
    assert [logits[0, 0] for logits, _, _ in train.read_blocks(tmp_path)] == [99_999, 100_000]


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


def test_blocks_have_the_weights_of_the_labels():
    weights = np.arange(21, dtype=np.float32) % 3
    source = InMemory(SOURCE.inputs, SOURCE.labels, weights)
    state = tasks.state_of(losses.objective("cross_entropy"), dtype=np.float32)
    parts = train.predict_blocks(tasks.forward, [state, state], source, batch_size=8)
    of_blocks = np.concatenate([part for _, _, part in parts])
    np.testing.assert_array_equal(of_blocks[:21], weights)
    assert not of_blocks[21:].any()


def test_an_example_without_a_label_is_predicted_from_its_input():
    """A network sets inputs of weight 0 to 0, which would give all of them the same logits."""
    module = models.mlp(num_classes=3, hidden=(5,))
    inputs = np.random.default_rng(0).standard_normal((21, 4)).astype(np.float32)
    labels = np.zeros(21, np.int32)
    source = InMemory(inputs, labels, np.zeros(21, np.float32))
    variables = module.init(jax.random.key(0), inputs[:1], train=False)
    objective = losses.objective("cross_entropy")
    state = train.create(variables, objective, tasks.sgd(), 3, 0, class_counts=np.ones(3))
    wanted = np.asarray(module.apply(variables, inputs, train=False))
    found = train.predict(train.linen(module), state, source, batch_size=8)
    np.testing.assert_allclose(found.logits, wanted, rtol=1e-5, atol=1e-6)
    assert not found.weights.any()
    parts = train.predict_blocks(train.linen(module), [state], source, batch_size=8)
    of_blocks = np.concatenate([logits[0] for logits, _, _ in parts])
    np.testing.assert_allclose(of_blocks[:21], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forward": SOURCE}, "forward must be a function, got InMemory: give train.linen"),
        (
            {"state": {"w": 1}},
            "state must be a TrainState, got dict: give the `state` that train.fit",
        ),
        ({"source": SOURCE.inputs}, "source must be a source of examples, got ndarray"),
        ({"source": (SOURCE.inputs, SOURCE.labels)}, "got tuple:\ngive calib_jax.core.InMemory"),
        ({"source": InMemory(*SOURCE[np.arange(0)])}, "source has no examples to predict"),
    ],
)
def test_an_argument_of_another_kind_is_named(change, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    state = tasks.state_of(losses.objective("cross_entropy"), dtype=np.float32)
    given = {"forward": tasks.forward, "state": state, "source": SOURCE} | change
    with pytest.raises((TypeError, ValueError), match=message):
        train.predict(**given)
    with pytest.raises((TypeError, ValueError), match=message):
        next(train.predict_blocks(given["forward"], [given["state"]], given["source"]))


@pytest.mark.parametrize("function", [train.predict, train.predict_all, train.predict_blocks])
def test_a_second_call_compiles_nothing(function):
    state = tasks.state_of(losses.objective("cross_entropy"), dtype=np.float32)

    def predicted(forward):
        states = state if function is train.predict else [state]
        result = function(forward, states, SOURCE, batch_size=8)
        return [*result] if function is train.predict_blocks else result

    forward = functools.partial(tasks.forward)
    with compilations.counted() as first:
        predicted(forward)
    with compilations.counted() as second:
        predicted(forward)
    assert first[0] > 0
    assert second[0] == 0


def test_a_network_without_a_hash_is_predicted():
    class Network:
        __hash__ = None  # as of a dataclass

        def __call__(self, *args, **options):
            return tasks.forward(*args, **options)

    state = tasks.state_of(losses.objective("cross_entropy"), dtype=np.float32)
    found = train.predict(Network(), state, SOURCE, batch_size=8)
    np.testing.assert_allclose(found.logits, expected()[0], rtol=1e-5, atol=1e-5)


def test_metrics_of_blocks_are_those_of_the_whole():
    several = {name: metrics.named(name) for name in ("nll", "ece")}
    stream = metrics.Stream(several)
    for logits, labels, weights in blocks():
        stream.update(logits[0], labels, weights)
    for name, value in metrics.values_of(several, *expected()).items():
        np.testing.assert_allclose(stream.compute()[name], value, rtol=1e-5, err_msg=name)


def test_written_blocks_are_read_back(tmp_path):
    of_first = [(logits[0], *rest) for logits, *rest in blocks()]
    for dtype, tolerance in (("float32", 0), ("float16", 1e-3)):
        folder = tmp_path / dtype
        assert train.write_blocks(of_first, folder, dtype=dtype) == len(of_first)
        for written, read in zip(of_first, train.read_blocks(folder), strict=True):
            assert read[0].dtype == dtype
            np.testing.assert_allclose(read[0], written[0], rtol=tolerance, atol=tolerance)
            for one, other in zip(written[1:], read[1:], strict=True):
                np.testing.assert_array_equal(one, other)


def test_blocks_are_replaced_as_a_whole(tmp_path):
    """Also by fewer blocks; an error on the way, or an earlier kill, leaves the old ones."""
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
    (tmp_path / "test.new").mkdir()  # as a killed process leaves it
    (tmp_path / "test.new" / "block_00000.npz").write_bytes(b"PK")
    assert train.write_blocks(of_first[1:2], folder) == 1
    ((logits, *_),) = train.read_blocks(folder)
    np.testing.assert_array_equal(logits, of_first[1][0])
    assert [path.name for path in tmp_path.iterdir()] == ["test"]


def test_a_foreign_file_is_never_removed(tmp_path):
    of_first = [(logits[0], *rest) for logits, *rest in blocks()]
    for name in ("test", "test.new", "test.old"):
        foreign = tmp_path / name / "notes.txt"
        foreign.parent.mkdir()
        foreign.write_text("mine")
        with pytest.raises(ValueError, match=r"holds notes.txt, which is no block of logits: move"):
            train.write_blocks(of_first, tmp_path / "test")
        assert foreign.read_text() == "mine"
        foreign.unlink()
        foreign.parent.rmdir()
    (tmp_path / "test").write_text("a file")
    with pytest.raises(NotADirectoryError, match="is a file: give a folder for the logits"):
        train.write_blocks(of_first, tmp_path / "test")


def test_what_cannot_be_written_or_read(tmp_path):
    large = [(np.full((2, 3), 1e6, np.float32), np.zeros(2, int), np.ones(2))]
    with pytest.raises(ValueError, match="logits beyond the largest float16; write them as"):
        train.write_blocks(large, tmp_path / "large", dtype="float16")
    with pytest.raises(ValueError, match="dtype must be one of 'float16', 'float32', got 'int8'"):
        train.write_blocks(large, tmp_path / "other", dtype="int8")
    with pytest.raises(FileNotFoundError, match=r"has no files block_\*"):
        next(train.read_blocks(tmp_path))
