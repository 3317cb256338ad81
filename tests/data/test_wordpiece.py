"""WordPiece: pieces derived by hand from BERT's rules, and (slow) the package tokenizers."""

import json
import os
import sys
import unicodedata

import numpy as np
import pytest

from calib_jax import data

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def tokenizer(*pieces, lower=True):
    return data.WordPiece((*SPECIAL, *pieces), lower)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The longest piece that fits is taken, and no shorter one is tried after it.
        ("unlike", ["unl", "##ike"]),
        ("unlikely", ["unl", "##ike", "##ly"]),
        ("unlik", ["[UNK]"]),
        ("Un-like", ["un", "-", "like"]),
        ("likeun like", ["[UNK]", "like"]),
        ("LIK\u00c8 like\u0300", ["like", "like"]),  # accents are removed
        ("\u6771\u4eac\u90fd", ["\u6771", "[UNK]", "\u90fd"]),  # each CJK character is a word
        ("un\u6771like", ["un", "\u6771", "like"]),
        ("like\u3002un", ["like", "[UNK]", "un"]),  # so is punctuation, also outside ASCII
        ("$like`", ["$", "like", "[UNK]"]),  # ASCII symbols count as punctuation
        ("like\u20acun", ["[UNK]"]),  # other symbols do not
        ("l\x00i\u200bk\ufffde", ["like"]),  # control characters are removed
        ("l\x0bike", ["like"]),  # a vertical tab is one of them
        ("un\tlike\u00a0un\u2003like\u2028un", ["un", "like", "un", "like", "un"]),
        ("", []),
        (" \n\t ", []),
    ],
)
def test_pieces(text, expected):
    vocabulary = ("un", "unl", "##ike", "##like", "##ly", "like", "-", "\u6771", "\u90fd", "$")
    assert tokenizer(*vocabulary).pieces(text) == expected


def test_words_of_more_than_a_hundred_characters_are_unknown():
    pieces = tokenizer("a", "##a")
    assert pieces.pieces("a" * 100) == ["a"] + 99 * ["##a"]
    assert pieces.pieces("a" * 101 + " a") == ["[UNK]", "a"]
    # Accents are removed before the characters are counted.
    assert len(pieces.pieces("\u00e0" * 100)) == 100


def test_a_cased_vocabulary_keeps_case_and_accents():
    pieces = tokenizer("Caf\u00e9", "cafe", lower=False)
    assert pieces.pieces("Caf\u00e9 cafe Cafe") == ["Caf\u00e9", "cafe", "[UNK]"]


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
    ("settings", "lower"), [(None, True), ("{}", True), ('{"do_lower_case": false}', False)]
)
def test_a_folder_says_whether_its_vocabulary_is_cased(tmp_path, settings, lower):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "A", "a"]))
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(settings)
    pieces = data.WordPiece.of_folder(tmp_path)
    assert pieces.lower is lower
    assert pieces.pieces("A") == ["a" if lower else "A"]
    assert len(pieces) == 6


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


@pytest.mark.parametrize("name", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_a_folder_with_other_settings_is_refused(tmp_path, name):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: "no"}))
    with pytest.raises(ValueError, match=f"{name} must be true or false, got 'no'"):
        data.WordPiece.of_folder(tmp_path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_a_file_is_read(tmp_path, end, last):
    path = tmp_path / "vocab.txt"
    lines = [*SPECIAL, "caf\u00e9", "\u2028", "##s"]  # a separator of Unicode ends no line
    path.write_bytes((end.join(lines) + end * last).encode())
    assert data.WordPiece.read(path).vocabulary == tuple(lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[CLS]\n[SEP]\na\n", r"the vocabulary must have the piece \[UNK\]"),
        (b"[UNK]\n[PAD]\n[CLS]\n[SEP]\n", r"the first piece of the vocabulary must be \[PAD\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n\xff\n", "it is not in UTF-8"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        data.WordPiece.read(path)
    assert str(path) in str(error.value)


@pytest.mark.slow
def test_words_are_those_of_the_package():
    """Each of the 95,000 characters of Unicode 3.2, between two letters."""
    tokenizers = pytest.importorskip("tokenizers")
    normalize = tokenizers.normalizers.BertNormalizer(lowercase=True).normalize_str
    split = tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    others = set()
    for number in range(sys.maxunicode + 1):
        if unicodedata.ucd_3_2_0.category(chr(number)) not in ("Cn", "Cs"):
            text = f"a{chr(number)}b"
            words = [word for word, _ in split(normalize(text))]
            if list(tokenizer()._words(text)) != words:
                others.add(number)
    # The package has the categories of Unicode 7.0; those of these characters changed later.
    assert others <= {0x166D, 0x1734, 0x1885, 0x1886}


@pytest.mark.slow
def test_pieces_are_those_of_the_package(tmp_path):
    """Random texts, with the vocabulary of the folder that CALIB_JAX_BERT names."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = os.environ.get("CALIB_JAX_BERT")
    if folder is None:
        pieces = [*SPECIAL, *map(chr, range(33, 0x250)), *(f"##{chr(c)}" for c in range(97, 0x250))]
        (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
        folder = tmp_path
    path = os.path.join(folder, "vocab.txt")
    ours, theirs = data.WordPiece.read(path), tokenizers.BertWordPieceTokenizer(path)
    draw = np.random.default_rng(0)
    blocks = (
        (32, 127),
        (32, 33),
        (160, 0x530),
        (0x2000, 0x2070),
        (0x3040, 0x9FB0),
        (0xAC00, 0xD7A0),
    )
    for _ in range(3_000):
        ends = draw.choice(blocks, size=draw.integers(1, 40))
        text = "".join(map(chr, draw.integers(ends[:, 0], ends[:, 1])))
        assert ours.pieces(text) == theirs.encode(text, add_special_tokens=False).tokens, text
