"""WordPiece: pieces derived by hand from BERT's rules, and (slow) the package tokenizers."""

import json

import numpy as np
import pytest

from calib_jax import data

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def tokenizer(*pieces, lower=True):
    return data.WordPiece((*SPECIAL, *pieces), lower)


def test_numbers_are_cut_and_padded():
    pieces = tokenizer("a", "b")
    np.testing.assert_array_equal(pieces.numbers("a b ?", 6), [2, 4, 5, 1, 3, 0])
    np.testing.assert_array_equal(pieces.numbers("a b a b", 4), [2, 4, 5, 3])
    np.testing.assert_array_equal(pieces.numbers("", 3), [2, 3, 0])
    assert pieces.numbers("a", 3).dtype == np.int32
    with pytest.raises(ValueError, match="length must be at least 2, got 1"):
        pieces.numbers("a", 1)


def test_texts_are_cut_at_either_end():
    pieces = tokenizer("a", "b", "c")
    np.testing.assert_array_equal(pieces.numbers("a b c", 4, "front"), [2, 5, 6, 3])
    np.testing.assert_array_equal(pieces.numbers("a b c", 5, "front"), [2, 4, 5, 6, 3])
    np.testing.assert_array_equal(pieces.numbers("a b c", 2, "front"), [2, 3])
    tokens = pieces.tokens(["a b c", "c"], 4)["tokens"]
    np.testing.assert_array_equal(tokens, [[2, 4, 5, 3], [2, 6, 3, 0]])
    with pytest.raises(ValueError, match="cut must be one of 'front', 'end', got 'back'"):
        pieces.numbers("a", 4, "back")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["schon", "\u4e2d", "\u6587"]),
        ({"strip_accents": None}, ["schon", "\u4e2d", "\u6587"]),
        ({"strip_accents": False}, ["sch\u00f6n", "\u4e2d", "\u6587"]),
        ({"do_lower_case": False}, ["Sch\u00f6n", "\u4e2d", "\u6587"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Schon", "\u4e2d", "\u6587"]),
        ({"tokenize_chinese_chars": False}, ["schon", "\u4e2d\u6587"]),
    ],
)
def test_a_folder_says_what_becomes_of_accents_and_chinese(tmp_path, settings, expected):
    words = ["schon", "Schon", "sch\u00f6n", "Sch\u00f6n", "\u4e2d", "\u6587", "\u4e2d\u6587"]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *words]), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert data.WordPiece.of_folder(tmp_path).pieces("Sch\u00f6n \u4e2d\u6587") == expected
