"""Find, fetch, unpack and check the files of data sets; the functions of `experiments.data`."""

import pathlib
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np

from calib_jax import data
from calib_jax.core.names import options_of
from calib_jax.data.formats import files
from calib_jax.report import render
from experiments.running import cli


def listed(data_dir: str | None) -> str:
    """Describe every data set: facts, location on disk, and how to get it."""
    root, why = files.root(data_dir)
    rows = [["data set", "where", "download", "licence"]]
    ways = []
    for name in data.catalogue():
        about = data.about(name) or data.About(title=name, licence="not recorded")
        where = _where(name, about, data_dir)
        rows.append([name, where, _megabytes(about.size), about.licence])
        if about.has_files:
            ways.append("\n".join([f"{name}: {about.title}", *fetching(name, about, root)]))
    place = f"Looked for in {root}, the folder of {why}."
    return "\n\n".join([place, render.aligned(rows), "To get one:", *ways])


def _where(name: str, about: data.About, data_dir: str | None) -> str:
    if not about.has_files:
        return "needs no files" if data.about(name) else "not recorded"
    root, _ = files.root(data_dir)
    forms = []
    for form in files.forms(about):
        try:
            forms.append(str(files.find(name, about, data_dir, form).path.relative_to(root)))
        except FileNotFoundError:
            continue
        except (ValueError, OSError) as error:
            forms.append(cli.sentence(error).removesuffix("."))
    packed = [download.name for download in about.downloads if download.folder]
    places = files.places(name, data_dir)
    if not forms and any((place / download).is_file() for place in places for download in packed):
        return "downloaded, to be unpacked by --prepare"
    return ", ".join(forms) or "missing"


def fetching(name: str, about: data.About, root: pathlib.Path) -> list[str]:
    """List the commands that fetch a data set."""
    quoted = shlex.quote(str(root))
    lines = [f"  {about.by_hand}"] if about.by_hand else []
    for download in about.downloads:
        place = shlex.quote(str(root / name / download.name))
        lines.append(f"  curl -fL --create-dirs -o {place} {shlex.quote(download.url)}")
    if about.downloads and not about.read_as_downloaded:
        lines.append(f"  {_command('prepare', name, root)}")
    if about.tfds:
        build = f"tfds build {about.tfds} --data_dir={quoted} --file_format=array_record"
        lines.append(f"  {'or ' if lines else ''}{build}  # needs TensorFlow")
    return lines


def prepare(name: str, data_dir: str | None, unchecked: bool) -> Iterator[str]:
    """Unpack the downloaded archives of a data set, and yield lines to print."""
    about = _about(name)
    root, _ = files.root(data_dir)
    packed = [download for download in about.downloads if download.folder]
    if not packed:
        raise ValueError(f"{name} is read from its files as they are: there is nothing to prepare.")
    for download in packed:
        places = list(files.places(name, data_dir))
        ready = [place / download.folder for place in places if (place / download.folder).is_dir()]
        if ready:
            yield f"{ready[0]} is there already: nothing to do; to unpack anew, remove it first."
            continue
        there = [place / download.name for place in places if (place / download.name).is_file()]
        if not there:
            get = fetching(name, about, root)[packed.index(download)].strip()
            raise FileNotFoundError(
                f"there is no {download.name} in {places[0]} or {places[1]}: get it by `{get}`."
            )
        wrong = files.unlike(there[0], download)
        if wrong and not unchecked:
            raise ValueError(
                f"{there[0]} is not the file that was published: it has {wrong}; download it again,"
                " or take it as it is with --unchecked."
            )
        yield f"unpacked: {files.unpack(there[0], download.folder)}"
    yield f"`{_command('check', name, root)}` counts what is in it."


def check(name: str, data_dir: str | None) -> Iterator[tuple[str, bool]]:
    """Compare the files of a data set with the published facts; yield (line, whether it agrees)."""
    about = _about(name)
    for download in about.downloads:
        for place in files.places(name, data_dir):
            path = place / download.name
            if path.is_file():
                wrong = files.unlike(path, download)
                same = "size and checksum" if download.md5 else "size"
                yield f"{path}: {wrong or same + ' as published'}", not wrong
    nowhere = True
    for form in files.forms(about):
        try:
            path = files.find(name, about, data_dir, form).path
        except FileNotFoundError:
            continue
        nowhere = False
        yield f"{name} as {form}: {path}", True
        factory = data.catalogue()[name]
        options = {"data_dir": data_dir, "source": form}
        options = {key: options[key] for key in options if key in options_of(factory)}
        try:
            dataset = factory(**options)
        except (ValueError, OSError) as error:
            yield f"  {cli.sentence(error)}", False
            continue
        for part, known in about.counts.items():
            counted, agrees = _counted(dataset, part, known)
            yield f"  {part}: {counted}", agrees
    if nowhere:
        files.find(name, about, data_dir)  # raises an error that explains how to get it


def _counted(dataset: data.Dataset, part: str, known: tuple[int, ...] | int) -> tuple[str, bool]:
    """Count the examples of a published part; the training part includes validation."""
    sources: list[Any] = [dataset.test]
    if part == "train":
        sources = [dataset.train, dataset.validation]
    total = sum(map(len, sources))
    counted = f"{total:,} {_kind_of_examples(dataset)}"
    if not dataset.texts:  # the classes of a translation are the subwords
        counted += f" of {dataset.num_classes} classes"
    if isinstance(known, int):
        agrees = total == known
        return f"{counted}{',' if agrees else f', and not {known:,}'} as published", agrees
    if total != sum(known) or dataset.num_classes != len(known):
        return f"{counted}, and not {sum(known):,} of {len(known)} as published", False
    counts = np.bincount(
        np.concatenate([source.labels for source in sources]), minlength=len(known)
    )
    if (wrong := np.flatnonzero(counts != known)).size:
        label = wrong[0]
        return f"{counted}, but {counts[label]:,} and not {known[label]:,} of class {label}", False
    return f"{counted}, of each as many as published", True


def _kind_of_examples(dataset: data.Dataset) -> str:
    """Return the noun for the examples of a data set."""
    if dataset.texts:
        return "pairs of sentences"
    if dataset.vocabulary:
        return "texts"
    return "examples" if dataset.brightest is None else "images"


def _command(flag: str, name: str, root: pathlib.Path) -> str:
    return f"python -m experiments.data --{flag}={name} --data_dir={shlex.quote(str(root))}"


def _about(name: str) -> data.About:
    about = data.about(name)
    if about is None or not about.has_files:
        raise ValueError(f"{name} has no files that could be prepared or checked.")
    return about


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size else ""
