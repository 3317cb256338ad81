"""Splits: the released repositories' to the last index, and sources that are part of others."""

import hashlib
import json
import pathlib

import numpy as np

from calib_jax import data
from calib_jax.core.examples import Examples, InMemory
from calib_jax.data.splits import some_of_each

FOLDER = pathlib.Path(__file__).parents[1] / "golden"
RECIPES = json.loads((FOLDER / "recipes.json").read_text(encoding="utf-8"))
RECORDED = {recipe["id"]: recipe for recipe in RECIPES if recipe["kind"] == "split"}


def sha256(index):
    return hashlib.sha256(index.astype("<i8").tobytes()).hexdigest()


def test_cifar_is_split_as_released():
    recorded = RECORDED["split_0"]
    given, values = recorded["hyperparameters"], recorded["values"]
    parts = data.split(given["n"], validation=given["valid_size"], seed=given["random_seed"])
    assert (len(parts.validation), len(parts.train)) == (values["n_val"], values["n_train"])
    assert sha256(parts.validation) == values["sha256_val_int64_le"]
    assert sha256(parts.train) == values["sha256_train_int64_le"]
    assert len(parts.calibration) == 0


def test_calibration_takes_the_first_of_the_validation_part():
    whole, parts = data.split(1000), data.split(1000, calibration=0.25)
    np.testing.assert_array_equal(parts.train, whole.train)
    np.testing.assert_array_equal(
        np.concatenate([parts.calibration, parts.validation]), whole.validation
    )
    assert len(parts.calibration) == 25


class OnDisk:
    """A source that is not in memory."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return Examples({"x": 10 * index}, index % 3)


def test_a_subset_of_a_subset_looks_up_the_right_examples():
    source = OnDisk(100)
    view = data.subset(data.subset(source, np.arange(50, 100)), np.array([3, 0, 7]))
    assert len(view) == 3
    assert view.source is source  # one lookup, however deep
    some = view[np.array([2, 1])]
    np.testing.assert_array_equal(some.inputs["x"], [570, 500])
    np.testing.assert_array_equal(some.labels, [57 % 3, 50 % 3])


def test_what_is_in_memory_stays_in_memory():
    source = InMemory({"x": np.arange(6.0), "y": np.arange(12).reshape(6, 2)}, np.arange(6))
    part = data.subset(source, np.array([5, 1]))
    assert isinstance(part, InMemory)
    np.testing.assert_array_equal(part.examples.inputs["y"], [[10, 11], [2, 3]])
    np.testing.assert_array_equal(part.labels, [5, 1])


def drawn_of(labels, per_class, **options):
    return some_of_each(np.array(labels), ("cat", "dog"), per_class, name="pets", **options)


def test_some_of_each_class_are_drawn_in_any_order_of_the_labels():
    labels = np.array([0, 1, 0, 1, 1, 0])
    for seed in range(20):
        assert labels[drawn_of(labels, 1, seed=seed)].tolist() in ([0, 1], [1, 0])
        assert np.bincount(labels[drawn_of(labels, 2, seed=seed)]).tolist() == [2, 2]
    ordered = np.argsort(labels, kind="stable")
    expected = np.sort(ordered[drawn_of(labels[ordered], 2, seed=3)])
    np.testing.assert_array_equal(drawn_of(labels, 2, seed=3), expected)
    # Recorded when labels had to be in order.
    assert drawn_of(np.repeat([0, 1], [9, 6]), 2, seed=3).tolist() == [0, 7, 9, 14]


def test_long_tailed_cifar_has_the_published_class_sizes():
    """5,000 examples of each class and a factor of 100: the sizes of CIFAR-10-LT."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    kept = data.long_tailed(labels, 10, factor=100)
    sizes = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert np.bincount(labels[kept]).tolist() == sizes
    for k, size in enumerate(sizes):  # the first examples of every class
        np.testing.assert_array_equal(kept[labels[kept] == k], np.flatnonzero(labels == k)[:size])
