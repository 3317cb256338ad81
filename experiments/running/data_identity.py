"""The identity of a run's data, saved in its folder: data.json.

    class_names     in the order of the labels
    parts.PART      the identity of a part, as in calib_jax/train/folder/source_identity.py

An automatic split depends on the number and the order of the images. If images are added, removed
or renamed, training images become test images. So the data are compared when a run resumes and
when it is evaluated.
"""

import contextlib
import json
import pathlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from calib_jax import data
from calib_jax.core.files import reading
from calib_jax.train.folder import files, journal, source_identity
from calib_jax.train.folder.lock import InUse, only_one
from calib_jax.train.folder.source_identity import SourceIdentity
from experiments.running import cli

NAME = "data.json"
PARTS = {"train": "training", "validation": "validation", "test": "test"}
_REMOVE = "remove it if the data have not changed"


class Identity(NamedTuple):
    """The identity of a data set.

    Attributes:
      class_names: in the order of the labels; None for subwords, which subwords.txt holds.
      parts: the identities of the parts, by name.
    """

    class_names: list[str] | None
    parts: Mapping[str, SourceIdentity]


def of(dataset: data.Dataset) -> Identity:
    """Compute the identity of a data set; of sources on disk only a few examples are read."""
    names = None
    if not isinstance(dataset.vocabulary, data.Subwords):
        names = [str(name) for name in dataset.class_names]
    return Identity(
        names, {part: source_identity.of_source(getattr(dataset, part)) for part in PARTS}
    )


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
        found = source_identity.difference(part, new)
        if found in ("labels", "weights"):
            return f"with other {found} of the {kind} examples than the data set has now"
        if found:
            return f"with other {kind} examples of the same labels than the data set has now"
    return ""


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
    by_name = {
        part: SourceIdentity(*map(parts[part].get, SourceIdentity._fields)) for part in PARTS
    }
    for name, (examples, labels, *inputs, read_labels, weights) in by_name.items():
        numbers = [examples, *(crc for crc in (labels, read_labels, weights) if crc is not None)]
        if not (_holds(numbers, int) and all(v is None or _holds(v, int) for v in inputs)):
            raise ValueError(f"its part {name} holds no numbers of examples")
    return Identity(names, by_name)


def _holds(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)
