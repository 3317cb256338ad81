"""Texts of the user's own in a CSV file: parts, words, what is refused, and a training run."""

import pathlib

import numpy as np
import pytest

from calib_jax import data
from calib_jax.data.own import tables
from experiments.running import building
from tests.data import tiny
from tests.experiments.processes import finish
from tests.experiments.test_building import config_of

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


def test_labels_of_digits_ascend_as_numbers():
    huge = "9" * 5000  # more digits than int() takes
    labels = dict.fromkeys((huge, "10", "9", "007"), "line 2")
    assert tables.class_names(labels, (), pathlib.Path("texts.csv")) == ("007", "9", "10", huge)


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


def test_the_seed_draws_the_split(tmp_path):
    path = str(tiny.own_texts(tmp_path))
    first, again, other = (data.from_texts(path, seed=seed) for seed in (3, 3, 4))
    assert parts_of(first) == parts_of(again)
    assert parts_of(first)["train"] != parts_of(other)["train"]


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
    message = "'1' has 1 different training text in .*, and needs 3, one for each of train, valid"
    lines = ["a,0", "b,0", "c,0", "d,1", "d,1", "d,1"]
    with pytest.raises(ValueError, match=message):
        data.from_texts(table(tmp_path, lines, header="text,label"))


GOOD = ["a,0,train", "b,1,train", "c,0,test", "d,1,test", "e,0,val", "f,1,val"]


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        (GOOD, "text,class,split", "^line 1 of .*t.csv must name the columns text, label .* 'cla"),
        (GOOD, "text;label;split", "must name .* separated by commas; it has 'text;label;split'"),
        (GOOD, "text,label,text", "must name the columns text, label and optionally split once"),
        (["b,1"], "a" * 99, "it has 'a{30}...'"),
        ([], "text,label", "t.csv has no texts: add a line for each"),
        ([*GOOD, " ,1,test"], "", "^line 8 of .*t.csv has no text: fill it in, or remove the line"),
        ([*GOOD, "g, ,test"], "", "line 8 of .*t.csv has no label: fill it in"),
        ([*GOOD, "g"], "", "line 8 of .*t.csv has no label: fill it in"),
        (
            [*GOOD, "g,1,held"],
            "",
            "line 8 of .* has the split 'held', which must be train, validat",
        ),
        ([*GOOD, "g, too,1,test"], "", "line 8 of .* has 4 values for 3 columns: put a text with"),
        ([*GOOD, '"g\nh",1,', ",1,"], "", "line 10 of .* has no text"),
        ([*GOOD, '"g "best" h",1,', "i,1,"], "", "line 8 of .* has quotes that do not match, or"),
        ([*GOOD, '"g,1,', "i,1,"], "", "line 8 of .* has quotes that do not match, or a value of"),
        ([*GOOD, f"{'g' * 200_000},1,"], "", "line 8 of .* or a value of more than 131,072 chara"),
        ([*GOOD, "g,2,test"], "", "^line 8 of .* has the class '2', which has no training text: "),
        (["a,0,test", "b,1,test"], "", "line 2 of .* has the class '0', which has no training te"),
        (["a,0,", "b,0,test"], "", "t.csv has one class, '0', and needs two or more"),
        (GOOD[:4], "", "class '0' has 1 different training text in .*, and needs 2, one for each"),
        (
            [*GOOD, "g,1,test", "A,1,train", " a ,1,test"],
            "",
            r"^line 10 of .*t.csv \(test\) repeats the text of line 2 \(train\): keep each text in",
        ),
        (
            [*GOOD, "a,0,val", "b,1,val", "b,1,test"],
            "",
            r"line 8 of .* \(validation\) repeats .* 2 \(train\), and 2 more lines do the same",
        ),
    ],
)
def test_lines_that_cannot_be_used_are_named(tmp_path, lines, header, message):
    path = table(tmp_path, lines, header or "text,label,split")
    with pytest.raises(ValueError, match=message) as caught:
        data.from_texts(path)
    assert "\n" not in str(caught.value)


def test_files_and_options_that_are_refused(tmp_path):
    def refused(message, path, **options):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            data.from_texts(path, **options)

    refused("there is no file .*/absent.csv: set the option csv_file to", f"{tmp_path}/absent.csv")
    refused("cannot be read as a table of texts: it is a folder; give a CSV file", str(tmp_path))
    path = table(tmp_path, GOOD)
    refused("length must be at least 1, got 0", path, length=0)
    refused("words must be at least 2, got 1", path, words=1)
    refused("cut must be one of 'front', 'end', got 'middle'", path, cut="middle")
    refused("seed must be at least 0, got -1", path, seed=-1)
    refused("line 3 of .* has the label '1', which is none of the classes 0", path, classes=("0",))
    refused("classes must be different names, got 0, 0", path, classes=("0", "0"))
    classes = ("0", "1", "2")
    refused("the class '2' has 0 different training texts", path, classes=classes)
    for encoding, line in (("latin-1", 3), ("utf-16", 1)):
        (tmp_path / "t.csv").write_bytes("text,label\na,0\ncaf\xe9,1\n".encode(encoding))
        refused(f"line {line} of .*t.csv is not in UTF-8: save the file in this encoding", path)


def test_the_network_has_vectors_for_the_words_of_the_texts(tmp_path):
    config = config_of("own_texts", "adafocal")
    config.data.options.update({"csv_file": str(tiny.own_texts(tmp_path)), "words": 20})
    assert building.build(config).module.words == 20
    config.model.options.words = 30  # may still be set
    assert building.build(config).module.words == 30
    assert config.data.options.words == 20


@pytest.mark.slow
def test_a_run_on_texts(tmp_path):
    path, folder = tiny.own_texts(tmp_path), tmp_path / "run"
    options = {
        **{"data.options.csv_file": path, "data.options.length": 21, "data.options.words": 40},
        **{"num_epochs": 15, "batch_size": 16, "optimizer.learning_rate": 0.003, "num_bins": 2},
    }
    flags = [f"--config.{key}={value}" for key, value in options.items()]
    finish("train", "--config=configs/own_texts.py:focal", f"--workdir={folder}", *flags)
    finish("evaluate", f"--workdir={folder}", "--resamples=20", "--calibrate=")
    with np.load(folder / "predictions_test.npz") as predictions:
        # The class is a word of the text.
        assert np.mean(predictions["logits"].argmax(1) == predictions["labels"]) > 0.8
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, "run"]
