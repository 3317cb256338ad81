"""Predictions of two checkpoints never stand side by side, however an evaluation ends."""

import numpy as np
import pytest

from calib_jax import train
from calib_jax.core import reading
from calib_jax.train.files import CannotWrite
from experiments import evaluation_record

PREDICTED = train.Predicted(np.eye(3, dtype=np.float32), np.arange(3), None)


@pytest.fixture
def folder(tmp_path):
    """A run of a sweep that is evaluated at its last step."""
    for part in ("validation", "test"):
        evaluation_record.keep(tmp_path, part, PREDICTED)
    evaluation_record.write(tmp_path, "latest", 4)
    (tmp_path / evaluation_record.OF_SWEEP).write_text("{}")
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_predictions_of_other_weights_are_removed_before_new_ones_are_written(folder):
    before = names(folder)
    evaluation_record.begin(folder, "latest", 4)
    assert names(folder) == before
    (folder / "notes.txt").write_text("mine")
    evaluation_record.begin(folder, "best_nll", 2)
    assert names(folder) == ["notes.txt"]


@pytest.mark.parametrize("record", ["{}", '{"checkpoint": "latest", "step": 4}', "[", ""])
def test_a_damaged_record_is_named_and_evaluated_anew(folder, record):
    (folder / evaluation_record.FILE).write_text(record)
    with pytest.raises(reading.Unreadable, match=r"evaluation\.json .*evaluate the run again"):
        evaluation_record.read(folder)
    evaluation_record.begin(folder, "latest", 4)
    assert names(folder) == []


def test_a_file_of_predictions_is_written_whole_or_not_at_all(folder):
    class Killed(Exception):
        pass

    class Logits:
        def __array__(self, dtype=None, copy=None):
            raise Killed

    for logits in (Logits(), np.zeros((3, 3))):
        if isinstance(logits, np.ndarray):
            (folder / "predictions_test.npz.new").unlink()
            (folder / "predictions_test.npz.new").mkdir()
        with pytest.raises((Killed, CannotWrite)):
            evaluation_record.keep(folder, "test", PREDICTED._replace(logits=logits))
        with np.load(folder / "predictions_test.npz") as arrays:
            np.testing.assert_array_equal(arrays["logits"], PREDICTED.logits)
