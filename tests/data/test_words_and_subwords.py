"""Words, WordPiece and subwords: pieces derived by hand, pairs of sentences, and files."""

import itertools
import json

import numpy as np
import pytest

from calib_jax import data
from calib_jax.data.text import sentence_pairs
from tests.data import tiny


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
    marked = tmp_path / "marked.txt"
    marked.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert data.read_vectors(marked, ["the"], 4).known.tolist() == [True]


BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def tokenizer(*pieces, lower=True):
    return data.WordPiece((*BERT_SPECIAL, *pieces), lower)


def test_numbers_are_cut_at_either_end_and_padded():
    pieces = tokenizer("a", "b", "c")
    np.testing.assert_array_equal(pieces.numbers("a b ?", 6), [2, 4, 5, 1, 3, 0])
    np.testing.assert_array_equal(pieces.numbers("", 3), [2, 3, 0])
    assert pieces.numbers("a", 3).dtype == np.int32
    with pytest.raises(ValueError, match="length must be at least 2, got 1"):
        pieces.numbers("a", 1)
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
    (tmp_path / "vocab.txt").write_text("\n".join([*BERT_SPECIAL, *words]), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert data.WordPiece.of_folder(tmp_path).pieces("Sch\u00f6n \u4e2d\u6587") == expected


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
    assert len(data.Subwords.of(["ab ab"], size=50)) == 9  # two pieces of two pairs


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


SIZES = {"train": 30, "validation": 5, "test": 7}
PADDING, BEGIN, END = 0, 1, 2


def numbers_of(row):
    return [number for number in row.tolist() if number != PADDING]


@pytest.mark.parametrize("direction", ["de-en", "en-de"])
def test_a_target_is_its_labels_one_place_later(folder, direction):
    tiny.multi30k(folder)
    dataset = data.multi30k(data_dir=str(folder), direction=direction, words=60, length=40)
    for seed, (part, count) in enumerate(SIZES.items()):
        pairs = tiny.sentences(count, seed)
        sources, targets = pairs if direction == "de-en" else pairs[::-1]
        examples = getattr(dataset, part)[np.arange(count)]
        for row in range(count):
            source = numbers_of(examples.inputs["source"][row])
            target = numbers_of(examples.inputs["target"][row])
            labels = numbers_of(examples.labels[row])
            assert source[-1] == labels[-1] == END
            assert target == [BEGIN, *labels[:-1]]
            assert examples.weights[row].tolist() == [1] * len(labels) + [0] * (
                examples.labels.shape[1] - len(labels)
            )
            assert dataset.vocabulary.text(source) == sources[row]
            assert dataset.vocabulary.text(labels) == targets[row]
        if part != "train":
            assert tuple(map(list, dataset.texts[part])) == (sources, targets)
            assert examples.weights.any(axis=0).all()  # no longer than the longest
    assert dataset.train.labels.shape == (30, 40)
    assert "30 pairs to train, 5 to validate, 7 to test; 60 subwords" in dataset.description
    language = "German to English" if direction == "de-en" else "English to German"
    assert language in dataset.description


def test_long_training_pairs_are_left_out(folder):
    tiny.multi30k(folder)
    whole = data.multi30k(data_dir=str(folder), words=60, length=64)
    pieces = [(whole.train.inputs["source"] != 0).sum(axis=1), whole.train.weights.sum(axis=1)]
    kept = np.flatnonzero(np.maximum(*pieces) <= 12)
    assert 0 < len(kept) < 30
    short = data.multi30k(data_dir=str(folder), words=60, length=12)
    np.testing.assert_array_equal(short.train.labels, whole.train.labels[kept, :12])
    assert short.validation.labels.shape == whole.validation.labels.shape  # nothing is cut there
    assert f"{30 - len(kept)} training pairs with more than 12 are left out" in short.description
    with pytest.raises(ValueError, match="no training pair has at most 2 pieces"):
        data.multi30k(data_dir=str(folder), words=60, length=2)


def test_fewer_training_pairs(folder):
    tiny.multi30k(folder)
    dataset = data.multi30k(data_dir=str(folder), words=60, training_size=4)
    german, _ = tiny.sentences(30)
    known = data.Subwords.of([*german[:4], *tiny.sentences(30)[1][:4]], size=60)
    assert (len(dataset.train), dataset.vocabulary) == (4, known)
    learned = sentence_pairs._learned(sentence_pairs.Parallel(*tiny.sentences(30)), 60, 16)
    some = [side[place * 30 // 16] for side in tiny.sentences(30) for place in range(16)]
    assert learned == data.Subwords.of(some, size=60)
    with pytest.raises(ValueError, match=r"training_size must lie in \[1, 30\], got 31"):
        data.multi30k(data_dir=str(folder), training_size=31)


def test_wmt14(folder):
    tiny.wmt14(folder)
    dataset = data.wmt14(data_dir=str(folder), words=60, length=40, learned_from=15)
    german, english = tiny.sentences(30)
    pairs = [pair for number, pair in enumerate(zip(english, german, strict=True)) if number != 3]
    assert len(dataset.train) == 29
    examples = dataset.train[np.array([28, 0])]
    for row, number in enumerate((28, 0)):
        sides = examples.inputs["source"][row], examples.labels[row]
        # The other half may have characters that no learned piece has.
        written = [dataset.vocabulary.text(side) for side in sides]
        assert [len(text) for text in written] == [len(text) for text in pairs[number]]
    assert dataset.texts["test"] == (tiny.sentences(7, 2)[1], tiny.sentences(7, 2)[0])
