"""Read images prepared by TFDS without TensorFlow, and cache the decoded pixels.

`tensorflow_datasets` reads the format array_record without TensorFlow; `tfrecord.py` reads its
default format tfrecord. Decoding tens of thousands of PNG files takes seconds, so the pixels are
cached beside the data set.
"""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.data.formats import tfrecord
from calib_jax.data.images import decoded
from calib_jax.data.images.image_sets import Images, checked_labels

VARIABLE = "CALIB_JAX_DATA_DIR"

FORMATS = ARRAY_RECORD, TFRECORD = "array_record", "tfrecord"
_ABOUT, _FEATURES = "dataset_info.json", "features.json"
_CLASS_KEYS = {"type", "pythonclassname"}  # of the old and the new form of the features
_ORDER = 1  # increment if this file changes the order or content of the returned records
_CHUNK = 500
_KIND = "the description of a data set by TFDS"
_ADVICE = "prepare the data set anew"


def images(
    folder: pathlib.Path, *, parts: tuple[str, ...], shape: tuple[int, ...], num_classes: int
) -> tuple[Images, ...]:
    """Read the parts of a data set, each in the order in which its authors published it.

    TFDS shuffles the records and gives each an id that ends with its number in the original files.
    The records are sorted by these ids; without ids they keep the order of TFDS.

    Args:
      folder: the folder of a version, as returned by `find_version`.
      parts: names of the parts in TFDS.
      shape: required shape of an image.
      num_classes: labels must lie in [0, num_classes).
    """
    available = _sizes(folder)
    if missing := [part for part in parts if not available.get(part)]:
        raise reading.Unreadable(
            f"{folder / _ABOUT} has no examples of {' and '.join(missing)}: {_ADVICE}."
        )
    sizes = {part: available[part] for part in parts}
    bytes_of_files = sum(path.stat().st_size for path in _files(folder))
    if sum(sizes.values()) > bytes_of_files:  # check before allocating memory for the images
        raise reading.Unreadable(
            f"{folder / _ABOUT} has {sum(sizes.values()):,} examples, but its files have only"
            f" {bytes_of_files:,} bytes: {_ADVICE}."
        )

    def decode() -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        with decoded.progress(sum(sizes.values()), folder.parent.name) as advance:
            for part, size in sizes.items():
                pixels, labels = _decoded(folder, part, size, shape, advance)
                labels = checked_labels(labels, num_classes, f"{part} in {folder}")
                arrays |= {f"{part}_images": pixels, f"{part}_labels": labels}
        return arrays

    arrays = decoded.cached(folder / decoded.NAME, _fingerprint(folder, sizes), decode)
    return tuple(Images(arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in parts)


def texts(folder: pathlib.Path, part: str, features: Sequence[str]) -> list[list[str]]:
    """Read the texts of some features of a part, in the order of TFDS.

    Args:
      folder: the folder of a version, as returned by `find_version`.
      part: the name of the part in TFDS.
      features: the names of the features.
    """
    size = _sizes(folder).get(part, 0)
    if not size:
        raise reading.Unreadable(f"{folder / _ABOUT} has no examples of {part}: {_ADVICE}.")
    read: list[list[str]] = [[] for _ in features]
    with reading.guard(f"{part} in {folder}", "records of texts", _ADVICE, library=True):
        for record in _records(folder, part, size):
            for feature, lines in zip(features, read, strict=True):
                lines.append(record[feature].decode("utf-8"))
        if len(read[0]) != size:
            raise ValueError(f"{len(read[0])} records instead of {size}")
    return read


def find_version(
    name: str, data_dir: str | None = None, *, formats: tuple[str, ...] = FORMATS
) -> pathlib.Path:
    """Find the folder of the newest version of a data set; the error explains how to get it.

    Args:
      name: its name in TFDS, with the configuration if it has several, as in
        `cifar10_corrupted/fog_5`.
      data_dir: see `root`.
      formats: accepted file formats.
    """
    folder, why = root(data_dir)
    places = [folder / name, folder / "tfds" / name]
    others = set()
    for place in places:
        versions = [path for path in place.glob("*") if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
        versions.sort(key=lambda path: tuple(map(int, path.name.split("."))))
        for version in reversed(versions):
            if not os.path.lexists(version / _ABOUT):
                continue  # preparation was interrupted
            formats_here = _formats(version)
            if not set(formats).isdisjoint(formats_here):
                return version
            others.add(f"{version} has the format {formats_here[0]}, which cannot be read here")
    note = f" ({'; '.join(sorted(others))})" if others else ""
    raise FileNotFoundError(
        f"the data set {name} is neither in {places[0]} nor in {places[1]} (from {why}){note}.\n"
        f"  To prepare it, where TensorFlow is installed:"
        f" `tfds build {name} --data_dir={folder} --file_format={ARRAY_RECORD}`."
    )


def nowhere(reasons: Sequence[str]) -> FileNotFoundError:
    """Build the error for a missing data set: the reasons, then commands that help."""
    return FileNotFoundError(
        "\n".join(
            [
                *reasons,
                "`python -m experiments.data --list` shows where every data set lies, and how to"
                " get it.",
                f"To look in another folder: --data_dir=DIR, or the variable {VARIABLE}.",
            ]
        )
    )


def _formats(folder: pathlib.Path) -> list[str]:
    """List the file formats of a version."""
    about = _about(folder)
    others = about.get("alternativeFileFormats", ())
    return [form for form in (about.get("fileFormat", TFRECORD), *others) if isinstance(form, str)]


def _sizes(folder: pathlib.Path) -> dict[str, int]:
    """Read the number of examples of each part."""
    about = _about(folder)
    # The JSON is untrusted: the guard turns any wrong type in it into an Unreadable.
    with reading.guard(folder / _ABOUT, _KIND, _ADVICE, library=True):
        sizes = {
            split["name"]: sum(int(size) for size in split.get("shardLengths", ()))
            for split in about.get("splits", ())
        }
        if not all(0 <= size < 1 << 63 for size in sizes.values()):
            raise ValueError("a part has no number of examples")
        return sizes


def _about(folder: pathlib.Path) -> dict[str, Any]:
    return reading.json_mapping(folder / _ABOUT, _KIND, _ADVICE)


def root(data_dir: str | None) -> tuple[pathlib.Path, str]:
    """Return the folder of all data sets, and the name of the setting that chose it.

    Args:
      data_dir: the folder of the data sets of TFDS, or the folder that contains it as `tfds`. None
        uses the environment variable CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then
        ~/tensorflow_datasets.
    """
    settings = {
        "data_dir": data_dir,
        f"the variable {VARIABLE}": os.environ.get(VARIABLE),
        "the variable TFDS_DATA_DIR": os.environ.get("TFDS_DATA_DIR"),
        "the default of TFDS": "~/tensorflow_datasets",
    }
    why, folder = next((why, folder) for why, folder in settings.items() if folder)
    return pathlib.Path(folder).expanduser().absolute(), why


def opened(folder: pathlib.Path, part: str, images: Sequence[str] = ()) -> Any:
    """Open a part in array_record for random access; the features in `images` stay encoded."""
    import tensorflow_datasets as tfds

    _check_features(folder / _FEATURES)
    # Skip decoding: the decoder of TFDS depends on the installed packages, and JPEG decoders differ
    # in the last bit.
    undecoded = {name: tfds.decode.SkipDecoding() for name in images}
    try:
        return tfds.builder_from_directory(str(folder)).as_data_source(part, decoders=undecoded)
    except ImportError as error:  # TFDS looks up a dtype that NumPy does not know in TensorFlow
        raise reading.Unreadable(
            f"{folder / _FEATURES} has a feature that only TensorFlow can read: {_ADVICE}."
        ) from error


def _check_features(path: pathlib.Path) -> None:
    """Raise an error if a feature's class is none of TFDS, which would import any module."""
    with reading.guard(path, _KIND, _ADVICE):
        waiting = [reading.json_value(path, _KIND, _ADVICE)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list):
                waiting += value
            elif isinstance(value, dict):
                waiting += value.values()
                for key, name in value.items():
                    if key.replace("_", "").lower() not in _CLASS_KEYS or not isinstance(name, str):
                        continue
                    if "." in name and not name.startswith("tensorflow_datasets.core.features."):
                        raise ValueError(f"it names the class {name[:80]!r}, which is none of TFDS")


def columns(
    source: Any, features: Sequence[str], advance: Callable[[int], object]
) -> list[np.ndarray]:
    """Read some features of all records, which are numbers or names in bytes."""
    read: list[list[Any]] = [[] for _ in features]
    for number in range(len(source)):
        record = source[number]
        for feature, values in zip(features, read, strict=True):
            values.append(record[feature])
        advance(1)
    return [np.array(values) for values in read]


def fingerprint_of_records(folder: pathlib.Path) -> str:
    """Return the fingerprint of the files of records of a version."""
    return decoded.fingerprint(folder, (path.name for path in _files(folder)))


def _fingerprint(folder: pathlib.Path, sizes: dict[str, int]) -> str:
    """Return a fingerprint of the files, so that a cache of other files is not reused."""
    texts = [reading.content(path, _KIND, _ADVICE) for path in sorted(folder.glob("*.json"))]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
    return json.dumps([_ORDER, folder.name, sizes, fingerprint_of_records(folder), digest])


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    paths = [path for form in FORMATS for path in sorted(folder.glob(f"*.{form}*"))]
    for path in paths:
        with reading.opened(path, "a file of records", _ADVICE):
            pass  # the C++ reader would block on a pipe, and kills the process for a folder
    return paths


def _decoded(
    folder: pathlib.Path, part: str, size: int, shape: tuple[int, ...], advance: Any
) -> tuple[np.ndarray, np.ndarray]:
    names = []
    # The C++ reader has no exception class of its own, and Pillow raises many: catch all.
    with reading.guard(f"{part} in {folder}", "records of images", _ADVICE, library=True):
        pixels, labels = np.empty((size, *shape), np.uint8), np.empty(size, np.int32)
        for row, record in enumerate(_records(folder, part, size, ("image",))):
            pixels[row] = decoded.pixels(record["image"], shape)
            labels[row] = record["label"]
            names.append(record.get("id", b""))
            if not (row + 1) % _CHUNK or row + 1 == size:
                advance(row % _CHUNK + 1)
        if len(names) != size:
            raise ValueError(f"{len(names)} records instead of {size}")
    order = _numbered(names)
    return (pixels, labels) if order is None else (pixels[order], labels[order])


def _records(
    folder: pathlib.Path, part: str, size: int, images: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the records of a part; the features in `images` stay encoded."""
    if ARRAY_RECORD in _formats(folder):
        return _of_array_record(folder, part, size, images)
    return _of_tfrecord(folder, part, size)


def _of_array_record(
    folder: pathlib.Path, part: str, size: int, images: Sequence[str]
) -> Iterator[dict[str, Any]]:
    source = opened(folder, part, images)
    if len(source) != size:
        raise ValueError(f"{len(source)} records instead of {size}")
    for start in range(0, size, _CHUNK):
        yield from source.__getitems__(range(start, min(start + _CHUNK, size)))


def _of_tfrecord(folder: pathlib.Path, part: str, size: int) -> Iterator[dict[str, Any]]:
    shards = sorted(folder.glob(f"*-{part}.{TFRECORD}-*"))
    rows = (tfrecord.example(data) for shard in shards for data in tfrecord.records(shard))
    for row, record in enumerate(rows):
        if row == size:
            raise ValueError(f"more records than {size}")
        yield record


def _numbered(names: list[bytes]) -> np.ndarray | None:
    """Return the order of the numbers at the end of the ids; None unless they are 0 to n - 1."""
    ends = [re.search(rb"\d+$", name) for name in names]
    numbers = np.array([int(end[0]) if end else -1 for end in ends])
    order = np.argsort(numbers, kind="stable")
    return order if np.array_equal(numbers[order], np.arange(len(names))) else None
