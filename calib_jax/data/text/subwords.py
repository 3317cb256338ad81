"""Subwords learned by byte-pair encoding, by the package `tokenizers`."""

import dataclasses
import functools
import os
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading, writing
from calib_jax.data.text.vocabulary import refuse_text
from calib_jax.data.text.wordpiece import tokenizers

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
    >>> subwords.text(subwords.numbers("newest lower"))
    'newest lower'
    >>> subwords.text(subwords.numbers("lowest, new"))
    'lowest\ufffd new'
    """

    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        """Validate the special pieces, and that no piece occurs twice."""
        if self.pieces[: len(_SPECIAL)] != _SPECIAL:
            raise ValueError(f"the first pieces must be {', '.join(_SPECIAL)}")
        if len(self.number_of) < len(self.pieces) or "" in self.number_of:
            raise ValueError("a piece is empty or occurs twice")

    @classmethod
    def of(cls, sentences: Iterable[str], size: int, *, name: str = "size") -> "Subwords":
        """Learn the pieces of sentences.

        All characters are pieces; then the most frequent adjacent pair of pieces is merged and
        becomes a piece, until there are `size` pieces or no pair occurs twice.

        Args:
          sentences: the sentences, of both languages for a shared vocabulary.
          size: the largest number of pieces, with four special ones.
          name: the caller's name of the size, for error messages.

        References:
          Sennrich et al. 2016, Neural Machine Translation of Rare Words with Subword Units.
        """
        refuse_text("of takes sentences", sentences, "[text]")
        package, words = tokenizers(), [_words(text) for text in sentences]
        characters = {character for text in words for word in text for character in word}
        why = f", because the sentences have {len(characters)} characters"
        checks.whole(name, size, len(_SPECIAL) + len(characters), why)
        tokenizer = package.Tokenizer(package.models.BPE())
        tokenizer.pre_tokenizer = package.pre_tokenizers.WhitespaceSplit()  # of the words below
        trainer = package.trainers.BpeTrainer(
            vocab_size=size, min_frequency=2, special_tokens=[*_SPECIAL], show_progress=False
        )
        tokenizer.train_from_iterator((" ".join(text) for text in words), trainer)
        vocabulary = tokenizer.get_vocab()
        return cls(tuple(sorted(vocabulary, key=vocabulary.__getitem__)))

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

    @functools.cached_property
    def _tokenizer(self) -> Any:
        # A file of pieces has no pairs: every pair of pieces that makes a piece is merged to it.
        merges = [
            (piece[:place], piece[place:])
            for piece in self.pieces[len(_SPECIAL) :]
            for place in range(1, len(piece))
            if piece[:place] in self.number_of and piece[place:] in self.number_of
        ]
        package, unknown = tokenizers(), _SPECIAL[UNKNOWN]
        return package.Tokenizer(package.models.BPE(self.number_of, merges, unk_token=unknown))

    def numbers(self, text: str) -> list[int]:
        """Number the pieces of a text, without `<begin>` and `<end>`."""
        return self.numbers_of([text])[0]

    def numbers_of(self, texts: Iterable[str]) -> list[list[int]]:
        """Number the pieces of texts, as `numbers` does for each."""
        words = [_words(text) for text in texts]
        return [text.ids for text in self._tokenizer.encode_batch(words, is_pretokenized=True)]

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


def _words(text: str) -> list[str]:
    """Split a text into words and punctuation; the first part of each word begins with a mark."""
    text = unicodedata.normalize("NFC", text).replace(_SPACE, "_")
    return _WORD.findall("".join(_SPACE + part for part in text.split()))
