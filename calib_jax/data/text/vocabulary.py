"""Words of a text, and the vocabulary that numbers them."""

import collections
import dataclasses
import functools
import string
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks

PADDING = 0
_SEPARATORS = string.punctuation.replace("'", "") + "\t\n"
_AS_SPACES = str.maketrans(_SEPARATORS, " " * len(_SEPARATORS))
CUTS = ("front", "end")


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words, as Keras's tokenizer does.

    Spaces, tabs, line feeds and every ASCII punctuation mark but the apostrophe separate words.
    Other white space, such as a carriage return, does not: `" ".join(text.split())` replaces it.

    >>> words_of("It's a well-known e-mail: <bob@example.org>")
    ["it's", 'a', 'well', 'known', 'e', 'mail', 'bob', 'example', 'org']
    """
    return [word for word in text.lower().translate(_AS_SPACES).split(" ") if word]


def refuse_text(takes: str, given: Any, advice: str) -> None:
    """Raise TypeError for a text, whose characters would be taken for words or texts."""
    if isinstance(given, str):
        raise TypeError(f"{takes}, got the text {given[:30]!r}: give {advice}.")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Words with their numbers; 0 is padding, so the first word has the number 1.

    Words that it does not contain are left out of a text, as in the released code.

    Attributes:
      words: the words, the most frequent one first.

    >>> words = Vocabulary.of([["to", "be", "or", "not", "to", "be"]], size=4)
    >>> words.words
    ('to', 'be', 'or')
    >>> words.numbers(["not", "to", "be"], length=4)
    array([0, 0, 1, 2], dtype=int32)
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]], size: int) -> "Vocabulary":
        """Take the most frequent words of some texts; of equally frequent ones the earlier.

        Args:
          texts: the words of each text.
          size: the number of words with padding, so at most `size - 1` words are taken.
        """
        checks.whole("size", size, 2)
        counts: collections.Counter[str] = collections.Counter()
        for text in texts:
            refuse_text("of takes the words of each text", text, "data.words_of(text)")
            counts.update(text)
        return cls(tuple(word for word, _ in counts.most_common(size - 1)))

    def __len__(self) -> int:
        """The number of words with padding."""
        return len(self.words) + 1

    @functools.cached_property
    def number_of(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words, start=PADDING + 1)}

    def numbers(self, text: Sequence[str], length: int, cut: str = "front") -> np.ndarray:
        """Number the known words of a text, in an array of a fixed length.

        Args:
          text: the words.
          length: the length of the array; a shorter text is padded at its front.
          cut: the end of a longer text that is left out, "front" as in the released code or "end".
        """
        refuse_text("numbers takes words", text, "data.words_of(text)")
        checks.whole("length", length)
        checks.one_of("cut", cut, CUTS)
        known = [number for word in text if (number := self.number_of.get(word))]
        kept = known[-length:] if cut == "front" else known[:length]
        numbers = np.full(length, PADDING, np.int32)
        if kept:
            numbers[-len(kept) :] = kept
        return numbers

    def text(self, numbers: Sequence[int] | np.ndarray) -> str:
        """Write the words of numbers, without padding.

        >>> Vocabulary(("to", "be")).text([0, 0, 1, 2])
        'to be'
        """
        return " ".join(
            self.words[number - 1] for number in np.asarray(numbers) if number != PADDING
        )
