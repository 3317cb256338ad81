"""Evaluations: absent labels, long tails, streams, and sets of other inputs."""

import json
import types

import numpy as np
import pytest

from calib_jax import calibrators, data, losses, metrics, report
from calib_jax.core import InMemory
from experiments.datasets import ood_sets
from experiments.evaluation import finished, prediction_pictures, scoring, streamed_scores
from experiments.evaluation.trained import Trained
from tests.experiments.test_compare import CLASSES, EXAMPLES, leave, stored
from tests.train import tasks

LENGTH = 5


def by_sentence(folder, *, void=-1):
    """Rewrite predictions as sentences of tokens, of which a fifth has no label."""
    for part in ("validation", "test"):
        logits, labels = stored(folder, part)
        shape = (EXAMPLES // LENGTH, LENGTH)
        weights = np.random.default_rng(0).choice([0, 1, 1, 2, 1], size=shape)
        arrays = {
            "logits": logits.reshape(*shape, CLASSES).astype(np.float32),
            "labels": np.where(weights == 0, void, labels.reshape(shape)),
            "weights": weights.astype(np.float32),
        }
        np.savez(folder / f"predictions_{part}.npz", **arrays)
    return folder


def test_weights_that_differ_are_refused_and_void_labels_are_not(tmp_path):
    first = by_sentence(leave(tmp_path / "first", 1))
    other = by_sentence(leave(tmp_path / "other", 1), void=255)
    finished.read([str(first), str(other)])
    with np.load(other / "predictions_test.npz") as arrays:
        changed = dict(arrays)
    place = tuple(np.argwhere(changed["weights"] > 0)[7])
    changed["weights"][place] = 3
    np.savez(other / "predictions_test.npz", **changed)
    message = f"differ in the weights of their test labels, first of example {place[0]}"
    with pytest.raises(ValueError, match=message):
        finished.read([str(first), str(other)])


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


SEVERAL = {name: metrics.named(name) for name in ("accuracy", "nll")}


def test_values_are_those_of_the_whole(tmp_path):
    random = np.random.default_rng(0)
    logits = 3 * random.standard_normal((200, 3)).astype(np.float32)
    labels = np.argmax(logits / 3 + random.gumbel(size=logits.shape), axis=-1)
    weights = (np.arange(200) % 4 > 0).astype(np.float32)
    first, second = (
        [(logits[i : i + 50], labels[i : i + 50], weights[i : i + 50]) for i in starts]
        for starts in ((0, 50), (100, 150))
    )
    scored = streamed_scores.score(
        lambda: iter(second), [*SEVERAL], calibrate="temperature", fit_on=lambda: iter(first)
    )
    params = calibrators.temperature.fit(logits[:100], labels[:100], weights[:100])
    z, rest = logits[100:], (labels[100:], weights[100:])
    whole = metrics.values_of(SEVERAL, z, *rest)
    calibrated = metrics.values_of(SEVERAL, calibrators.temperature.apply(params, z), *rest)
    assert scored.num_examples == 75
    assert scored.before == pytest.approx({k: float(v) for k, v in whole.items()}, rel=1e-5)
    assert scored.after == pytest.approx({k: float(v) for k, v in calibrated.items()}, rel=1e-5)
    assert scored.save(tmp_path) == ["values.json", "values.txt"]
    saved = json.loads((tmp_path / "values.json").read_text())
    assert saved["before"] == scored.before
    assert "no intervals" in saved["intervals"]
    temperature = pytest.approx(float(params.temperature), rel=1e-5)
    fitted = {"name": "temperature", "state": "converged", "temperature": temperature}
    assert saved["calibrator"] == fitted
    assert "no intervals" in (tmp_path / "values.txt").read_text()


def test_values_are_read_back_and_damaged_ones_are_refused(tmp_path):
    assert streamed_scores.read(tmp_path) is None
    blocks = [(9 * np.eye(3, dtype=np.float32) - 4, np.arange(3), np.ones(3))]
    scored = streamed_scores.score(
        lambda: blocks, SEVERAL, num_bins=7, calibrate="", fit_on=lambda: blocks
    )
    scored.save(tmp_path / "report")
    assert streamed_scores.read(tmp_path) == scored
    path = tmp_path / "report" / "values.json"
    contents = json.loads(path.read_text())
    for name, wrong in (("before", {"nll": "one"}), ("num_bins", None), ("after", [])):
        path.write_text(json.dumps({**contents, name: wrong}))
        with pytest.raises(
            ValueError, match=r"values.json holds no streamed values; experiments.e"
        ):
            streamed_scores.read(tmp_path)
    streamed_scores.remove(tmp_path)
    assert streamed_scores.read(tmp_path) is None


def test_names_and_options():
    own = data.named("digits")
    result = ood_sets.named(["gaussian_noise:severity=2", "digits:seed=3"], own, None)
    assert list(result) == ["gaussian_noise_severity_2", "digits_seed_3"]
    noise, other = (source.inputs for source in result.values())
    assert noise.shape == own.test.inputs.shape
    # Digits have 17 shades, so the noise is measured on their scale.
    same = (own.test.inputs > 4) & (own.test.inputs < 12)
    change = (noise[same].astype(float) - own.test.inputs[same] + 0.5) / 16
    assert np.std(change) == pytest.approx(np.hypot(0.06, 1 / 16 / 12**0.5), rel=0.05)
    np.testing.assert_array_equal(other, data.named("digits", seed=3).test.inputs)


def test_a_set_of_the_users_own_by_import_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_sets.py").write_text(
        "from calib_jax import data\n"
        "def mine(*, seed: int = 1):\n"
        "    return data.named('digits', seed=seed)\n"
    )
    digits = data.named("digits")
    sets = ood_sets.named(["own_sets:mine", "own_sets:mine:seed=3"], digits, None)
    assert list(sets) == ["own_sets_mine", "own_sets_mine_seed_3"]
    last = sets["own_sets_mine_seed_3"]
    np.testing.assert_array_equal(last.inputs, data.named("digits", seed=3).test.inputs)
    with pytest.raises(ValueError, match=r"the module own_sets has no 'min'; did you mean 'mi"):
        ood_sets.named(["own_sets:min"], digits, None)
    with pytest.raises(TypeError, match="did you mean 'seed'"):
        ood_sets.named(["own_sets:mine:sed=3"], digits, None)
