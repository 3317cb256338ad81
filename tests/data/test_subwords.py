"""Subwords: pieces derived by hand, texts there and back, and files."""

import collections

import numpy as np
import pytest

from calib_jax import data
from calib_jax.core.files import reading
from tests.data import tiny

SPECIAL = ("<padding>", "<begin>", "<end>", "<unknown>")


def test_the_most_frequent_pairs_are_merged():
    # Counted by hand: "ab" occurs 3 times; after it "_ab" 3, "_abc" 2 and nothing else twice.
    subwords = data.Subwords.of(["abc abc", "abd"], size=100)
    assert subwords.pieces == (*SPECIAL, "a", "b", "c", "d", "▁", "ab", "▁ab", "▁abc")
    pieces = [subwords.pieces[number] for number in subwords.numbers("abcd ab b")]
    assert pieces == ["▁abc", "d", "▁ab", "▁", "b"]
    assert data.Subwords.of(["abc abc", "abd"], size=10).pieces[-1] == "ab"


def slow_pieces(sentences, size):
    """Learn by counting all pairs anew for each piece; words are split at spaces alone."""
    words = collections.Counter("▁" + word for text in sentences for word in text.split())
    parts = {word: list(word) for word in words}
    pieces = list(SPECIAL) + sorted({letter for word in words for letter in word})
    while len(pieces) < size:
        pairs = collections.Counter()
        for word, count in words.items():
            for left, right in zip(parts[word], parts[word][1:], strict=False):
                pairs[left + right] += count
        count, best = max(((n, pair) for pair, n in pairs.items()), default=(0, ""))
        best = min(pair for pair, n in pairs.items() if n == count) if pairs else best
        if count < 2:
            break
        if best not in pieces:
            pieces.append(best)
        for word, old in parts.items():
            new = []
            for part in old:
                if new and new[-1] + part == best and new[-1] is not merged:
                    merged = best
                    new[-1] = merged
                else:
                    merged = None
                    new.append(part)
            parts[word] = new
    return tuple(pieces)


def test_learning_counts_as_a_slow_loop_does():
    draw = np.random.default_rng(0)
    sentences = [
        " ".join("".join(draw.choice(list("abcde"), size=draw.integers(1, 6))) for _ in range(6))
        for _ in range(40)
    ]
    for size in (15, 60):
        assert data.Subwords.of(sentences, size).pieces == slow_pieces(sentences, size)


def test_text_comes_back():
    german, english = tiny.sentences(50)
    subwords = data.Subwords.of([*german, *english], size=60)
    assert len(subwords) == 60
    for text in (*german, "Kater, Hund...", "gru\u0308n   Hund\t"):
        numbers = subwords.numbers(text)
        assert max(numbers) < 60
        back = text.replace("u\u0308", "\u00fc")  # composed characters
        known = "".join(c if c in subwords.pieces or c == " " else "\ufffd" for c in back.strip())
        assert subwords.text([1, *numbers, 2, 5, 0]) == " ".join(known.split())
    assert subwords.numbers("") == []
    # A character that was never seen is one piece, and the rest of its word is kept.
    assert subwords.text(subwords.numbers("\u4e2dHund")) == "\ufffdHund"


def test_files_there_and_back(tmp_path):
    subwords = data.Subwords.of(tiny.sentences(20)[0], size=40)
    subwords.write(tmp_path / "subwords.txt")
    assert data.Subwords.read(tmp_path / "subwords.txt") == subwords


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\nb\n", "the first pieces must be <padding>, <begin>, <end>, <unknown>"),
        ("\n".join([*SPECIAL, "a", "a\n"]), "a piece is empty or occurs twice"),
        ("\n".join([*SPECIAL, "", "a\n"]), "a piece is empty or occurs twice"),
        ("\n".join([*SPECIAL, "a"]), "its last line has no end"),
    ],
)
def test_other_files(content, message, tmp_path):
    (tmp_path / "subwords.txt").write_text(content)
    with pytest.raises(reading.Unreadable, match=message):
        data.Subwords.read(tmp_path / "subwords.txt")


def test_a_vocabulary_without_room_for_the_characters():
    message = "size must be at least 8, because the sentences have 4 characters, got 5"
    with pytest.raises(ValueError, match=message):
        data.Subwords.of(["abc"], size=5)
