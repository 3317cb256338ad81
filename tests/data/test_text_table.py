"""Texts of the user's own in a CSV file: parts, words and copies."""

import numpy as np
import pytest

from calib_jax import data
from tests.data import tiny

PARTS = ("train", "validation", "test")


def table(folder, lines, header="text,label,split"):
    path = folder / "t.csv"
    path.write_bytes("\n".join([header, *lines, ""]).encode())
    return str(path)


def parts_of(dataset):
    """The known words of the texts of each part, with their classes."""
    return {
        part: [
            (dataset.vocabulary.text(numbers), dataset.class_names[label])
            for numbers, label in zip(source.inputs, source.labels, strict=True)
        ]
        for part, source in ((part, getattr(dataset, part)) for part in PARTS)
    }


def test_texts_are_split_by_class_and_numbered_by_the_training_words(tmp_path):
    path = tiny.own_texts(tmp_path)
    dataset = data.named("own_texts", csv_file=str(path), length=6, validation=0.2, test=0.1)
    assert dataset.class_names == ("bad", "good", "mixed")
    sources = [getattr(dataset, part) for part in PARTS]
    counts = [np.bincount(source.labels).tolist() for source in sources]
    assert counts == [[14] * 3, [4] * 3, [2] * 3]
    for source in sources:
        assert (source.inputs.dtype, source.inputs.shape[1:]) == (np.int32, (6,))
        assert not source.inputs[:, 0].any()  # five words at most, with padding at the front
    parts = parts_of(dataset)
    assert all(f"it was {label} order" in text for pairs in parts.values() for text, label in pairs)
    # The number of an order is a word of one text, which is known only if this text trains.
    assert all(text.split()[-1].isdecimal() for text, _ in parts["train"])
    assert all(text.endswith("order") for part in PARTS[1:] for text, _ in parts[part])
    assert "6 words each, cut at the end, of the 48 most frequent words" in dataset.description
    assert "42 to train, 12 to validate, 6 to test, in 3 classes" in dataset.description
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # nothing is written


def test_the_size_of_the_vocabulary_and_the_end_that_is_cut(tmp_path):
    path = str(tiny.own_texts(tmp_path))
    for cut, words in (("end", "it was"), ("front", "was order")):
        dataset = data.from_texts(path, length=2, words=4, cut=cut)
        assert dataset.vocabulary.words == ("it", "was", "order")
        assert {text for text, _ in parts_of(dataset)["train"]} == {words}
    lines = [f"seen {k},{k % 2},train" for k in range(4)] + ["never before,0,test", "...,1,test"]
    dataset = data.from_texts(table(tmp_path, lines), validation=0.5)
    assert "50% for validation held out of each class with seed 0; 2 wi" in dataset.description
    assert "2 without a known word; 2 to train, 2 to validate, 2 to test" in dataset.description


def test_a_column_may_give_the_parts(tmp_path):
    lines = [f'9,"a {k}, b",{part}' for k, part in enumerate(["Train", "", "val", "test", "TEST"])]
    lines += ["", "10,c 0,training", "10,c 1,validation"]
    dataset = data.from_texts(table(tmp_path, lines, header="\ufeffLabel, TEXT,split"), length=3)
    assert dataset.class_names == ("9", "10")
    assert parts_of(dataset) == {
        "train": [("a 0 b", "9"), ("a 1 b", "9"), ("c 0", "10")],
        "validation": [("a b", "9"), ("c 1", "10")],
        "test": [("a b", "9")] * 2,
    }
    assert "parts as given" in dataset.description
    again = data.from_texts(table(tmp_path, lines, header="label,text,split"), classes=("10", "9"))
    assert again.class_counts.tolist() == [1, 2]


def test_copies_of_a_text_stay_in_one_part(tmp_path):
    """Copies with other spaces and marks, and of another class, as annotators disagree."""
    lines = [f"text {k},{k % 2}" for k in range(40)]
    lines += [f" Text   {k}!,{(k + (k < 9)) % 2}" for k in range(40)]
    dataset = data.from_texts(table(tmp_path, lines, header="text,label"))
    parts = parts_of(dataset)
    assert [len(parts[part]) for part in PARTS] == [56, 12, 12]
    texts = [{text for text, _ in parts[part]} for part in PARTS]
    assert len(texts[0]) == 28
    assert texts[1:] == [{"text"}, {"text"}]  # no number of theirs is a word of the training part
    message = "'1' has 1 examples, and needs 3, one for each of train, valid"
    lines = ["a,0", "b,0", "c,0", "d,1", "d,1", "d,1"]
    with pytest.raises(ValueError, match=message):
        data.from_texts(table(tmp_path, lines, header="text,label"))
