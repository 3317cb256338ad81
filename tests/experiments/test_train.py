"""The binaries that train and evaluate, as processes: what they leave, and what they refuse."""

import json
import shutil
import signal

import numpy as np
import pytest
import scipy.special

from calib_jax import data
from calib_jax.train import log as logs
from tests.experiments.processes import UNDRAWN, finish, start, stop_after

CONFIG = "--config=configs/digits.py:adafocal"
DIAGNOSED = "--config.diagnose"
SHORT = ("--config.num_epochs=3", "--config.model.options.hidden=(16,)")
# Parts of one size share their programs.
SIZES = ("--config.data.options.validation_size=500", "--config.data.options.test_size=500")
RUN = (CONFIG, *SHORT, *SIZES, DIAGNOSED)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    output = finish("train", *RUN, f"--workdir={folder}", before=UNDRAWN)
    return folder, output


def test_a_run_is_told_and_kept(trained):
    folder, output = trained
    lines = [line for line in output.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 3
    assert "validation error" in lines[0]
    assert "gamma" in output  # the table of AdaFocal's bins
    assert output.count("evaluate it with --checkpoint=best_nll") == 1
    assert f"next: python -m experiments.evaluate --workdir={folder}" in output
    rows = logs.read_rows(folder / "metrics.jsonl")
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert json.loads((folder / "config.json").read_text())["loss"]["name"] == "adafocal"
    assert "Traceback" not in output
    assert (folder / "log.txt").read_text().splitlines() == lines
    assert output.startswith("data: Handwritten digits of UCI, 8 x 8 grey: ")


@pytest.fixture(scope="module")
def evaluated(trained):
    folder, _ = trained
    more = ("--resamples=20", "--training", "--ood=gaussian_noise:severity=4")
    given = (f"--workdir={folder}", "--checkpoint=best_nll", *more)
    return folder, finish("evaluate", *given, before=UNDRAWN)


def test_evaluation_writes_predictions_and_a_report(evaluated):
    folder, output = evaluated
    assert "temperature - as given" in output
    best = min(logs.read_rows(folder / "metrics.jsonl"), key=lambda row: row["validation_nll"])
    with np.load(folder / "predictions_validation.npz") as result:
        error = np.mean(result["logits"].argmax(-1) != result["labels"])
        assert error == pytest.approx(best["validation_error"], abs=1e-6)
        assert (str(result["checkpoint"]), int(result["step"])) == ("best_nll", best["step"])
    digits = data.digits(validation_size=500, test_size=500, label_noise=0.15)
    for name, place in (("test", "report"), ("training", "report_training")):
        with np.load(folder / f"predictions_{name}.npz") as result:
            part = digits.test if name == "test" else digits.train
            np.testing.assert_array_equal(result["labels"], part.labels)
        assert (folder / place / "reliability_temperature.png").exists()
    of_best = f"best_nll, step {best['step']:,}"
    assert "](report/report.md)" in (folder / "report.md").read_text()
    assert f"Weights: {of_best}." in (folder / "report" / "report.md").read_text()
    settings = json.loads((folder / "report" / "report.json").read_text())["settings"]
    assert settings["checkpoint"] == of_best
    assert {"command", "commit", "date", "device"} <= settings.keys()
    assert (folder / "report" / "roc_gaussian_noise_severity_4.png").exists()
    separated = json.loads((folder / "report" / "ood.json").read_text())
    assert separated["settings"]["checkpoint"] == of_best
    assert f"Weights: {of_best}." in (folder / "report" / "ood.md").read_text()
    told = separated["metrics"]
    doubts = []
    for name in ("test", "gaussian_noise_severity_4"):
        with np.load(folder / f"predictions_{name}.npz") as result:
            doubts.append(-scipy.special.softmax(result["logits"], axis=-1).max(axis=-1))
    inside, outside = doubts
    auroc = np.mean(outside[:, None] > inside) + 0.5 * np.mean(outside[:, None] == inside)
    values = {(r["score"], r["predictions"], r["metric"]): r["value"] for r in told}
    assert values["max_confidence", "as given", "ood_auroc"] == pytest.approx(auroc, abs=1e-4)
    assert f"step {best['step']} of" in output


@pytest.mark.slow
def test_logits_in_blocks_and_logits_that_are_not_kept(evaluated, tmp_path):
    """Their values are those of the kept logits; the blocks of an earlier call are replaced."""
    folder = tmp_path / "copy"
    shutil.copytree(evaluated[0], folder)
    with np.load(folder / "predictions_test.npz") as arrays:
        logits, labels = arrays["logits"], arrays["labels"]
    nll = scipy.special.logsumexp(logits, axis=-1) - logits[np.arange(500), labels]

    def values(kind):
        more = ("--checkpoint=best_nll", "--batch_size=150")
        finish("evaluate", f"--workdir={folder}", f"--logits={kind}", *more)
        return json.loads((folder / "report" / "values.json").read_text())

    first, again, none = values("float16"), values("float16"), values("none")
    assert again == first
    for result, tolerance in ((first, 1e-3), (none, 1e-5)):
        assert result["num_examples"] == 500
        assert result["before"]["nll"] == pytest.approx(nll.mean(), rel=tolerance)
        assert result["after"]["nll"] < result["before"]["nll"]
    names = sorted(path.name for path in (folder / "predictions_test").iterdir())
    assert names == [f"block_0000{k}.npz" for k in range(4)]
    notes = folder / "predictions_test" / "notes.txt"
    notes.write_text("mine")
    output = finish("evaluate", f"--workdir={folder}", "--logits=float16", code=2)
    assert "holds notes.txt, which is no block of logits: move it" in output
    assert notes.read_text() == "mine"  # and what is there stays
    output = finish("compare", evaluated[0], folder, "--resamples=100")
    assert "The logits of copy were not kept: values from streamed statistics" in output
    output = finish("evaluate", f"--workdir={folder}", "--logits=some", code=2)
    assert "keep|float16|none" in output.replace(", ", "|").replace("'", "")


def test_a_finished_run_says_so(trained):
    more = (f"--workdir={trained[0]}", "--config.run.keep=5")
    output = finish("train", *RUN, *more, before=UNDRAWN)
    assert "holds a finished run of 3 epochs: nothing to do" in output


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_loses_nothing(tmp_path, number, code):
    long = ("--config.num_epochs=5000", "--config.model.options.hidden=(16,)")
    process = start("train", CONFIG, f"--workdir={tmp_path}", *long)
    result, output = stop_after(process, tmp_path, rows=3, number=number)
    assert result == code, output
    assert "nothing is lost: the same command goes on from here" in output
    rows = (tmp_path / "metrics.jsonl").read_text().count("\n")
    process = start("train", CONFIG, f"--workdir={tmp_path}", *long)
    _, output = stop_after(process, tmp_path, rows=rows + 1, number=number)
    assert "going on from step" in output
    steps = [row["step"] for row in logs.read_rows(tmp_path / "metrics.jsonl")]
    assert steps == list(range(10, 10 * len(steps) + 1, 10))


DIGITS = "--config=configs/digits.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([f"{DIGITS}:adafocl"], "no config for a loss 'adafocl'; did you mean"),
        ([DIGITS, "--data.options.seed=3"], "did you mean --config.data.options.seed?"),
        (["--config=digit:focal"], "no config file digit; did you mean configs/digits.py:focal?"),
        ([DIGITS, "--config.num_epochs=three"], "num_epochs must be an integer, got 'three'.\n"),
        ([DIGITS, "--config.optimiser.learning_rate=3"], "--config.optimizer.learning_rate?"),
        ([DIGITS, "--config.schedule.warmup_epochs=3"], "did you mean 'warm_up_epochs'?"),
        ([DIGITS, "--config.best.eec=min"], "no metric is called 'eec'; did you mean 'ece'?"),
        ([DIGITS, "--config.model.name=resnet"], "no network is called 'resnet'; did you mean 're"),
        ([DIGITS, "--config.schedule.milestones=a,b"], "must be numbers, such as 1,10,20, got a,b"),
        (["--config=configs/cifar10_lenet5.py", "--data_dir=nowhere"], "nowhere (from data_dir"),
        (["--config=configs/losses.py"], "this file has no function get_config: give a whole"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, arguments, message):
    output = finish("train", *arguments, f"--workdir={tmp_path / 'run'}", code=2)
    assert output.count("error: ") == 1  # after a note about the options of another network
    assert message in output
    assert all(len(line) < 400 for line in output.splitlines())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_several_seeds_have_folders_of_their_own(tmp_path):
    two = (CONFIG, f"--workdir={tmp_path}", *SHORT, "--config.num_seeds=2")
    output = finish("train", *two)
    assert "seed 2: epoch 3/3" in output
    assert "| mean ± sd |" in output
    alone = tmp_path / "alone"
    finish("train", CONFIG, f"--workdir={alone}", *SHORT, "--config.seed=2")
    seed = tmp_path / "seed_2"
    for name in ("config.json", "loss_state.jsonl"):
        assert (seed / name).read_text() == (alone / name).read_text()
    shutil.rmtree(alone)
    several = ("--resamples=100", "--criterion=nll,ece")
    output = finish("evaluate", f"--workdir={tmp_path}", *several)
    assert "Mean ± standard deviation over 2 seeds" in output
    assert "T by ece" in output
    assert (
        "T by ece: the first minimum of ece on 0.1"
        in (tmp_path / "report" / "report.md").read_text()
    )
    for folder in (tmp_path / "seed_1", seed):
        with np.load(folder / "predictions_test.npz") as result:
            assert result["logits"].shape == (1000, 10)
    output = finish("evaluate", f"--workdir={tmp_path}", "--resamples=20", "--calibrate=")
    assert "Checkpoints: latest. As trained." in output
    assert "after temperature" not in output
    other = tmp_path / "seed_3"
    longer = ("--config.num_epochs=4", SHORT[1], "--config.seed=3")
    finish("train", CONFIG, f"--workdir={other}", *longer)
    output = finish("evaluate", f"--workdir={tmp_path}", code=2)
    assert "seed_3 are of different trainings (num_epochs: 3 before, 4 now" in output
    shutil.rmtree(other)
    output = finish("train", CONFIG, f"--workdir={tmp_path}", *SHORT, code=2)
    assert (
        "holds the seeds 1, 2: resume them with --config.seed=1 --config.num_seeds=2, or" in output
    )
