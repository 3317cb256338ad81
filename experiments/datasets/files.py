"""Find, fetch, unpack and check the files of data sets, and print examples as a network gets them.

The functions of `experiments.data`.
"""

import pathlib
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from calib_jax import data
from calib_jax.core import checks
from calib_jax.core.examples import Examples
from calib_jax.data.formats import files
from calib_jax.report import render
from experiments.running import building, cli

_WIDTH = 100
_STRUCTURE = ("children", "parents")  # inputs that are positions in a sentence, not words


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
        known = "named by its options" if about.licence == "your own" else "needs no files"
        return known if data.about(name) else "not recorded"
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
        options = {key: options[key] for key in options if key in checks.options_of(factory)}
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


# ------------------------------------------------------------------------------------------------
# Examples.


def shown(name: str, number: int, data_dir: str | None) -> str:
    """Describe a data set, and the example with a given number in each part.

    Args:
      name: the name of the data set, which is read with its default options.
      number: the number of the example, from 0.
      data_dir: folder of the data sets.
    """
    checks.at_least("number", number, 0)
    dataset = building.data_set(name, {}, data_dir)
    parts = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    largest = max(map(len, parts.values()))
    if number >= largest:
        raise ValueError(f"--example={number} is in no part of {name}: give at most {largest - 1}.")
    lines = [textwrap.fill(dataset.description, _WIDTH)]
    for part, source in parts.items():
        if number >= len(source):
            lines += ["", f"{part}: has {len(source):,} examples, numbered from 0"]
            continue
        lines += ["", f"{part}, example {number:,} of {len(source):,}"]
        lines += described(dataset, Examples(*source[np.array([number])]))
    return "\n".join(lines)


def described(dataset: data.Dataset, batch: Examples) -> list[str]:
    """Describe the first example of a batch: at least one line per array and for the labels."""
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[0], batch)
    lines = []
    for path, leaf in jax.tree.leaves_with_path(batch.inputs):
        name = jax.tree_util.keystr(path, simple=True, separator="/") or "input"
        lines += _row(name, f"{leaf.dtype} {list(leaf.shape)}")
        if dataset.vocabulary is not None and name not in _STRUCTURE:
            lines += _row("", " ".join(_words(dataset.vocabulary, leaf)))
        elif np.issubdtype(leaf.dtype, np.number):
            lines += _row("", f"values {leaf.min():g} to {leaf.max():g}")
    return lines + _labels(dataset, batch)


def _row(name: str, text: str) -> list[str]:
    start = f"  {name:<10}"
    indent = " " * len(start)
    return textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=indent) or [start]


def _words(vocabulary: Any, numbers: np.ndarray) -> list[str]:
    """Convert numbers to words or subwords, without padding."""
    known: Sequence[str]
    if isinstance(vocabulary, data.WordPiece):
        known = vocabulary.vocabulary
    elif isinstance(vocabulary, data.Subwords):
        known = vocabulary.pieces
    elif isinstance(vocabulary, data.Vocabulary):
        known = ("", *vocabulary.words)
    else:
        raise TypeError(f"a vocabulary of type {type(vocabulary).__name__} is not known.")
    return [known[number] for number in numbers.tolist() if number]


def _labels(dataset: data.Dataset, example: Examples) -> list[str]:
    """Describe the label, or the labels: a tree, a translation, or shares of the classes."""
    labels, names = example.labels, dataset.class_names
    if labels.ndim == 0:
        return _row("label", names[labels])
    weights = np.ones(()) if example.weights is None else example.weights
    apart = (1,) * (labels.ndim - weights.ndim)  # one weight for all labels of an example
    present = np.broadcast_to(weights.reshape(weights.shape + apart), labels.shape) > 0
    inputs = example.inputs if isinstance(example.inputs, dict) else {}
    lines = _row("labels", f"{labels.dtype} {list(labels.shape)}, {present.sum():,} with weight")
    if "children" in inputs:
        return lines + _row("tree", _tree(dataset, inputs, labels, present))
    if "target" in inputs:
        return lines + _row("", " ".join(names[label] for label in labels[present]))
    counts = np.bincount(labels[present].astype(int), minlength=len(names))
    shares = [
        f"{names[k]} {counts[k] / counts.sum():.1%}" for k in np.argsort(-counts) if counts[k]
    ]
    return lines + _row("", ", ".join(shares))


def _tree(
    dataset: data.Dataset, inputs: dict[str, np.ndarray], labels: np.ndarray, present: np.ndarray
) -> str:
    """Format a tree in brackets; the class of a labelled node follows its bracket."""
    children, count = inputs["children"], len(inputs["words"])
    pairs: dict[int, Sequence[int]] = dict(enumerate(children.tolist(), start=count))
    known = dict(enumerate(_words(dataset.vocabulary, inputs["words"])))
    # The root comes last: padded inner nodes have the first word as both children.
    inner = [node for node, (left, right) in pairs.items() if left != right]

    def written(node: int) -> str:
        below = [known[node]] if node < count else [written(child) for child in pairs[node]]
        if present[node]:
            below = [dataset.class_names[labels[node]], *below]
        return f"({' '.join(below)})" if len(below) > 1 else below[0]

    return written(inner[-1] if inner else 0)
