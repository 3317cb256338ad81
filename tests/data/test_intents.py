"""BANKING77, CLINC150 and vectors of texts: parts, labels, and files that are damaged."""

import numpy as np
import pytest

from calib_jax import data
from tests.data import tiny_intents

PARTS = ("train", "validation", "test")


def sizes(dataset):
    return [len(getattr(dataset, part)) for part in PARTS]


def test_a_question_keeps_its_intent(folder):
    tiny_intents.banking77(folder)
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
    tiny_intents.clinc150(folder)
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
    # Both scopes number the words of the training queries.
    assert outside.vocabulary.words == inside.vocabulary.words
    of_all = [data.clinc150(data_dir=str(folder), scope=s, vocabulary="all") for s in ("in", "out")]
    assert of_all[0].vocabulary.words == of_all[1].vocabulary.words
    assert {"val", "test"} <= {*of_all[1].vocabulary.words}
    assert "space" not in of_all[1].vocabulary.words
    with pytest.raises(ValueError, match="scope must be one of 'in', 'out', got 'oos'"):
        data.clinc150(data_dir=str(folder), scope="oos")


def test_vectors_are_read_by_part(folder):
    place = tiny_intents.vectors(folder)
    dataset = data.from_vectors(str(place), texts="banking77", encoder="tiny")
    assert sizes(dataset) == [30, 12, 20]
    np.testing.assert_array_equal(dataset.test.inputs, np.load(place / "test.npy"))
    assert "Vectors of banking77 (111111111111) by tiny (222222222222)" in dataset.description
    fewer = data.from_vectors(str(place), training_size=7, seed=3)
    assert sizes(fewer) == [7, 12, 20]
    rows = {row.tobytes() for row in dataset.train.inputs}
    assert {row.tobytes() for row in fewer.train.inputs} <= rows
    noisy = data.from_vectors(str(place), label_noise=1.0, seed=3)
    assert np.mean(noisy.train.labels != dataset.train.labels) > 0.3
    np.testing.assert_array_equal(noisy.test.labels, dataset.test.labels)
