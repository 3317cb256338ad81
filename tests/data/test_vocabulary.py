"""Words, vocabularies and files of word vectors."""

import numpy as np
import pytest

from calib_jax import data


def test_words_are_those_of_keras():
    # The separators of keras.preprocessing.text.Tokenizer, as its documentation lists them.
    separators = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'
    for separator in separators:
        assert data.words_of(f"A{separator}b") == ["a", "b"]
    assert data.words_of("  Don't\x0bstop ") == ["don't\x0bstop"]
    assert data.words_of("\n\t .") == []


def test_frequent_words_come_first_and_earlier_ones_of_equals():
    words = data.Vocabulary.of([["d", "c", "b"], ["b", "c", "a"]], size=4)
    assert words.words == ("c", "b", "d")
    assert len(words) == 4


@pytest.mark.parametrize(
    ("cut", "expected"), [("front", [2, 1, 2]), ("end", [1, 2, 2])], ids=["front", "end"]
)
def test_long_texts_are_cut_and_short_ones_padded_at_the_front(cut, expected):
    words = data.Vocabulary(("a", "b"))
    text = ["a", "b", "?", "b", "a", "b"]
    np.testing.assert_array_equal(words.numbers(text, 3, cut), expected)
    np.testing.assert_array_equal(words.numbers(["a"], 3, cut), [0, 0, 1])
    np.testing.assert_array_equal(words.numbers([], 3, cut), [0, 0, 0])
    with pytest.raises(ValueError, match="cut must be one of 'front', 'end', got 'back'"):
        words.numbers(text, 3, "back")


def test_vectors_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "vectors.txt"
    drawn = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    data.write_vectors(path, dict(zip(["the", ". . .", "na\xefve"], drawn, strict=True)))
    read = data.read_vectors(path, ["na\xefve", "absent", "the", ". . ."], width=4)
    np.testing.assert_allclose(read.table, drawn[[2, 0, 0, 1]] * [[1], [0], [1], [1]], rtol=1e-5)
    assert read.known.tolist() == [True, False, True, True]
    header = tmp_path / "word2vec.txt"
    header.write_text("3 4\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    np.testing.assert_array_equal(data.read_vectors(header, ["the"], 4).table, read.table[2:3])
    assert data.read_vectors(header, ["the"]).table.shape == (1, 4)
