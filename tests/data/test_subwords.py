"""Subwords: pieces derived by hand, texts there and back, and files."""

import itertools

import numpy as np

from calib_jax import data
from tests.data import tiny

SPECIAL = ("<padding>", "<begin>", "<end>", "<unknown>")


def slow_numbers(subwords, word):
    """Merge the adjacent pair whose piece has the lowest number until no pair is a piece."""
    parts, number_of = ["\u2581" + word[:1], *word[1:]], subwords.number_of
    parts = list("".join(parts))
    while True:
        known = [number_of[a + b] for a, b in itertools.pairwise(parts) if a + b in number_of]
        if not known:
            return [number_of.get(part, 3) for part in parts]
        piece, place, merged = subwords.pieces[min(known)], 0, []
        while place < len(parts):
            step = 2 if "".join(parts[place : place + 2]) == piece else 1
            merged.append("".join(parts[place : place + step]))
            place += step
        parts = merged


def test_numbers_are_those_of_a_slow_loop():
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list("abcde"), size=draw.integers(1, 9))) for _ in range(240)]
    subwords = data.Subwords.of([" ".join(words[:200])], 60)
    assert len(subwords) == 60
    for word in words:
        assert subwords.numbers(word) == slow_numbers(subwords, word)


def test_the_most_frequent_pair_becomes_a_piece_first():
    subwords = data.Subwords.of(["aab aab aab cd cd"], size=11)
    # Four special pieces, five characters, and two pairs that occur three times.
    assert subwords.pieces[9] in ("ab", "aa", "\u2581a")
    assert len(subwords.numbers("aab")) < 4
    assert len(data.Subwords.of(["ab cd"], size=50)) == 9  # no pair occurs twice


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
