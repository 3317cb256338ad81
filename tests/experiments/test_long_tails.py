"""What the report of a long-tailed data set adds, and pictures of chosen images."""

import numpy as np
import pytest

from calib_jax import data, report, train
from calib_jax.core import InMemory
from experiments.reports import long_tails, prediction_pictures

COUNTS = (500, 60, 10)


def sample():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 90)
    logits = random.standard_normal((90, 3)).astype(np.float32)
    logits[np.arange(90), labels] += 1
    return logits, labels


def test_balanced_classes_add_nothing():
    logits, _ = sample()
    for counts in (None, (500, 400, 300), (50, 20, 10), (10_000_000, 10_000, 200)):
        assert long_tails.score_options(counts, logits, 15) == {}


@pytest.mark.slow
def test_the_report_has_accuracies_and_groups_by_frequency():
    logits, labels = sample()
    options = long_tails.score_options(COUNTS, logits, 5)
    scored = report.score(logits, labels, num_resamples=20, num_bins=5, **options)
    answer = logits.argmax(axis=-1)
    for number, shot in enumerate(("many", "medium", "few")):
        recall = np.mean(answer[labels == number] == number)
        assert scored.value(f"{shot}_shot_accuracy") == pytest.approx(recall, abs=1e-6)
        rows = answer == number
        parts = [
            part
            for part in scored.groups
            if part.part == f"predicted class={shot}" and part.metric == "accuracy"
        ]
        assert parts[0].value == pytest.approx(np.mean(labels[rows] == number), abs=1e-6)


@pytest.mark.slow
def test_several_labels_of_an_example_have_one_group_each():
    logits, labels = (array.reshape(18, 5, *array.shape[1:]) for array in sample())
    weights = np.random.default_rng(1).integers(0, 2, labels.shape)
    options = long_tails.score_options(COUNTS, logits, 5)
    options["metrics"] = ["accuracy"]
    scored = report.score(logits, labels, weights=weights, num_resamples=2, **options)
    rows = (logits.argmax(axis=-1) == 2) & (weights > 0)
    (few,) = (part for part in scored.groups if part.part == "predicted class=few")
    assert few.value == pytest.approx(np.mean(labels[rows] == 2), abs=1e-6)


def dataset_of(images, labels):
    part = InMemory(images, labels, (labels < 2).astype(np.float32))
    names = ("sky", "road")
    options = {"train": part, "validation": part, "test": part, "description": ""}
    return data.Dataset(name="scenes", class_names=names, **options)


@pytest.mark.slow
def test_pictures_of_chosen_images(tmp_path):
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (4, 3, 5, 3), dtype=np.uint8)
    labels = random.integers(0, 3, (4, 3, 5)).astype(np.int32)
    dataset = dataset_of(images, labels)
    chosen = prediction_pictures.numbers(["2", "0"], dataset)
    some = data.subset(dataset.test, chosen)[np.arange(2)]
    np.testing.assert_array_equal(some.labels, labels[[2, 0]])
    logits = random.standard_normal((1, 2, 3, 5, 2))
    predicted = train.Predicted(logits, some.labels, some.weights)
    paths = prediction_pictures.write(dataset, chosen, predicted, tmp_path / "pictures")
    assert [path.name for path in paths] == ["test_2.png", "test_0.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize("word", ["4", "-1", "x"])
def test_numbers_of_images_that_do_not_exist_are_refused(word):
    images, labels = np.zeros((4, 3, 5, 3), np.uint8), np.zeros((4, 3, 5), np.int32)
    with pytest.raises(ValueError, match=f"needs numbers from 0 to 3, got '{word}'"):
        prediction_pictures.numbers([word], dataset_of(images, labels))


def test_data_without_pixels_has_no_pictures():
    with pytest.raises(ValueError, match="needs color images whose pixels have classes, and digit"):
        prediction_pictures.numbers(["0"], data.digits())
