"""A run whose data set lies in files, which may move."""

import json
import os

import numpy as np
import pytest

from tests.data import tiny
from tests.experiments.processes import finish


@pytest.mark.slow
def test_a_run_goes_on_where_the_data_set_lies_elsewhere(tmp_path, monkeypatch):
    monkeypatch.delenv("CALIB_JAX_DATA_DIR", raising=False)
    tiny.write(tmp_path / "here")
    folder = tmp_path / "run"
    few = ("--config.num_epochs=1", "--config.num_bins=2")  # 4 examples validate
    train = ("train", "--config=configs/cifar10_lenet5.py", *few)
    output = finish(*train, f"--workdir={folder}", f"--data_dir={tmp_path / 'here'}")
    assert (
        f"next: python -m experiments.evaluate --workdir={folder} --data_dir={tmp_path}" in output
    )
    os.rename(tmp_path / "here", tmp_path / "there")
    moved = f"--data_dir={tmp_path / 'there'}"
    output = finish(*train, f"--workdir={folder}", moved)
    assert "holds a finished run of 1 epochs: nothing to do" in output  # and not another config
    assert str(tmp_path) not in json.dumps(json.loads((folder / "config.json").read_text()))
    finish("evaluate", f"--workdir={folder}", moved, "--resamples=20", "--calibrate=")
    with np.load(folder / "predictions_test.npz") as result:
        np.testing.assert_array_equal(result["labels"], tiny.examples("test")[1])
