"""Compute the logits of trained networks for all examples of a source, whole or in blocks.

`predict` keeps all logits in memory. `predict_blocks` yields them batch by batch, for data sets
whose logits do not fit, and `write_blocks` and `read_blocks` keep such blocks in a folder.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import Source, check_source
from calib_jax.core.files import reading
from calib_jax.core.statistics import Rows
from calib_jax.core.types import PyTree
from calib_jax.train.feeds import EvalStep, Streamed, feed, one_pass
from calib_jax.train.forward import Forward, check_forward
from calib_jax.train.pmap import AXIS, Devices, local_devices, replicate
from calib_jax.train.state import check_state, identity
from calib_jax.train.step import make_eval_step

# Logits of every state, labels and weights of a batch.
Block = tuple[list[np.ndarray], np.ndarray, np.ndarray]

_PRECISIONS = ("float16", "float32")
_BLOCKS = "block_*.npz"


class Predicted(NamedTuple):
    """The predictions for all examples of a source, in the order of the source.

    Attributes:
      logits: `[*batch, classes]`; from `predict_all`, the logits of each state.
      labels: `[*batch]`.
      weights: `[*batch]`, or None if all labels have weight 1.
    """

    logits: Any
    labels: np.ndarray
    weights: np.ndarray | None

    def __repr__(self) -> str:
        return checks.short_repr(self)

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of a prediction file by name; without weights if there are none.

        Logits of bfloat16, which such a file cannot hold, are float32 there.
        """
        arrays = {
            name: np.asarray(leaf) for name, leaf in self._asdict().items() if leaf is not None
        }
        return {k: v.astype(np.float32) if v.dtype.kind == "V" else v for k, v in arrays.items()}


def predict(
    forward: Forward,
    state: PyTree,
    source: Source,
    *,
    prepare: Callable[[PyTree], PyTree] = identity,
    batch_size: int = 128,
    devices: Devices | None = None,
    resident_bytes: int = 2**30,
) -> Predicted:
    """Compute the logits of every example.

    Args:
      forward: the forward pass of the network.
      state: a train state, on the host.
      source: the examples.
      prepare, batch_size, devices, resident_bytes: as in `predict_all`.

    Returns:
      Logits, labels and weights, in the order of the source.
    """
    predicted = predict_all(
        forward,
        [state],
        source,
        prepare=prepare,
        batch_size=batch_size,
        devices=devices,
        resident_bytes=resident_bytes,
    )
    return predicted._replace(logits=predicted.logits[0])


def predict_all(
    forward: Forward,
    states: Sequence[PyTree],
    source: Source,
    *,
    prepare: Callable[[PyTree], PyTree] = identity,
    batch_size: int = 128,
    devices: Devices | None = None,
    resident_bytes: int = 2**30,
) -> Predicted:
    """Compute the logits of every example for several train states, with one compiled program.

    Args:
      forward: the forward pass of the network.
      states: train states, on the host.
      source: the examples.
      prepare: as in training.
      batch_size: the batch size.
      devices: the devices; all devices of this process by default.
      resident_bytes: the largest size at which in-memory examples are copied to the devices.

    Returns:
      Logits of each state, labels and weights, in the order of the source.
    """
    _check(forward, states, source)
    devices = tuple(local_devices() if devices is None else devices)
    fed = feed(source, devices, resident_bytes=resident_bytes)
    evaluate = fed.evaluation(_rows_step(forward, prepare), batch_size)
    # Drop the rows that pad batches; keep an example whose labels have weight 0.
    real = one_pass(source, len(devices), batch_size).weights.ravel() > 0
    logits, rows = [], None
    for state in states:
        rows = evaluate(replicate(state, devices))["metrics"]["all"]
        logits.append(np.asarray(rows["logits"])[real])
    assert rows is not None
    labels, weights = (np.asarray(rows[key])[real] for key in ("labels", "weights"))
    return Predicted(logits, labels, None if np.all(weights == 1) else weights)


def predict_blocks(
    forward: Forward,
    states: Sequence[PyTree],
    source: Source,
    *,
    prepare: Callable[[PyTree], PyTree] = identity,
    batch_size: int = 128,
    devices: Devices | None = None,
    threads: int | None = None,
) -> Iterator[Block]:
    """Yield the logits of each state, the labels and the weights of every batch.

    The memory does not grow with the source. Padding of the last batch has weight 0, so that all
    batches have one shape. To evaluate metrics on the whole source, add the blocks to a
    `metrics.Stream`.

    Args:
      forward: the forward pass of the network.
      states: train states, on the host.
      source: the examples; they are streamed even if they are in memory.
      prepare: as in training.
      batch_size: the batch size.
      devices: the devices; all devices of this process by default.
      threads: the number of reader threads; one per available core by default.
    """
    _check(forward, states, source)
    devices = tuple(local_devices() if devices is None else devices)
    fed = Streamed(source, devices, threads=threads)
    statistics = fed.batch_statistics(_rows_step(forward, prepare), batch_size)
    passes = [statistics(replicate(state, devices)) for state in states]
    for stats in zip(*passes, strict=True):
        rows = [of_state["metrics"]["all"] for of_state in stats]
        labels, weights = (np.asarray(rows[0][name]) for name in ("labels", "weights"))
        yield [np.asarray(of_state["logits"]) for of_state in rows], labels, weights


class _Everything:
    """A statistic that keeps every row."""

    @staticmethod
    def stat(logits: Any, labels: Any, weights: Any) -> Rows:
        """Return the rows unchanged."""
        return Rows({"logits": logits, "labels": labels, "weights": weights})


@functools.lru_cache(maxsize=8)
def _rows_step(forward: Any, prepare: Callable[[PyTree], PyTree]) -> EvalStep:
    """Build the step that keeps every row; equal arguments return the same step, compiled once."""

    # A network sets the inputs of rows of weight 0 to 0, because padding may hold NaN. Predictions
    # drop the padding, but keep unlabelled examples, such as queries out of scope.
    def without_weights(*args: Any, weights: Any, **options: Any) -> Any:
        return forward(*args, weights=None, **options)

    return make_eval_step(without_weights, {"all": _Everything}, axis_name=AXIS, prepare=prepare)


def _check(forward: Any, states: Sequence[Any], source: Any) -> None:
    check_forward(forward)
    for state in states:
        check_state(state)
    check_source("source", source)
    if not len(source):
        raise ValueError("source has no examples to predict.")


# ------------------------------------------------------------------------------------------------
# Blocks in a folder.


def write_blocks(
    blocks: Iterable[tuple[Any, Any, Any]], folder: Any, *, dtype: str = "float32"
) -> int:
    """Write blocks of (logits, labels, weights) as block_00000.npz, ...; return the block count.

    The blocks are written beside the folder and then renamed, so that an error leaves the old
    blocks whole.

    Args:
      blocks: the blocks of one network.
      folder: a new folder, or a folder that holds only older blocks, which are replaced.
      dtype: the dtype of the logits: "float16" halves the size and rounds them to 3 digits, or
        "float32".
    """
    checks.one_of("dtype", dtype, _PRECISIONS)
    folder = pathlib.Path(folder)
    check_replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        new, number = pathlib.Path(temporary) / "new", 0
        new.mkdir()
        for number, (logits, labels, weights) in enumerate(blocks, 1):
            with np.errstate(over="ignore"):
                rounded = np.asarray(logits).astype(dtype)
            if np.any(np.isinf(rounded) & np.isfinite(logits)):
                raise ValueError(
                    f"block {number - 1} has logits beyond the largest {dtype}; write them as"
                    " float32."
                )
            path = new / f"block_{number - 1:05d}.npz"
            np.savez(path, logits=rounded, labels=labels, weights=weights)
        if folder.is_dir():
            folder.rename(pathlib.Path(temporary) / "old")
        new.rename(folder)
    return number


def check_replaceable(folder: pathlib.Path) -> None:
    """Raise an error for a file that is not a block: `write_blocks` replaces a whole folder."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give a folder for the logits.")
    foreign = [path.name for path in folder.glob("*") if not path.match(_BLOCKS)]
    if foreign:
        raise ValueError(
            f"the folder {folder} holds {min(foreign)}, which is no block of logits: move it, or"
            " give another folder."
        )


def read_blocks(folder: Any) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the blocks that `write_blocks` wrote, in order."""
    paths = sorted(pathlib.Path(folder).glob(_BLOCKS), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise FileNotFoundError(f"{folder} has no files block_*.npz; write_blocks writes them.")
    for path in paths:
        with reading.npz(path, "a block of logits", "write the blocks anew") as block:
            arrays = block["logits"], block["labels"], block["weights"]
        yield arrays
