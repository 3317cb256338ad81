"""Reports of a data set in which a class is impossible, such as the neutral one of the SST."""

import csv
import json

import numpy as np
import pytest
import scipy.special

from experiments.reports import excluded
from experiments.running import finished
from tests.data import tiny
from tests.experiments.processes import finish
from tests.experiments.test_compare import leave

SMALL = (
    "--config=configs/sst_tree_lstm.py:cross_entropy",
    *("--config.num_epochs=1", "--config.data.options.leaves=12"),
    *("--config.model.options.width=8", "--config.model.options.memory=6"),
)
FEW = "--resamples=100"


def slow_values(folder):
    """Error and NLL between the two other classes, whose probabilities are divided by their sum."""
    with np.load(folder / "predictions_test.npz") as arrays:
        logits, labels, weights = (arrays[name] for name in ("logits", "labels", "weights"))
    chosen = weights > 0
    two, right = logits[chosen][:, [0, 2]].astype(np.float64), labels[chosen] // 2
    assert set(labels[chosen]) == {0, 2}
    log_p = scipy.special.log_softmax(two, axis=-1)
    return {
        "error": np.mean(two.argmax(-1) != right),
        "nll": -np.mean(log_p[np.arange(len(right)), right]),
    }


@pytest.mark.slow
def test_evaluation_sweep_and_comparison_leave_the_class_out(tmp_path):
    tiny.sst(tmp_path)
    own, sweep = tmp_path / "run", tmp_path / "sweep"
    words = "--config.model.options.words=7"  # five, padding and unknown ones
    where = f"--data_dir={tmp_path}"
    finish("train", *SMALL, words, where, f"--workdir={own}")
    wanted = "The class neutral is excluded: the probabilities of the others are divided"
    said = finish("evaluate", where, f"--workdir={own}", FEW)
    assert wanted in said
    slow = slow_values(own)
    rows = json.loads((own / "report" / "report.json").read_text())["metrics"]
    told = {row["metric"]: row["value"] for row in rows if row["predictions"] == "as given"}
    assert 1 - told["accuracy"] == pytest.approx(slow["error"], abs=1e-6)
    assert told["nll"] == pytest.approx(slow["nll"], rel=1e-5)

    losses = "--losses=cross_entropy"
    options = (SMALL[0].partition(":")[0], *SMALL[1:], words, where, losses, FEW)
    said = finish("sweep", *options, f"--workdir={sweep}")
    assert wanted in said
    slow = slow_values(sweep / "runs" / "cross_entropy" / "1")
    with (sweep / "sweep.csv").open(newline="") as file:
        cells = {row["metric"]: row for row in csv.DictReader(file) if row["phase"] == "as trained"}
    for name, value in slow.items():
        assert float(cells[name]["value"]) == pytest.approx(value, abs=1e-6, rel=1e-5)

    (compared,) = finished.read(
        [str(own), str(sweep / "runs" / "cross_entropy" / "1")]
    ).runs.values()
    assert all(np.isneginf(member.test[0][..., 1]).all() for member in compared)

    said = finish("evaluate", where, f"--workdir={own}", "--logits=none")
    assert wanted in said
    values = json.loads((own / "report" / "values.json").read_text())["before"]
    assert values["nll"] == pytest.approx(slow_values(own)["nll"], rel=1e-5)


def test_a_config_that_excludes_none_changes_nothing():
    logits = np.ones((2, 3))
    for config in (None, {}, {"excluded_class": None}):
        assert excluded.without(logits, config) is logits
    assert excluded.sentence({}, ("a", "b")) == ""
    assert np.isneginf(excluded.without(logits, {"excluded_class": 0})[:, 0]).all()
    assert np.isfinite(logits).all()


def test_folders_are_compared_without_the_class(tmp_path):
    folders = [leave(tmp_path / name, number) for number, name in enumerate(("first", "other"))]
    path = folders[1] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"excluded_class": 1}))
    (read,) = finished.read([str(folder) for folder in folders]).runs.values()
    assert np.isfinite(read[0].test[0]).all()
    for part in (read[1].validation, read[1].test):
        assert np.isneginf(part[0]).any(axis=0).tolist() == [False, True, False]
