"""Texts: intents, newsgroups, a table of one's own; parts, words, labels and vectors."""

import gzip
import lzma

import numpy as np
import pytest

from calib_jax import data
from calib_jax.data.sets.newsgroups import GROUPS, body, papers_parts
from tests.data import tiny

PARTS = ("train", "validation", "test")


def sizes(dataset):
    return [len(getattr(dataset, part)) for part in PARTS]


def test_a_question_keeps_its_intent(folder):
    tiny.banking77(folder)
    dataset = data.banking77(data_dir=str(folder))
    assert sizes(dataset) == [139, 15, 77]
    assert dataset.class_names[:2] == ("intent_00", "intent_01")
    seen = set()
    for part in PARTS:
        inputs, labels, weights = getattr(dataset, part).examples
        assert weights is None
        for numbers, label in zip(inputs, labels, strict=True):
            words = dataset.vocabulary.text(numbers).split()
            assert str(label) in words  # "My card 7, word 0?" has the intent 7
            seen.add(int(label))
    assert seen == set(range(77))
    assert "139 to train, 15 to validate, 77 to test" in dataset.description


def test_the_published_parts_of_clinc150_and_its_other_scope(folder):
    tiny.clinc150(folder)
    inside = data.clinc150(data_dir=str(folder))
    outside = data.clinc150(data_dir=str(folder), scope="out")
    assert sizes(inside) == [300, 150, 150]
    assert sizes(outside) == [3, 3, 3]
    assert inside.class_names == outside.class_names
    for numbers, label in zip(inside.test.inputs, inside.test.labels, strict=True):
        assert str(label) in inside.vocabulary.text(numbers).split()
    for part in PARTS:
        assert getattr(inside, part).weights is None
        np.testing.assert_array_equal(getattr(outside, part).weights, np.zeros(3))
        np.testing.assert_array_equal(getattr(outside, part).labels, np.zeros(3))
    # Both scopes number the words of the training queries.
    assert outside.vocabulary.words == inside.vocabulary.words
    of_all = [data.clinc150(data_dir=str(folder), scope=s, vocabulary="all") for s in ("in", "out")]
    assert of_all[0].vocabulary.words == of_all[1].vocabulary.words
    assert {"val", "test"} <= {*of_all[1].vocabulary.words}
    assert "space" not in of_all[1].vocabulary.words
    with pytest.raises(ValueError, match="scope must be one of 'in', 'out', got 'oos'"):
        data.clinc150(data_dir=str(folder), scope="oos")


def test_vectors_are_read_by_part(folder):
    place = tiny.vectors(folder)
    dataset = data.from_vectors(str(place), texts="banking77", encoder="tiny")
    assert sizes(dataset) == [30, 12, 20]
    np.testing.assert_array_equal(dataset.test.inputs, np.load(place / "test.npy"))
    assert "Vectors of banking77 (111111111111) by tiny (222222222222)" in dataset.description
    fewer = data.from_vectors(str(place), training_size=1, seed=3)
    assert sizes(fewer) == [1, 12, 20]
    rows = {row.tobytes() for row in dataset.train.inputs}
    assert {row.tobytes() for row in fewer.train.inputs} <= rows
    noisy = data.from_vectors(str(place), label_noise=1.0, seed=3)
    assert np.mean(noisy.train.labels != dataset.train.labels) > 0.3
    np.testing.assert_array_equal(noisy.test.labels, dataset.test.labels)


def test_the_split_is_the_released_one():
    # Recorded from the released loader.
    parts = papers_parts(19_997)
    assert [len(parts[part]) for part in PARTS] == [15_098, 900, 3_999]
    assert parts["validation"][:4].tolist() == [8824, 15988, 13768, 12509]
    assert parts["test"][:4].tolist() == [945, 18669, 9245, 7228]
    assert sorted(np.concatenate(list(parts.values()))) == list(range(19_997))


@pytest.mark.parametrize("ending", ["gz", "xz"])
def test_every_message_has_its_group(folder, ending):
    hidden = f"20news-bydate-train/{GROUPS[0]}/.DS_Store"
    packed = tiny.newsgroups(folder, {hidden: b"no message"})
    if ending == "xz":
        packed.with_suffix(".xz").write_bytes(lzma.compress(gzip.decompress(packed.read_bytes())))
        packed.unlink()
    dataset = data.newsgroups(data_dir=str(folder), length=12)
    assert [len(getattr(dataset, part)) for part in PARTS] == [108, 12, 40]
    for part in PARTS:
        examples = getattr(dataset, part).examples
        assert examples.inputs.shape[1:] == (12,)
        for numbers, label in zip(examples.inputs, examples.labels, strict=True):
            words = dataset.vocabulary.text(numbers).split()
            # The last words are those after the cut, and the signature is one of them.
            assert words[-2:] == ["a", "b"]
            assert dataset.class_names[label].rpartition(".")[2] in words
    assert "108 to train, 12 to validate, 40 to test" in dataset.description


def test_the_vocabulary_is_that_of_the_training_messages(folder):
    tiny.newsgroups(folder, {"20news-bydate-test/sci.med/9": b"From: x\n\nonlyhere onlyhere\n"})
    default = data.newsgroups(data_dir=str(folder))
    assert "onlyhere" not in default.vocabulary.words
    assert "1 texts have no known word" in default.description
    assert "onlyhere" in data.newsgroups(data_dir=str(folder), vocabulary="all").vocabulary.words
    least = data.newsgroups(data_dir=str(folder), words=2, length=1)
    assert (len(least.vocabulary), least.train.inputs.shape[1]) == (2, 1)


def test_what_is_stripped():
    text = tiny.message("sci.space", 3).decode("latin-1")
    assert body(text, ()) == text.strip("\n")
    assert body(text).startswith("C writes:\n> Caf\xe9?\nword3 space")
    assert body(text).endswith("yes.\n--\nA. B.")
    assert body(text, ("headers", "footers", "quotes")).startswith("word3 space")
    assert body(text, ("headers", "footers", "quotes")).endswith("yes.")
    assert body("no header at all") == ""


def test_vectors_are_the_rows_of_their_words(folder, tmp_path):
    tiny.newsgroups(folder)
    path = tmp_path / "vectors.txt"
    data.write_vectors(path, {"space": np.array([1.0, 2.0]), "zebra": np.array([3.0, 4.0])})
    dataset = data.newsgroups(data_dir=str(folder), vectors=str(path))
    number = dataset.vocabulary.number_of["space"]
    assert dataset.embedding.shape == (len(dataset.vocabulary), 2)
    np.testing.assert_array_equal(dataset.embedding[number], [1, 2])
    assert np.count_nonzero(dataset.embedding) == 2
    assert "Word vectors of vectors.txt for 1 of" in dataset.description
    # A relative path is also looked for in the folder of the data sets.
    path.rename(folder / "newsgroups" / "moved.txt")
    again = data.newsgroups(data_dir=str(folder), vectors="moved.txt")
    np.testing.assert_array_equal(again.embedding, dataset.embedding)
    with pytest.raises(FileNotFoundError, match=r"there is no file vectors\.txt"):
        data.newsgroups(data_dir=str(folder), vectors="vectors.txt")


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
    lines = [f"seen {k},{k % 2},train" for k in range(4)] + ["a,0,test", "..,1,test", "?,1,"]
    dataset = data.from_texts(table(tmp_path, lines), validation=0.5)
    assert "50% for validation held out of each class with seed 0; 3 wi" in dataset.description
    assert "3 without a known word; 2 to train, 3 to validate, 2 to test" in dataset.description


def test_a_column_may_give_the_parts(tmp_path):
    lines = [f'-2,"a {k}, b",{part}' for k, part in enumerate(["Train", "", "val", "test", "TEST"])]
    lines += ["", "-1,c 0,training", "-1,c 1,validation"]
    dataset = data.from_texts(table(tmp_path, lines, header="\ufeffLabel, TEXT,split"), length=3)
    assert dataset.class_names == ("-2", "-1")
    assert parts_of(dataset) == {
        "train": [("a 0 b", "-2"), ("a 1 b", "-2"), ("c 0", "-1")],
        "validation": [("a b", "-2"), ("c 1", "-1")],
        "test": [("a b", "-2")] * 2,
    }
    assert "parts as given" in dataset.description
    again = data.from_texts(table(tmp_path, lines, header="label,text,split"), classes=(-1, -2))
    assert again.class_counts.tolist() == [1, 2]


def test_copies_of_a_text_stay_in_one_part(tmp_path):
    """Copies with other spaces and marks, and of another class, as annotators disagree."""
    lines = [f"text {k},{k % 2}" for k in range(40)]
    lines += [f" Text\u00a0  {k}!,{(k + (k < 9)) % 2}" for k in range(40)]
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
