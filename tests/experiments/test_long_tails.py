"""The rows that a long-tailed data set adds to a report, and pictures of chosen images."""

import types

import numpy as np
import pytest

from calib_jax import data, losses, report
from calib_jax.core import InMemory
from experiments.evaluation import prediction_pictures, scoring
from experiments.evaluation.trained import Trained
from tests.train import tasks

COUNTS = (500, 60, 10)


def sample():
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 90)
    logits = random.standard_normal((90, 3)).astype(np.float32)
    logits[np.arange(90), labels] += 1
    return logits, labels


@pytest.mark.slow
def test_the_report_has_accuracies_and_groups_by_frequency():
    logits, labels = sample()
    options = scoring.score_options(COUNTS, logits, 5)
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


def dataset_of(images, labels):
    part = InMemory(images, labels, (labels < 2).astype(np.float32))
    names = ("sky", "road")
    options = {"train": part, "validation": part, "test": part, "description": ""}
    return data.Dataset(name="scenes", class_names=names, **options)


def experiment_of(dataset):
    """The parts of an experiment that predictions need, with a network of each pixel alone."""

    def forward(params, model_state, inputs, **options):
        return inputs[..., :2] / 255.0, model_state, None

    return types.SimpleNamespace(
        dataset=dataset,
        task=types.SimpleNamespace(forward=forward),
        plan=types.SimpleNamespace(batch_size=2),
        config=types.SimpleNamespace(run=types.SimpleNamespace(num_devices=1)),
    )


@pytest.fixture(scope="module")
def scenes():
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (4, 3, 5, 3), dtype=np.uint8)
    return dataset_of(images, random.integers(0, 3, (4, 3, 5)).astype(np.int32))


def test_pictures_of_chosen_images_and_links_that_are_not_followed(scenes, tmp_path):
    state = tasks.state_of(losses.objective("brier"))
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()

    def draw(*chosen):
        network = Trained(run, state)
        return prediction_pictures.draw(experiment_of(scenes), network, chosen, 0)

    for place in ("report", "report/pictures"):
        (run / place).parent.mkdir(parents=True, exist_ok=True)
        (run / place).symlink_to(outside)
        with pytest.raises(FileExistsError, match="is a link"):
            draw("2", "0")
        (run / place).unlink()
        (run / place).mkdir()
    (run / "report" / "pictures" / "test_0.png").symlink_to(outside / "mine.png")
    with pytest.raises(FileExistsError, match=r"test_0\.png is a link: remove it\."):
        draw("0")
    assert not [*outside.iterdir()]
    (run / "report" / "pictures" / "test_0.png").unlink()
    paths = draw("2", "0")
    assert [path.name for path in paths] == ["test_2.png", "test_0.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize("word", ["4", "-1", "x"])
def test_numbers_of_images_that_do_not_exist_are_refused(word):
    images, labels = np.zeros((4, 3, 5, 3), np.uint8), np.zeros((4, 3, 5), np.int32)
    with pytest.raises(ValueError, match=f"needs numbers from 0 to 3, got '{word}'"):
        prediction_pictures.numbers([word], dataset_of(images, labels))
