"""The sweep as a process: what it trains, what it does not train again, and what it refuses."""

import json
import signal

import numpy as np
import pytest
import scipy.special

from calib_jax.train import log as logs
from calib_jax.train import only_one
from experiments.reports import summary
from tests.experiments.processes import finish, start, stop_after
from tests.experiments.test_train import SHORT, SIZES

TINY = ("--config.model.options.hidden=(16,)", "--resamples=100")


def sweep(folder, *more, losses="cross_entropy,adafocal", config="configs/digits.py"):
    return (f"--config={config}", f"--workdir={folder}", f"--losses={losses}", *TINY, *more)


def test_a_sweep_trains_and_puts_it_in_a_table(tmp_path):
    output = finish("sweep", *sweep(tmp_path, *SHORT, *SIZES))
    assert "2/2  adafocal seed 1" in output
    assert "as trained" in output
    assert "after temperature" in output
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert {cell["loss"] for cell in record["cells"]} == {"cross_entropy", "adafocal"}
    for name in ("report.md", "sweep.csv", "reliability.png", "curves.png", "intervals.png"):
        assert (tmp_path / name).exists()


@pytest.mark.slow
def test_a_sweep_without_logits_has_values_and_may_get_them_later(tmp_path):
    short = ("--config.num_epochs=2", "--seeds=2")
    output = finish("sweep", *sweep(tmp_path, *short, "--logits=none", losses="cross_entropy"))
    assert "The logits of cross_entropy were not kept" in output
    folder = tmp_path / "runs" / "cross_entropy" / "1"
    assert not [*folder.glob("predictions_*")]
    log = (folder / "metrics.jsonl").read_bytes()
    streamed = json.loads((tmp_path / "sweep.json").read_text())
    output = finish("sweep", *sweep(tmp_path, *short, losses="cross_entropy"))
    assert "were not kept" not in output
    assert (folder / "metrics.jsonl").read_bytes() == log  # evaluated again, not trained
    kept = json.loads((tmp_path / "sweep.json").read_text())
    # The squared calibration error needs rows.
    of_rows = [cell for cell in kept["cells"] if cell["metric"] != summary.SQUARED]
    for one, other in zip(streamed["cells"], of_rows, strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=1e-3, abs=1e-4), one["metric"]
        assert one["low"] is None or np.isnan(one["low"])
        assert other["low"] < other["high"]
    output = finish("sweep", *sweep(tmp_path, *short, "--logits=none", "--criterion=ece"), code=2)
    assert "--criterion needs --logits=keep" in output


@pytest.mark.slow
def test_a_finished_sweep_goes_on_with_more_epochs(tmp_path):
    """It ends as one that had as many from the start; other metrics train nothing again."""
    constant = "--config.schedule.name=constant"
    longer = (constant, "--config.num_epochs=4")
    one, whole = tmp_path / "one", tmp_path / "whole"
    for folder, more in (
        (one, (constant, "--config.num_epochs=2")),
        (one, longer),
        (whole, longer),
    ):
        finish("sweep", *sweep(folder, *more, losses="cross_entropy"))
    records = [json.loads((folder / "sweep.json").read_text()) for folder in (one, whole)]
    assert records[0]["cells"] == records[1]["cells"]
    log = one / "runs" / "cross_entropy" / "1" / "metrics.jsonl"
    assert [row["epoch"] for row in logs.read_rows(log)] == [1, 2, 3, 4]
    output = finish("sweep", *sweep(one, *longer, "--config.metrics=brier", losses="cross_entropy"))
    assert "1 of 1 runs are done already" in output
    best = (*longer, "--checkpoint=best_nll")
    output = finish("sweep", *sweep(one, *best, losses="cross_entropy"), code=2)
    assert "has not kept best_nll" in output
    output = finish("sweep", *sweep(one, constant, "--config.num_epochs=3"), code=2)
    assert "a sweep of another config (num_epochs: 4 before, 3 now)" in output


@pytest.mark.slow
def test_a_stopped_sweep_goes_on(tmp_path):
    arguments = sweep(tmp_path, "--config.num_epochs=300", losses="cross_entropy,focal")
    process = start("sweep", *arguments)
    log = tmp_path / "runs" / "focal" / "1" / "metrics.jsonl"
    code, output = stop_after(process, log.parent, rows=3, number=signal.SIGTERM)
    assert code == 143, output
    assert "nothing is lost" in output
    assert "Traceback" not in output
    output = finish("sweep", *arguments)
    assert "1 of 2 runs are done already" in output
    rows = [row["epoch"] for row in logs.read_rows(log)]
    assert rows == list(range(1, 301))


@pytest.mark.slow
def test_failed_runs_are_named_and_the_others_are_in_the_table(tmp_path):
    """Cross-entropy diverges, brier saturates, and focal cannot save its checkpoints."""
    (tmp_path / "runs" / "focal" / "1").mkdir(parents=True)
    (tmp_path / "runs" / "focal" / "1" / "checkpoints").write_text("a file")
    with only_one(tmp_path):  # as a sweep does, whose folder it then is
        pass
    rate = "--config.optimizer.learning_rate=1e12"
    more = (rate, "--config.num_epochs=2", "--config.metrics=brier,nll")
    output = finish("sweep", *sweep(tmp_path, *more, losses="cross_entropy,focal,brier"), code=1)
    assert "1/3  cross_entropy seed 1: failed: the loss is not finite at step" in output
    assert "2/3  focal seed 1: failed: " in output
    assert "3/3  brier seed 1: validation brier" in output
    last = output.splitlines()[-1]
    assert last.startswith("error: 2 of 3 runs failed (cross_entropy seed 1, focal seed 1), and a")
    assert "Traceback" not in output
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert {cell["loss"] for cell in record["cells"]} == {"brier"}
    assert "the loss is not finite" in record["failed"]["cross_entropy seed 1"]
    assert "checkpoints" in record["failed"]["focal seed 1"]
    page = (tmp_path / "report.md").read_text()
    assert "Failed, left out: cross_entropy seed 1: the loss is not finite" in page
    assert "All runs of the baseline cross_entropy failed" in page


@pytest.mark.slow
def test_a_run_that_patience_ended_is_measured_by_its_best_weights(tmp_path):
    patient = ("--config.num_epochs=40", "--config.patience=3", "--config.metrics=nll")
    more = (*patient, "--config.optimizer.learning_rate=3.0")
    folder = tmp_path / "runs" / "cross_entropy" / "1"

    def measured(*options):
        output = finish("sweep", *sweep(tmp_path, *more, *options, losses="cross_entropy"))
        with np.load(folder / "predictions_validation.npz") as result:
            logits, labels = result["logits"].astype(float), result["labels"]
        nll = scipy.special.logsumexp(logits, axis=-1) - logits[np.arange(len(labels)), labels]
        return output, nll.mean()

    output, by_default = measured()
    log = (folder / "metrics.jsonl").read_bytes()
    rows = [row["validation_nll"] for row in logs.read_rows(folder / "metrics.jsonl")]
    assert len(rows) < 40
    assert min(rows) < rows[-1]
    assert by_default == pytest.approx(min(rows), rel=1e-5)
    assert "Checkpoints: best_nll of 1 run." in output
    (folder / "predictions_test.npz").write_bytes(b"damaged")  # is written again, not trained
    output, at_the_end = measured("--checkpoint=latest")
    assert at_the_end == pytest.approx(rows[-1], rel=1e-5)
    assert "Checkpoints: latest of 1 run." in output
    assert (folder / "metrics.jsonl").read_bytes() == log
