"""The identity of a run's data, saved in its folder: data.json.

    class_names                 in the order of the labels
    parts.PART.examples         the number of examples
    parts.PART.labels           the CRC of the labels; null if the source would have to read them
    parts.PART.input_means      the mean input of up to 1,000 examples; null unless the inputs are
                                integers, such as the pixels of a user's images
    parts.PART.input_sums       three weighted sums of the inputs of up to 100 examples; a mean is
                                the same for a mirrored image and for words in another order
    parts.PART.float_sums       the size and three weighted sums of the inputs that are floats
    parts.PART.read_labels      the CRC of the labels of a few examples, where `labels` is null

Of a source that is not in memory only 8 examples are read. A source that returns different inputs
at every reading has no sums.

An automatic split depends on the number and the order of the images. If images are added, removed
or renamed, training images become test images. So the data are compared when a run resumes and
when it is evaluated.
"""

import contextlib
import json
import math
import pathlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from calib_jax import data
from calib_jax.core.examples import Examples, InMemory, Source, labels_of
from calib_jax.core.files import reading
from calib_jax.train.folder import files, journal
from calib_jax.train.folder.lock import InUse, only_one
from experiments.running import cli

NAME = "data.json"
PARTS = {"train": "training", "validation": "validation", "test": "test"}
_CHUNK = 1 << 20  # labels converted at once
_MOST_MEANS, _MOST_SUMS, _MOST_READ = 1000, 100, 8
_NUM_SUMS = 3
_FLOAT_STEPS = 10_000  # sums of floats are rounded to this fraction of their typical size
# JPEG decoders differ by less than one level in the mean of an image, and by a few levels in a
# pixel. Sums of pixels are divided by the root mean square of a sum of independent errors of one
# level; the sums of another image differ by many times that amount.
_TOLERANCE = {"input_means": 1, "input_sums": 16, "float_sums": 16}
_DARK = 64  # inputs with smaller integers are not photographs; their sums are not divided
_REMOVE = "remove it if the data have not changed"


class Part(NamedTuple):
    """The identity of a part of the data.

    Attributes:
      examples: the number of examples.
      labels: the CRC of the labels; None if they are unknown.
      input_means: the rounded mean input of some examples; None if unknown.
      input_sums: weighted sums of the inputs of some examples, concatenated; None if unknown.
      float_sums: the same for inputs that are floats; see `_sums_of_floats`.
      read_labels: the CRC of the labels of some examples that were read; None if `labels` is known.
    """

    examples: int
    labels: int | None
    input_means: list[int] | None
    input_sums: list[int] | None
    float_sums: list[int] | None = None
    read_labels: int | None = None


class Identity(NamedTuple):
    """The identity of a data set.

    Attributes:
      class_names: in the order of the labels; None for subwords, which subwords.txt holds.
      parts: the identities of the parts, by name.
    """

    class_names: list[str] | None
    parts: Mapping[str, Part]


def of(dataset: data.Dataset) -> Identity:
    """Compute the identity of a data set; of sources on disk only a few examples are read."""
    names = None
    if not isinstance(dataset.vocabulary, data.Subwords):
        names = [str(name) for name in dataset.class_names]
    return Identity(names, {part: _of_part(getattr(dataset, part)) for part in PARTS})


def _of_part(source: Source) -> Part:
    labels = labels_of(source)
    means: Examples | None
    sums: Examples | None
    if isinstance(source, InMemory):
        means, sums = _sample(source, _MOST_MEANS), _sample(source, _MOST_SUMS)
    else:
        means = sums = _read_sample(source)
    integers, floats = _inputs(means, "iu"), _inputs(sums, "f")
    integer_sums = _inputs(sums, "iu")
    return Part(
        len(source),
        None if labels is None else _crc(labels),
        None if integers is None else np.rint(integers.mean(axis=1)).astype(int).tolist(),
        None if integer_sums is None else _weighted_sums(integer_sums),
        None if floats is None else _sums_of_floats(floats),
        None if sums is None or labels is not None else _crc(np.asarray(sums.labels)),
    )


def _sample(source: Source, most: int) -> Examples:
    """Read examples at equal distances."""
    few = min(len(source), most)
    return source[np.arange(few) * len(source) // max(few, 1)]


def _read_sample(source: Source) -> Examples | None:
    """Read a few examples twice; None if the inputs differ, as random crops do."""
    first, again = _sample(source, _MOST_READ), _sample(source, _MOST_READ)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True)
    return first if all(np.array_equal(a, b, equal_nan=_is_float(a)) for a, b in pairs) else None


def _is_float(array: Any) -> bool:
    return np.asarray(array).dtype.kind == "f"


def _crc(labels: np.ndarray) -> int:
    """Compute the CRC of labels, which does not depend on their integer type."""
    flat, crc = labels.reshape(-1), 0
    for start in range(0, len(flat), _CHUNK):
        crc = zlib.crc32(flat[start : start + _CHUNK].astype("<i4").tobytes(), crc)
    return crc


def _inputs(examples: Examples | None, kinds: str) -> np.ndarray | None:
    """Concatenate the inputs of some kinds of dtypes, `[examples, inputs]`; None if there are none.

    Args:
      examples: the sample; None if there is none.
      kinds: the kinds of dtypes, as in `np.dtype.kind`.
    """
    if examples is None:
        return None
    arrays: Sequence[np.ndarray] = [np.asarray(leaf) for leaf in jax.tree.leaves(examples.inputs)]
    chosen = [array for array in arrays if array.dtype.kind in kinds]
    if not chosen:
        return None
    return np.concatenate(
        [array.reshape(len(array), math.prod(array.shape[1:])) for array in chosen], axis=1
    )


def _weighted_sums(inputs: np.ndarray) -> list[int]:
    """Compute sums of the inputs of each example with fixed pseudo-random integer weights.

    Every position has its own weights, so the same values in another order give other sums. Sums of
    pixels are scaled as described at `_TOLERANCE`.
    """
    weights = _weights(inputs.shape[1])
    # Integer matrix products are slow; float64 products are exact up to 2^53.
    sums = np.concatenate(
        [rows.astype(np.float64) @ weights for rows in np.array_split(inputs, len(inputs) // 8 + 1)]
    )
    if _are_pixels(inputs):
        sums /= math.sqrt(max(np.square(weights).sum() / _NUM_SUMS, 1.0))
    return [int(value) for value in np.rint(sums).reshape(-1)]


def _weights(count: int) -> np.ndarray:
    # NumPy never changes the stream of RandomState, nor the stream for an explicit dtype.
    return np.random.RandomState(0).randint(-99, 100, (count, _NUM_SUMS), dtype=np.int64)


def _sums_of_floats(inputs: np.ndarray) -> list[int]:
    """Compute the size of each example, and weighted sums of its inputs in units of the size.

    The size is the root mean square of the inputs, in logarithm. A sum is divided by the root mean
    square of a sum of independent inputs of this size, so rounding errors of the inputs are far
    below one step. Values that are not finite count as 0.
    """
    rows = np.where(np.isfinite(inputs), inputs, 0).astype(np.float64)
    sizes = np.sqrt(np.square(rows).mean(axis=1, keepdims=True)) if rows.size else rows[:, :1]
    weights = _weights(inputs.shape[1])
    scale = sizes * math.sqrt(max(np.square(weights).sum() / _NUM_SUMS, 1.0))
    empty = sizes == 0
    sums = np.divide(rows @ weights, scale, where=~empty, out=np.zeros((len(rows), _NUM_SUMS)))
    logarithms = np.log2(sizes, where=~empty, out=np.zeros_like(sizes))
    values = np.concatenate([logarithms, sums], axis=1)
    return [int(value) for value in np.rint(values * _FLOAT_STEPS).reshape(-1)]


def _are_pixels(inputs: np.ndarray) -> bool:
    return inputs.dtype == np.uint8 and bool(inputs.size) and bool(inputs.max() >= _DARK)


def keep(folders: Collection[pathlib.Path], config: ConfigDict, dataset: data.Dataset) -> None:
    """Save the data identity of runs that start, and check the identity of runs that resume.

    If a run resumes whose file was removed, the file is written again. A folder with another config
    is not changed, because training refuses it.
    """
    if jax.process_index() > 0:  # only process 0 writes
        return
    identity = of(dataset)
    for folder in folders:
        check_resumed(folder, config, identity)
    for folder in folders:
        removed = _same_data(folder, config) is True and not (folder / NAME).exists()
        if removed or not _has_checkpoint(folder):
            _write(folder, identity)


def _write(folder: pathlib.Path, identity: Identity) -> None:
    """Write the file; raise an error if the folder holds another file of this name."""
    read(folder)
    parts = {name: part._asdict() for name, part in identity.parts.items()}
    text = json.dumps({"parts": parts, "class_names": identity.class_names}) + "\n"
    path = folder / NAME
    with files.writing(path), contextlib.suppress(InUse):  # training reports these errors
        folder.mkdir(parents=True, exist_ok=True)
        with only_one(folder):
            files.replace(path, text)


def check_resumed(folder: pathlib.Path, config: ConfigDict, identity: Identity) -> None:
    """Check the data of a run that resumes; a run without a checkpoint starts again."""
    if _has_checkpoint(folder) and _same_data(folder, config) is not False:
        check(folder, identity)


def _has_checkpoint(folder: pathlib.Path) -> bool:
    return any((folder / "checkpoints").glob("[0-9]*"))


def _same_data(folder: pathlib.Path, config: ConfigDict) -> bool | None:
    """Compare the data set and its options with a run's config; None if the config is unknown."""
    try:
        saved = reading.json_mapping(folder / journal.CONFIG, "a config")
    except (FileNotFoundError, reading.Unreadable):  # training restores the file
        return None
    return bool(saved.get("data") == cli.plain(config)["data"])


def check(folder: pathlib.Path, identity: Identity) -> None:
    """Raise an error if a run was trained with other data; accept a run whose file was removed."""
    saved = read(folder)
    if saved is not None and (difference := _difference(saved, identity)):
        raise ValueError(
            f"{folder} was trained {difference}: restore the data, or train anew in another folder."
        )


def _difference(before: Identity, now: Identity) -> str:
    """Describe the first difference of two identities; skip values that one of them lacks."""
    if before.class_names is not None and now.class_names is not None:
        names, new_names = before.class_names, now.class_names
        if len(names) != len(new_names):
            return f"on {len(names):,} classes, and the data set has {len(new_names):,} now"
        for number, (name, new_name) in enumerate(zip(names, new_names, strict=True)):
            if name != new_name:
                return f"with {name!r} as the class {number}, which is {new_name!r} now"
    parts = [(kind, before.parts[part], now.parts[part]) for part, kind in PARTS.items()]
    for kind, part, new in parts:
        if part.examples != new.examples:
            count, new_count = f"{part.examples:,} {kind} examples", f"{new.examples:,} now"
            on = "on" if kind == "training" else "with"
            return f"{on} {count}, and the data set has {new_count}"
    for kind, part, new in parts:
        labels = (part.labels, new.labels), (part.read_labels, new.read_labels)
        if any(None not in pair and pair[0] != pair[1] for pair in labels):
            return f"with other labels of the {kind} examples than the data set has now"
        if any(
            _differ(getattr(part, name), getattr(new, name), tolerance)
            for name, tolerance in _TOLERANCE.items()
        ):
            return f"with other {kind} examples of the same labels than the data set has now"
    return ""


def _differ(numbers: list[int] | None, new_numbers: list[int] | None, tolerance: int) -> bool:
    if numbers is None or new_numbers is None or len(numbers) != len(new_numbers):
        return False
    return bool(np.any(np.abs(np.subtract(numbers, new_numbers)) > tolerance))


def read(folder: pathlib.Path) -> Identity | None:
    """Read the identity of a run's data; None if the file was removed."""
    path, kind = folder / NAME, "the identity of a data set"
    try:
        with reading.guard(path, kind, _REMOVE):
            return _parsed(reading.json_mapping(path, kind, _REMOVE))
    except FileNotFoundError:
        return None


def _parsed(saved: Mapping[str, Any]) -> Identity:
    """Convert JSON to an identity, and raise an error for values of another type."""
    names, parts = saved.get("class_names"), saved.get("parts")
    if names is not None and not _holds(names, str):
        raise ValueError("its class_names are no names")
    if not isinstance(parts, dict) or not all(isinstance(parts.get(part), dict) for part in PARTS):
        raise ValueError(f"its parts are not {', '.join(PARTS)}")
    by_name = {part: Part(*map(parts[part].get, Part._fields)) for part in PARTS}
    for name, (examples, labels, *inputs, read_labels) in by_name.items():
        numbers = [examples, *(crc for crc in (labels, read_labels) if crc is not None)]
        if not (_holds(numbers, int) and all(v is None or _holds(v, int) for v in inputs)):
            raise ValueError(f"its part {name} holds no numbers of examples")
    return Identity(names, by_name)


def _holds(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)
