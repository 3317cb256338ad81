"""Subwords learned by byte-pair encoding, and the sentences that they number."""

import collections
import dataclasses
import functools
import heapq
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from calib_jax.core.files import reading, writing
from calib_jax.core.inputs import checks
from calib_jax.data.text.vocabulary import refuse_text

PADDING, BEGIN, END, UNKNOWN = range(4)
_SPECIAL = ("<padding>", "<begin>", "<end>", "<unknown>")
_SPACE = "\u2581"  # a piece that begins with it begins a word
_WORD = re.compile(rf"{_SPACE}?\w+|{_SPACE}?[^\w{_SPACE}]+")
_KIND = "a vocabulary of subwords"
_ADVICE = "train again, which writes it"


@dataclasses.dataclass(frozen=True)
class Subwords:
    """Pieces of words with their numbers; 0 is padding.

    A text is normalized to NFC and split at spaces and between letters and punctuation. A word
    starts as characters; the adjacent pair whose piece has the lowest number is merged until no
    pair is a piece. A character that the vocabulary does not have is `<unknown>`, and `text` writes
    it as U+FFFD.

    Attributes:
      pieces: the special pieces, the characters, and then the merged pieces as they were learned;
        the place of a piece is its number.

    >>> subwords = Subwords.of(["low lower lowest", "new newer newest"], size=25)
    >>> [subwords.pieces[number] for number in subwords.numbers("lowest, new")]
    ['▁lo', 'west', '<unknown>', '▁ne', 'w']
    >>> subwords.text(subwords.numbers("newest lower"))
    'newest lower'
    """

    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        """Validate the special pieces, and that no piece occurs twice."""
        if self.pieces[: len(_SPECIAL)] != _SPECIAL:
            raise ValueError(f"the first pieces must be {', '.join(_SPECIAL)}")
        if len(self.number_of) < len(self.pieces) or "" in self.number_of:
            raise ValueError("a piece is empty or occurs twice")

    @classmethod
    def of(cls, sentences: Iterable[str], size: int) -> "Subwords":
        """Learn the pieces of sentences.

        All characters are pieces; then the most frequent adjacent pair of pieces is merged and
        becomes a piece, until there are `size` pieces or no pair occurs twice. Of equally frequent
        pairs the first in the order of Unicode is merged.

        Args:
          sentences: the sentences, of both languages for a shared vocabulary.
          size: the largest number of pieces, with four special ones.

        References:
          Sennrich et al. 2016, Neural Machine Translation of Rare Words with Subword Units.
        """
        refuse_text("of takes sentences", sentences, "[text]")
        return cls(learned_pieces("size", sentences, size))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Subwords":
        """Read a file that `write` wrote."""
        with reading.guard(path, _KIND, _ADVICE):
            *pieces, end = reading.text(path, _KIND, _ADVICE).split("\n")
            if end:
                raise ValueError("its last line has no end")
            return cls(tuple(pieces))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a text file with a piece in each line."""
        text = "".join(f"{piece}\n" for piece in self.pieces)
        with writing.replacing(pathlib.Path(path)) as new:
            new.write_text(text, encoding="utf-8", newline="\n")

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self.pieces)

    @functools.cached_property
    def number_of(self) -> dict[str, int]:
        """The number of each piece."""
        return {piece: number for number, piece in enumerate(self.pieces)}

    def numbers(self, text: str) -> list[int]:
        """Number the pieces of a text, without `<begin>` and `<end>`."""
        return [number for word in _words(text) for number in self._of_word(word)]

    def text(self, numbers: Sequence[int] | np.ndarray) -> str:
        """Write the text of numbers, as far as `<end>`."""
        parts = []
        for number in np.asarray(numbers).tolist():
            if number == END:
                break
            if number == UNKNOWN:
                parts.append("\ufffd")
            elif number not in (PADDING, BEGIN):
                parts.append(self.pieces[number])
        return "".join(parts).replace(_SPACE, " ").strip()

    @functools.cached_property
    def _of_word(self) -> "functools._lru_cache_wrapper[tuple[int, ...]]":
        """Number the pieces of a word; frequent words are split once."""

        @functools.lru_cache(maxsize=1 << 18)
        def numbers(word: str) -> tuple[int, ...]:
            parts, number_of = list(word), self.number_of
            while True:
                pairs = map(str.__add__, parts, parts[1:])
                known = [number_of[pair] for pair in pairs if pair in number_of]
                if not known:
                    break
                parts = _joined(parts, self.pieces[min(known)])
            return tuple(number_of.get(part, UNKNOWN) for part in parts)

        return numbers


def learned_pieces(name: str, sentences: Iterable[str], size: int) -> tuple[str, ...]:
    """Learn the pieces of `Subwords.of`; errors use the caller's name of the size option."""
    counts = collections.Counter(word for text in sentences for word in _words(text))
    characters = sorted({character for word in counts for character in word})
    start = [*_SPECIAL, *characters]
    why = f", because the sentences have {len(characters)} characters"
    checks.at_least(name, size, len(start), why)
    pieces = dict.fromkeys(start)
    for piece in _merged(counts):
        if len(pieces) == size:
            break
        pieces[piece] = None
    return tuple(pieces)


def _words(text: str) -> list[str]:
    """Split a text into words and punctuation; the first part of each word begins with a mark."""
    text = unicodedata.normalize("NFC", text).replace(_SPACE, "_")
    return _WORD.findall("".join(_SPACE + part for part in text.split()))


def _joined(parts: Sequence[str], piece: str) -> list[str]:
    """Merge the adjacent pairs of parts that make a piece, from the left."""
    merged: list[str] = []
    place = 0
    while place < len(parts):
        if place + 1 < len(parts) and parts[place] + parts[place + 1] == piece:
            merged.append(piece)
            place += 2
        else:
            merged.append(parts[place])
            place += 1
    return merged


def _merged(counts: collections.Counter[str]) -> Iterable[str]:
    """Yield the merged pieces of words with their counts, the most frequent one first."""
    words = [(list(word), count) for word, count in counts.items()]
    pairs: collections.Counter[str] = collections.Counter()
    places = collections.defaultdict(set)  # the words that have, or had, each pair
    for place, (parts, count) in enumerate(words):
        for pair in map(str.__add__, parts, parts[1:]):
            pairs[pair] += count
            places[pair].add(place)
    queue = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(queue)
    while queue:
        count, piece = heapq.heappop(queue)
        if pairs[piece] != -count:  # an entry of an earlier count
            continue
        if -count < 2:
            return
        changed = set()
        for place in places.pop(piece):
            parts, times = words[place]
            joined = _joined(parts, piece)
            for pair in map(str.__add__, parts, parts[1:]):
                pairs[pair] -= times
                changed.add(pair)
            for pair in map(str.__add__, joined, joined[1:]):
                pairs[pair] += times
                places[pair].add(place)
                changed.add(pair)
            words[place] = (joined, times)
        for pair in changed:
            if pairs[pair] > 0:
                heapq.heappush(queue, (-pairs[pair], pair))
        yield piece
