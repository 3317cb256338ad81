"""WordPiece, the tokenizer of BERT, from a vocabulary file, by the package `tokenizers`."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.text.vocabulary import CUTS, refuse_text

_UNKNOWN, _FIRST, _LAST, _PADDING = "[UNK]", "[CLS]", "[SEP]", "[PAD]"
_KIND = "a vocabulary of WordPiece"
_ADVICE = "get vocab.txt of the network anew"


def tokenizers() -> Any:
    """Import the package `tokenizers`, which only texts in pieces need."""
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            "texts in pieces need tokenizers: pip install 'calib_jax[text]'."
        ) from error
    return tokenizers


@dataclasses.dataclass(frozen=True)
class WordPiece:
    """Pieces of words with their numbers, as BERT numbers them; 0 is padding.

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
    def read(cls, path: str | pathlib.Path, **options: Any) -> "WordPiece":
        """Read a vocabulary file, which holds a piece in each line (`vocab.txt`).

        Args:
          path: the file.
          **options: `lower`, `strip_accents` and `split_cjk`, as for the class.
        """
        with reading.guard(path, _KIND, _ADVICE):
            lines = reading.text(path, _KIND, _ADVICE).split("\n")
            pieces = [line.removesuffix("\r") for line in lines]
            return cls(tuple(pieces[:-1] if pieces[-1] == "" else pieces), **options)

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str]) -> "WordPiece":
        """Read the vocabulary of a folder of Hugging Face.

        Args:
          folder: the folder, with `vocab.txt`. `lower`, `strip_accents` and `split_cjk` are the
            `do_lower_case`, `strip_accents` and `tokenize_chinese_chars` of its
            `tokenizer_config.json`, or have their defaults if it has none.
        """
        settings = pathlib.Path(folder, "tokenizer_config.json")
        kind, known = "settings of a tokenizer", {}
        if settings.exists():
            known = reading.json_mapping(settings, kind, _ADVICE)
        theirs = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
        names = zip(("lower", "strip_accents", "split_cjk"), theirs, strict=True)
        options = {ours: known[name] for ours, name in names if known.get(name) is not None}
        for option, value in options.items():
            if not isinstance(value, bool):
                raise reading.Unreadable(f"{settings}: {option} must be true or false: {value!r}.")
        return cls.read(pathlib.Path(folder, "vocab.txt"), **options)

    def __len__(self) -> int:
        """The number of pieces."""
        return len(self.vocabulary)

    @functools.cached_property
    def number_of(self) -> dict[str, int]:
        """The number of each piece."""
        return {piece: number for number, piece in enumerate(self.vocabulary)}

    @functools.cached_property
    def _tokenizer(self) -> Any:
        package = tokenizers()
        model = package.models.WordPiece(self.number_of, unk_token=_UNKNOWN)
        tokenizer = package.Tokenizer(model)
        tokenizer.normalizer = package.normalizers.BertNormalizer(
            handle_chinese_chars=self.split_cjk,
            strip_accents=self.strip_accents,
            lowercase=self.lower,
        )
        tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def numbers(self, text: str, length: int, cut: str = "end") -> np.ndarray:
        """Number the pieces of a text between [CLS] and [SEP], in an array of a fixed length.

        Args:
          text: the text.
          length: the length of the array; a shorter text is padded at its end.
          cut: the end of a longer text that is left out, "front" or "end".
        """
        return np.asarray(self.tokens([text], length, cut)["tokens"][0])

    def tokens(self, texts: Iterable[str], length: int, cut: str = "end") -> dict[str, np.ndarray]:
        """Number the pieces of texts as `models.bert` takes them.

        Args:
          texts: the texts.
          length, cut: as for `numbers`.

        Returns:
          "tokens" `[texts, length]`.
        """
        refuse_text("tokens takes texts", texts, "[text]")
        checks.whole("length", length, 2)
        checks.one_of("cut", cut, CUTS)
        encoded, room = self._tokenizer.encode_batch(list(texts)), length - 2
        rows = np.zeros((len(encoded), length), np.int32)
        for row, text in zip(rows, encoded, strict=True):
            left_out = max(0, len(text.ids) - room)
            kept = text.ids[left_out:] if cut == "front" else text.ids[:room]
            row[: len(kept) + 2] = [self.number_of[_FIRST], *kept, self.number_of[_LAST]]
        return {"tokens": rows}

    def pieces(self, text: str) -> list[str]:
        """Split a text into pieces of the vocabulary; other words are [UNK]."""
        pieces: list[str] = self._tokenizer.encode(text).tokens
        return pieces
