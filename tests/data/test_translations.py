"""Multi30k and WMT 2014: pairs in numbers, both directions and forms, files that do not fit."""

import numpy as np
import pytest

from calib_jax import data
from calib_jax.data.text import sentence_pairs
from tests.data import tiny

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
