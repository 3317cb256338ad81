"""WordPiece, the tokenizer of BERT, from a vocabulary file."""

import dataclasses
import functools
import itertools
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.data.text.vocabulary import CUTS, refuse_text

_PADDING, _UNKNOWN, _FIRST, _LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
_REMOVED = frozenset(("Cc", "Cf", "Co", "Cs"))  # unassigned characters (Cn) are kept
_INSIDE = "##"  # before a piece that does not begin a word
_LONGEST_WORD = 100  # characters; a longer word is unknown
_SPACE = " \t\n\r"
_SPACES = re.compile(f"[{_SPACE}]+")
_KIND = "a vocabulary of WordPiece"
_ADVICE = "get vocab.txt of the network anew"
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CJK = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


@dataclasses.dataclass(frozen=True)
class WordPiece:
    """Pieces of words with their numbers, as BERT numbers them; 0 is padding.

    Characters have the Unicode categories of this Python. The package `tokenizers` uses Unicode
    7.0, and splits 815 of the million characters differently: newer characters, and five whose
    category has changed.

    Attributes:
      vocabulary: the pieces; the place of a piece is its number.
      lower: whether to lower-case the text.
      strip_accents: whether to remove accents; None removes them if the text is lower-cased.
      split_cjk: whether each Chinese character is a word.

    >>> pieces = WordPiece(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##like", "##ly", "!"))
    >>> pieces.pieces("Unlikely!")
    ['un', '##like', '##ly', '!']
    >>> pieces.numbers("Unlikely!", length=7)
    array([2, 4, 5, 6, 7, 3, 0], dtype=int32)
    """

    vocabulary: tuple[str, ...]
    lower: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True

    def __post_init__(self) -> None:
        """Validate the special pieces."""
        for piece in (_UNKNOWN, _FIRST, _LAST):
            if piece not in self.number_of:
                raise ValueError(f"the vocabulary must have the piece {piece}; {_ADVICE}.")
        if self.vocabulary[0] != _PADDING:
            raise ValueError(
                f"the first piece of the vocabulary must be {_PADDING}, got {self.vocabulary[0]!r}."
            )

    @classmethod
    def read(
        cls,
        path: str | pathlib.Path,
        *,
        lower: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
    ) -> "WordPiece":
        """Read a vocabulary file, which holds a piece in each line (`vocab.txt`).

        Args:
          path: the file.
          lower: as for the class; False for a cased BERT.
          strip_accents, split_cjk: as for the class.
        """
        with reading.guard(path, _KIND, _ADVICE):
            lines = reading.text(path, _KIND, _ADVICE).split("\n")
            lines = [line.removesuffix("\r") for line in lines]
            pieces = tuple(lines[:-1] if lines[-1] == "" else lines)
            return cls(pieces, lower, strip_accents, split_cjk)

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str]) -> "WordPiece":
        """Read the vocabulary of a folder of Hugging Face.

        Args:
          folder: the folder, with `vocab.txt`. `lower`, `strip_accents` and `split_cjk` are the
            `do_lower_case`, `strip_accents` and `tokenize_chinese_chars` of its
            `tokenizer_config.json`, or have their defaults if it has none.
        """
        settings = pathlib.Path(folder, "tokenizer_config.json")
        with reading.guard(settings, "settings of a tokenizer", _ADVICE):
            known = {}
            if settings.exists():
                known = reading.json_mapping(settings, "settings of a tokenizer", _ADVICE)
            lower = _switch(known, "do_lower_case")
            split_cjk = _switch(known, "tokenize_chinese_chars")
            strip_accents = None
            if known.get("strip_accents") is not None:  # null is the default
                strip_accents = _switch(known, "strip_accents")
        return cls.read(
            pathlib.Path(folder, "vocab.txt"),
            lower=lower,
            strip_accents=strip_accents,
            split_cjk=split_cjk,
        )

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self.vocabulary)

    @functools.cached_property
    def number_of(self) -> dict[str, int]:
        """The number of each piece."""
        return {piece: number for number, piece in enumerate(self.vocabulary)}

    def numbers(self, text: str, length: int, cut: str = "end") -> np.ndarray:
        """Number the pieces of a text between [CLS] and [SEP], in an array of a fixed length.

        Args:
          text: the text.
          length: the length of the array; a shorter text is padded at its end.
          cut: the end of a longer text that is left out, "front" or "end".
        """
        checks.at_least("length", length, 2)
        checks.one_of("cut", cut, CUTS)
        room = length - 2
        if cut == "front":
            kept = self.pieces(text)
            kept = kept[len(kept) - room :] if len(kept) > room else kept
        else:
            kept = list(itertools.islice(self._split(text), room))
        numbers = [self.number_of[piece] for piece in (_FIRST, *kept, _LAST)]
        return np.pad(np.array(numbers, np.int32), (0, length - len(numbers)))

    def tokens(self, texts: Iterable[str], length: int, cut: str = "end") -> dict[str, np.ndarray]:
        """Number the pieces of texts as `models.bert` takes them.

        Args:
          texts: the texts.
          length, cut: as for `numbers`.

        Returns:
          "tokens" `[texts, length]`.
        """
        refuse_text("tokens takes texts", texts, "[text]")
        return {"tokens": np.stack([self.numbers(text, length, cut) for text in texts])}

    def pieces(self, text: str) -> list[str]:
        """Split a text into pieces of the vocabulary; other words are [UNK]."""
        return list(self._split(text))

    def _split(self, text: str) -> Iterator[str]:
        for part in _SPACES.split(text):
            yield from self._pieces_of_part(part)

    @functools.cached_property
    def _pieces_of_part(self) -> Callable[[str], tuple[str, ...]]:
        """Split a text without spaces; frequent ones are split once."""

        @functools.lru_cache(maxsize=1 << 16)
        def split(part: str) -> tuple[str, ...]:
            return tuple(piece for word in self._words(part) for piece in self._pieces_of(word))

        return split

    def _words(self, text: str) -> Iterator[str]:
        """Yield the words of a text; punctuation marks are words."""
        text = "".join(map(_cleaned, text))
        if self.split_cjk:
            text = "".join(f" {c} " if _is_cjk(c) else c for c in text)
        if self.lower if self.strip_accents is None else self.strip_accents:
            text = unicodedata.normalize("NFD", text)
            text = "".join(c for c in text if unicodedata.category(c) != "Mn")
        if self.lower:
            text = "".join(c.lower() for c in text)  # lower() of a text writes another final sigma
        for part in text.split():
            yield from "".join(f" {c} " if _is_punctuation(c) else c for c in part).split()

    def _pieces_of(self, word: str) -> list[str]:
        """Split a word: each piece is the longest of the vocabulary that fits."""
        if len(word) > _LONGEST_WORD:
            return [_UNKNOWN]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = _INSIDE if start else ""
            for end in range(len(word), start, -1):
                piece = prefix + word[start:end]
                if piece in self.number_of:
                    pieces.append(piece)
                    start = end
                    break
            else:
                return [_UNKNOWN]
        return pieces


def _switch(settings: Mapping[str, Any], name: str) -> bool:
    """Return a setting that is true by default."""
    value = settings.get(name, True)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value


def _cleaned(character: str) -> str:
    """Remove control characters, and write other white space as spaces."""
    if character in _SPACE:
        return " "
    category = unicodedata.category(character)
    if character == "\ufffd" or category in _REMOVED:
        return ""
    return " " if category.startswith("Z") else character


def _is_cjk(character: str) -> bool:
    number = ord(character)
    return any(first <= number <= last for first, last in _CJK)


def _is_punctuation(character: str) -> bool:
    return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")
