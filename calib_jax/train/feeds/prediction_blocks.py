"""Predictions of a source batch by batch, for data sets whose logits do not fit into memory."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from calib_jax.core.examples import Source
from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.core.types import PyTree
from calib_jax.train.devices import parallel
from calib_jax.train.devices.parallel import Devices
from calib_jax.train.feeds.prediction import check_arguments, rows_step
from calib_jax.train.feeds.streamed import Streamed
from calib_jax.train.loop.arrangement import Arrangement
from calib_jax.train.step.forward import Forward
from calib_jax.train.step.step import identity

# Logits of every state, labels and weights of a batch.
Block = tuple[list[np.ndarray], np.ndarray, np.ndarray]

_PRECISIONS = ("float16", "float32")
_BLOCKS = "block_*.npz"


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
    `metrics.Stream`; for calibrators with `fit_stream`, pass a function that calls
    `predict_blocks` anew for each pass.

    Args:
      forward: the forward pass of the network.
      states: train states, on the host.
      source: the examples; they are streamed even if they are in memory.
      prepare: as in training.
      batch_size: the batch size.
      devices: the devices; all devices of this process by default.
      threads: the number of reader threads; one per available core by default.
    """
    check_arguments(forward, states, source)
    devices = parallel.local_devices() if devices is None else devices
    arrangement = Arrangement(devices, len(states))
    step = rows_step(forward, prepare)
    fed = Streamed(source, arrangement, threads=threads)
    placed = arrangement.place(states)
    for stats in fed.batch_statistics(step, batch_size)(placed, [True] * len(states)):
        rows = [of_state["metrics"]["all"] for of_state in stats]
        labels, weights = (np.asarray(rows[0][name]) for name in ("labels", "weights"))
        yield [np.asarray(of_state["logits"]) for of_state in rows], labels, weights


def write_blocks(
    blocks: Iterable[tuple[Any, Any, Any]], folder: Any, *, dtype: str = "float32"
) -> int:
    """Write blocks of (logits, labels, weights) as block_00000.npz, ...; return the block count.

    The blocks are written beside the folder and then renamed, so that an error or a kill leaves the
    old blocks whole.

    Args:
      blocks: the blocks of one network.
      folder: a new folder, or a folder that holds only older blocks, which are replaced.
      dtype: the dtype of the logits: "float16" halves the size and rounds them to 3 digits, or
        "float32".
    """
    checks.one_of("dtype", dtype, _PRECISIONS)
    folder = pathlib.Path(folder)
    new, old = _beside(folder)
    check_replaceable(folder)
    _remove_blocks(new)
    if folder.is_dir():
        _remove_blocks(old)
    new.mkdir(parents=True)
    try:
        number = _write(blocks, new, dtype)
    except BaseException:
        _remove_blocks(new)
        raise
    if folder.is_dir():
        folder.rename(old)
    new.rename(folder)
    _remove_blocks(old)
    return number


def check_replaceable(folder: pathlib.Path) -> None:
    """Raise an error for a file that is not a block: `write_blocks` replaces a whole folder."""
    for place in (folder, *_beside(folder)):
        if not place.exists():
            continue
        if not place.is_dir():
            raise NotADirectoryError(f"{place} is a file: give a folder for the logits.")
        foreign = [path.name for path in place.iterdir() if not path.match(_BLOCKS)]
        if foreign:
            raise ValueError(
                f"the folder {place} holds {min(foreign)}, which is no block of logits: move it, or"
                " give another folder."
            )


def _beside(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Return the paths of the new and the old blocks while a folder is replaced."""
    return folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")


def _write(blocks: Iterable[tuple[Any, Any, Any]], folder: pathlib.Path, dtype: str) -> int:
    number = 0
    for number, (logits, labels, weights) in enumerate(blocks, 1):
        with np.errstate(over="ignore"):
            rounded = np.asarray(logits).astype(dtype)
        if np.any(np.isinf(rounded) & np.isfinite(logits)):
            raise ValueError(
                f"block {number - 1} has logits beyond the largest {dtype}; write them as float32."
            )
        path = folder / f"block_{number - 1:05d}.npz"
        np.savez(path, logits=rounded, labels=labels, weights=weights)
    return number


def _remove_blocks(folder: pathlib.Path) -> None:
    if folder.is_dir():
        for path in folder.glob(_BLOCKS):
            path.unlink()
        folder.rmdir()


def read_blocks(folder: Any) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the blocks that `write_blocks` wrote, in order."""
    paths = sorted(pathlib.Path(folder).glob(_BLOCKS), key=lambda path: (len(path.name), path.name))
    if not paths:
        raise FileNotFoundError(f"{folder} has no files block_*.npz; write_blocks writes them.")
    for path in paths:
        with reading.npz(path, "a block of logits", "write the blocks anew") as block:
            arrays = block["logits"], block["labels"], block["weights"]
        yield arrays
