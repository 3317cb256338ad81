"""Predictions of two checkpoints are never used together, however an evaluation ends."""

import json

import numpy as np
import pytest

from calib_jax import train
from calib_jax.core.files import reading
from experiments.evaluation import evaluation_record, finished
from experiments.evaluation.evaluation_record import Evaluated
from experiments.reports import pages

PREDICTED = train.Predicted(np.eye(3, dtype=np.float32), np.arange(3), None)
LATEST, BEST = Evaluated("latest", 4), Evaluated("best_nll", 2)
MINE = "predictions_my_ensemble.npz"


def evaluate(folder, weights, *parts):
    """As the binaries do."""
    evaluation_record.begin(folder, weights)
    for part in parts:
        evaluation_record.keep(folder, part, PREDICTED, weights)
    evaluation_record.write(folder, weights, parts)


@pytest.fixture
def folder(tmp_path):
    """A run of a sweep that is evaluated at its last step, and a file of the user."""
    evaluate(tmp_path, LATEST, "validation", "test", "training")
    result = {"config": {}, "asked": "", "checkpoint": "latest", "step": 4}
    (tmp_path / evaluation_record.OF_SWEEP).write_text(json.dumps(result))
    (tmp_path / MINE).write_text("mine")
    return tmp_path


def names(folder):
    return {path.name for path in folder.iterdir()} - {evaluation_record.FILE, MINE}


def test_only_listed_files_of_other_weights_are_removed_and_after_the_new_ones(folder):
    before = names(folder)
    evaluation_record.begin(folder, LATEST)
    assert names(folder) == before
    evaluation_record.begin(folder, BEST)
    assert names(folder) == before - {"result.json"}
    evaluate(folder, BEST, "validation", "test")
    assert names(folder) == {"predictions_validation.npz", "predictions_test.npz"}
    assert (folder / MINE).read_text() == "mine"


def test_only_reports_that_the_record_lists_are_removed_or_replaced(folder):
    """A user's own report.md and its pictures stay."""
    place = folder / "report"

    def save(where):
        names = ["report.md", "ece.png"]
        for name in names:
            (where / name).write_text("ours")
        return names

    place.mkdir()
    (place / "report.md").write_text("![mine](mine.png)\n")
    (place / "mine.png").write_text("mine")
    evaluation_record.begin(folder, BEST)
    with pytest.raises(FileExistsError, match=r"report\.md is a file of yours: move it"):
        pages.replace(place, save)
    assert (place / "report.md").read_text() == "![mine](mine.png)\n"
    (place / "report.md").unlink()
    evaluate(folder, BEST, "validation", "test")
    for _ in range(2):
        assert pages.replace(place, save) == ["report.md", "ece.png"]
    assert {path.name for path in folder.iterdir() if path.name.startswith(".")} == set()
    evaluation_record.begin(folder, BEST)
    assert (place / "ece.png").exists()
    evaluation_record.begin(folder, LATEST)
    assert [path.name for path in place.iterdir()] == ["mine.png"]


@pytest.mark.parametrize(
    "name", ["../mine.npz", "/mine.npz", "report.md", "predictions_a/b.npz", 3]
)
def test_a_record_removes_nothing_but_predictions_of_its_folder(folder, name):
    path = folder / "run"
    path.mkdir()
    evaluate(path, LATEST, "test")
    record = json.loads((path / evaluation_record.FILE).read_text()) | {"files": [name]}
    (path / evaluation_record.FILE).write_text(json.dumps(record))
    target = path / str(name).lstrip("/")
    target.parent.mkdir(exist_ok=True)
    target.write_text("mine")
    evaluate(path, BEST, "test")
    assert target.exists()


@pytest.mark.parametrize("killed_after", ["validation", "test"])
def test_predictions_of_two_checkpoints_are_refused(folder, killed_after):
    evaluation_record.check(folder)
    evaluation_record.begin(folder, BEST)
    evaluation_record.keep(folder, "validation", PREDICTED, BEST)
    if killed_after == "test":
        evaluation_record.keep(folder, "test", PREDICTED, BEST)
    message = r"of other weights \(.*\) than .* \(.*\), since an evaluation was stopped: evaluate"
    with pytest.raises(ValueError, match=message):
        evaluation_record.check(folder)
    other = folder / "other"
    other.mkdir()
    evaluate(other, LATEST, "validation", "test")
    with pytest.raises(ValueError, match=message):
        finished.read([str(other), str(folder)])
    evaluate(folder, BEST, "validation", "test")
    evaluation_record.check(folder)


@pytest.mark.parametrize("record", ["{}", '{"checkpoint": "latest", "step": 4}', "[", ""])
def test_a_damaged_record_is_named_and_evaluated_anew(folder, record):
    (folder / evaluation_record.FILE).write_text(record)
    with pytest.raises(reading.Unreadable, match=r"evaluation\.json .*evaluate the run again"):
        evaluation_record.read(folder)
    evaluation_record.begin(folder, LATEST)
    assert not (folder / evaluation_record.OF_SWEEP).exists()
    evaluate(folder, LATEST, "validation", "test")
    evaluation_record.check(folder)
