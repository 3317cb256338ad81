"""Images of a data set that TFDS prepared, read without TensorFlow and decoded only once.

`tensorflow_datasets` reads files of the format array_record without TensorFlow, and those of the
format tfrecord, which it writes unless told otherwise, are read here (`tfrecord.py`). Decoding tens
of thousands of PNG files takes seconds all the same, so the pixels are kept beside the data set.
"""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calib_jax.core import reading
from calib_jax.data import decoded, tfrecord
from calib_jax.data.images import Images, checked_labels

VARIABLE = "CALIB_JAX_DATA_DIR"

FORMATS = ARRAY_RECORD, TFRECORD = "array_record", "tfrecord"
_ABOUT = "dataset_info.json"
_ORDER = 1  # changes when this file would hand out the same records in another way
_CHUNK = 500
_KIND = "what TFDS says of a data set"
_ADVICE = "prepare the data set anew"


def images(
    folder: pathlib.Path, *, parts: tuple[str, ...], shape: tuple[int, ...], num_classes: int
) -> tuple[Images, ...]:
    """Read parts of a data set, each in the order in which its authors published it.

    TFDS shuffles the records, and gives each an id that ends with its number in the original
    files; by these they are sorted. Where there are no such ids the order is that of the records.

    Args:
      folder: that of a version, which `found` finds.
      parts: their names in TFDS.
      shape: of one image; another is refused.
      num_classes: labels of 0 to this, exclusive; others are refused.
    """
    there = _sizes(folder)
    if missing := [part for part in parts if not there.get(part)]:
        raise reading.Unreadable(
            f"{folder / _ABOUT} tells of no examples of {' and '.join(missing)}."
        )
    sizes = {part: there[part] for part in parts}
    bytes_there = sum(path.stat().st_size for path in _files(folder))
    if sum(sizes.values()) > bytes_there:  # before memory for so many images is asked for
        raise reading.Unreadable(
            f"{folder / _ABOUT} tells of {sum(sizes.values()):,} examples, and its files have"
            f" {bytes_there:,} bytes: {_ADVICE}."
        )

    def decode() -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        with decoded.progress(sum(sizes.values()), folder.parent.name) as advance:
            for part, size in sizes.items():
                pixels, labels = _decoded(folder, part, size, shape, advance)
                labels = checked_labels(labels, num_classes, f"{part} in {folder}")
                arrays |= {f"{part}_images": pixels, f"{part}_labels": labels}
        return arrays

    kept = decoded.kept(folder / decoded.NAME, _fingerprint(folder, sizes), decode)
    return tuple(Images(kept[f"{part}_images"], kept[f"{part}_labels"]) for part in parts)


def found(
    name: str, data_dir: str | None = None, *, formats: tuple[str, ...] = FORMATS
) -> pathlib.Path:
    """Find the folder of the newest version of a data set, or say how to get it.

    Args:
      name: of the data set in TFDS; of one that has many configurations, with one of them, as in
        `cifar10_corrupted/fog_5`.
      data_dir: see `root`.
      formats: of its files, any of which will do.
    """
    given, why = root(data_dir)
    places = [given / name, given / "tfds" / name]
    others = set()
    for place in places:
        versions = [path for path in place.glob("*") if re.fullmatch(r"\d+\.\d+\.\d+", path.name)]
        versions.sort(key=lambda path: tuple(map(int, path.name.split("."))))
        for version in reversed(versions):
            if not os.path.lexists(version / _ABOUT):
                continue  # not prepared to the end
            there = _formats(version)
            if not set(formats).isdisjoint(there):
                return version
            others.add(f"{version} has the format {there[0]}, which cannot be read here")
    note = f" ({'; '.join(sorted(others))})" if others else ""
    raise FileNotFoundError(
        f"the data set {name} is neither in {places[0]} nor in {places[1]}{note}, where {why}"
        " says to look.\n"
        f"  To prepare it, where TensorFlow is installed:"
        f" `tfds build {name} --data_dir={given} --file_format={ARRAY_RECORD}`."
    )


def nowhere(reasons: Sequence[str]) -> FileNotFoundError:
    """Join why no form of a data set was found: what, where, and last the commands that help."""
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
    """List the formats in which a version is there."""
    about = _about(folder)
    others = about.get("alternativeFileFormats", ())
    return [form for form in (about.get("fileFormat", TFRECORD), *others) if isinstance(form, str)]


def _sizes(folder: pathlib.Path) -> dict[str, int]:
    """Read how many examples the parts have."""
    about = _about(folder)
    # The one place that looks into a JSON of others: what is no mapping or no list ends here.
    with reading.guard(folder / _ABOUT, _KIND, _ADVICE, library=True):
        sizes = {
            one["name"]: sum(int(size) for size in one.get("shardLengths", ()))
            for one in about.get("splits", ())
        }
        if not all(0 <= size < 1 << 63 for size in sizes.values()):
            raise ValueError("a part has no number of examples")
        return sizes


def _about(folder: pathlib.Path) -> dict[str, Any]:
    return reading.json_mapping(folder / _ABOUT, _KIND, _ADVICE)


def root(data_dir: str | None) -> tuple[pathlib.Path, str]:
    """Return the folder of all data sets, and who says so.

    Args:
      data_dir: the folder of the data sets of TFDS, or one with a subfolder `tfds` that is. None
        is what the variable CALIB_JAX_DATA_DIR says, or else the folder that TFDS itself uses.
    """
    said = {
        "data_dir": data_dir,
        f"the variable {VARIABLE}": os.environ.get(VARIABLE),
        "the variable TFDS_DATA_DIR": os.environ.get("TFDS_DATA_DIR"),
        "the habit of TFDS": "~/tensorflow_datasets",
    }
    why, folder = next((why, folder) for why, folder in said.items() if folder)
    return pathlib.Path(folder).expanduser().absolute(), why


def _fingerprint(folder: pathlib.Path, sizes: dict[str, int]) -> str:
    """Say what the files of a data set are, so that others are not taken for them."""
    files = {path.name: (path.stat().st_size, int(path.stat().st_mtime)) for path in _files(folder)}
    texts = [reading.content(path, _KIND, _ADVICE) for path in sorted(folder.glob("*.json"))]
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
    return json.dumps([_ORDER, folder.name, sizes, files, digest])


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    found = [path for form in FORMATS for path in sorted(folder.glob(f"*.{form}*"))]
    for path in found:
        with reading.opened(path, "a file of records", _ADVICE):
            pass  # a library of C++ would wait for a pipe, and ends the process for a folder
    return found


def _decoded(
    folder: pathlib.Path, part: str, size: int, shape: tuple[int, ...], advance: Any
) -> tuple[np.ndarray, np.ndarray]:
    read = _of_array_record if ARRAY_RECORD in _formats(folder) else _of_tfrecord
    names = []
    # Everything, of a reader in C++ that has no class of its own and of Pillow.
    with reading.guard(f"{part} in {folder}", "records of images", _ADVICE, library=True):
        pixels, labels = np.empty((size, *shape), np.uint8), np.empty(size, np.int32)
        for row, record in enumerate(read(folder, part, size)):
            pixels[row] = decoded.pixels(record["image"], shape)
            labels[row] = record["label"]
            names.append(record.get("id", b""))
            if not (row + 1) % _CHUNK or row + 1 == size:
                advance(row % _CHUNK + 1)
        if len(names) != size:
            raise ValueError(f"{len(names)} records instead of {size}")
    order = _numbered(names)
    return (pixels, labels) if order is None else (pixels[order], labels[order])


def _of_array_record(folder: pathlib.Path, part: str, size: int) -> Iterator[dict[str, Any]]:
    import tensorflow_datasets as tfds

    # Undecoded: which decoder TFDS takes depends on what else is installed, and two decoders of
    # JPEG differ in the last bit.
    undecoded = {"image": tfds.decode.SkipDecoding()}
    source = tfds.builder_from_directory(str(folder)).as_data_source(part, decoders=undecoded)
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
    """Find the order of the numbers with which ids end; None if they do not number everything."""
    ends = [re.search(rb"\d+$", name) for name in names]
    numbers = np.array([int(end[0]) if end else -1 for end in ends])
    order = np.argsort(numbers, kind="stable")
    return order if np.array_equal(numbers[order], np.arange(len(names))) else None
