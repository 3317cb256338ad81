"""Pairs of a sentence and its translation: reading, checks, and numbers for a network."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import Examples, InMemory
from calib_jax.core.files import reading
from calib_jax.data.dataset import Dataset, subset
from calib_jax.data.formats import files
from calib_jax.data.text.subwords import BEGIN, END, PADDING, Subwords

DIRECTIONS = ("de-en", "en-de")
LANGUAGES = {"de": "German", "en": "English"}
PARTS = ("train", "validation", "test")
_KIND = "lines of text"
_ADVICE = "download the file again"
_MAX_BYTES = 1 << 30

Lines = list[str]


class Parallel(NamedTuple):
    """The sentences of both languages, line by line.

    Attributes:
      source: the sentences to translate.
      target: their translations.
    """

    source: Sequence[str]
    target: Sequence[str]


def read_lines(path: pathlib.Path) -> Lines:
    """Read the lines of a text file, which may be compressed by gzip."""
    with reading.guard(path, _KIND, _ADVICE):
        content = files.content(path, _KIND, _ADVICE, at_most=_MAX_BYTES)
        lines = content.decode("utf-8-sig").split("\n")
        lines = [line.removesuffix("\r") for line in lines]
        return lines[:-1] if lines[-1] == "" else lines


def parallel(names: tuple[Any, Any], sides: tuple[Lines, Lines]) -> Parallel:
    """Pair the lines of two files; raise an error that names the first line without a partner.

    Args:
      names: the names of both files, for the message.
      sides: their lines.
    """
    if len(sides[0]) != len(sides[1]):
        longer = 0 if len(sides[0]) > len(sides[1]) else 1
        unpaired = min(map(len, sides)) + 1
        raise reading.Unreadable(
            f"{names[0]} has {len(sides[0]):,} lines and {names[1]} {len(sides[1]):,}:\nline"
            f" {unpaired:,} of {names[longer]} has no translation; {_ADVICE}."
        )
    if not sides[0]:
        raise reading.Unreadable(f"{names[0]} has no line: {_ADVICE}.")
    for name, lines in zip(names, sides, strict=True):
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                raise reading.Unreadable(
                    f"{name}, line {number:,}, is empty: remove the line from both files."
                )
    return Parallel(*sides)


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of numbers of unequal lengths.

    Attributes:
      numbers: all rows, one after the other.
      ends: `[rows + 1]`, 0 and the end of each row.
    """

    numbers: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]], dtype: Any) -> "Ragged":
        """Store rows; each is converted at once, so that an iterator needs little memory."""
        parts = [np.asarray(row, dtype) for row in rows]
        ends = np.cumsum([0, *map(len, parts)])
        return cls(np.concatenate([np.empty(0, dtype), *parts]), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The length of each row."""
        return np.diff(self.ends)

    def padded(self, index: np.ndarray, length: int) -> np.ndarray:
        """Return some rows, `[rows, length]`, with padding at their ends."""
        index = np.asarray(index)
        starts = self.ends[:-1][index]
        lengths = self.ends[1:][index] - starts
        places = np.arange(length)
        there = places < lengths[:, None]
        rows = np.full(there.shape, PADDING, np.int32)
        rows[there] = self.numbers[(starts[:, None] + places)[there]]
        return rows


@dataclasses.dataclass(frozen=True)
class SentencePairs:
    """A source of sentence pairs, which are padded when they are read.

    Inputs are a dictionary of "source" `[rows, length]`, the pieces of a sentence and `<end>`, and
    "target", `<begin>` and the pieces of its translation. Labels are the target moved by one place:
    the pieces and `<end>`. Padding has weight 0.

    Attributes:
      sources, targets: numbers of the pieces, without `<begin>` and `<end>`.
      source_length, target_length: the padded lengths.
    """

    sources: Ragged
    targets: Ragged
    source_length: int
    target_length: int

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: np.ndarray) -> Examples:
        sources, targets = (
            with_end(side.padded(index, length - 1))
            for side, length in (
                (self.sources, self.source_length),
                (self.targets, self.target_length),
            )
        )
        shifted = np.roll(targets, 1, axis=1)
        shifted[:, 0] = BEGIN
        shifted[shifted == END] = PADDING
        weights = (targets != PADDING).astype(np.float32)
        return Examples({"source": sources, "target": shifted}, targets, weights)


def with_end(rows: np.ndarray) -> np.ndarray:
    """Put `<end>` after the last piece of padded rows, which gain a place."""
    longer = np.pad(rows, ((0, 0), (0, 1)), constant_values=PADDING)
    longer[np.arange(len(rows)), np.count_nonzero(rows, axis=1)] = END
    return longer


def translation(
    name: str,
    parts: Mapping[str, Parallel],
    *,
    about: str,
    direction: str,
    words: int,
    length: int,
    subwords: str | None,
    learned_from: int | None = None,
    in_memory: bool = True,
) -> Dataset:
    """Build a data set of translations.

    Args:
      name: the name of the data set.
      parts: the sentences of the training, validation and test part.
      about: the beginning of its description.
      direction: "de-en" or "en-de".
      words: the size of the vocabulary.
      length: the largest number of pieces of a training sentence, with `<end>`.
      subwords: a file of pieces; None learns them from the training sentences.
      learned_from: the number of training pairs from which pieces are learned; None takes all.
      in_memory: whether the training part is padded at once, to be copied to a device.
    """
    checks.whole("length", length, 2)
    known = Subwords.read(subwords) if subwords else _learned(parts["train"], words, learned_from)
    dtype = np.uint16 if len(known) <= 1 << 16 else np.int32
    numbered = {
        part: [Ragged.of(known.numbers_of(side), dtype) for side in parts[part]] for part in PARTS
    }
    long = np.maximum(*(side.lengths for side in numbered["train"])) >= length
    if long.all():
        raise ValueError(f"no training pair has at most {length} pieces a sentence: raise length.")
    sources: dict[str, Any] = {}
    for part, (source, target) in numbered.items():
        longest = [length, length]
        if part != "train":
            longest = [int(side.lengths.max()) + 1 for side in (source, target)]
        pairs = SentencePairs(source, target, *longest)
        kept = np.flatnonzero(~long) if part == "train" else np.arange(len(pairs))
        streamed = part == "train" and not in_memory
        sources[part] = subset(pairs, kept) if streamed else InMemory(*pairs[kept])
    source_name, target_name = (LANGUAGES[language] for language in direction.split("-"))
    sizes = {part: len(source) for part, source in sources.items()}
    return Dataset(
        name=name,
        class_names=known.pieces,
        **sources,
        description=(
            f"{about}, {source_name} to {target_name}: {sizes['train']:,} pairs to train,"
            f" {sizes['validation']:,} to validate, {sizes['test']:,} to test; {len(known):,}"
            f" subwords{'' if subwords else ' learned from the training part'}."
            + f" {long.sum():,} training pairs with more than {length} are left out."
            * bool(long.any())
        ),
        vocabulary=known,
        texts={part: parts[part] for part in ("validation", "test")},
    )


def _learned(train: Parallel, words: int, count: int | None) -> Subwords:
    """Learn the pieces of both languages, from equally spaced training pairs."""
    pairs = len(train.source)
    count = pairs if count is None else min(count, pairs)
    chosen = [place * pairs // count for place in range(count)]
    sentences = (side[place] for side in train for place in chosen)
    return Subwords.of(sentences, words, name="words")
