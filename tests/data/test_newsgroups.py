"""20 Newsgroups: the papers' split, what is stripped, and files of every form."""

import gzip
import hashlib
import lzma

import numpy as np
import pytest

from calib_jax import data
from calib_jax.data import splits
from calib_jax.data.sets.newsgroups import GROUPS, body, papers_parts
from tests.data import tiny

PARTS = ("train", "validation", "test")


def test_the_split_is_the_released_one():
    # Recorded from the released loader, with a checksum of the whole order.
    order = splits.shuffled(19_997).astype("<i8")
    assert hashlib.sha256(order.tobytes()).hexdigest() == (
        "7812769706f82b594c345ebcc7b338ee6f93443ef85ca295d5929af8ed54f3bd"
    )
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
    everything = data.newsgroups(data_dir=str(folder), vocabulary="all")
    assert "onlyhere" in everything.vocabulary.words
    assert len(data.newsgroups(data_dir=str(folder), words=5).vocabulary) == 5


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
