"""The use of an accelerator's minutes, on fabricated runs; and (slow) a session at tiny size."""

import pytest

from experiments.papers import accelerator, device_check, scales
from experiments.papers.entries import trainings
from experiments.papers.judge import verdicts
from experiments.papers.page import listing
from experiments.papers.store import runs
from tests.data import tiny
from tests.experiments.processes import refused
from tests.experiments.test_papers_entries import log, record

pytestmark = pytest.mark.papers

DEVICE = "cpu, 1 device(s)"


def recorded(folder, training, seconds=60.0):
    """Write the records of all seeds of a training."""
    # The accelerator's runs do not log what a diagnosis adds.
    rows = [{key: row[key] for key in ("epoch", "step", "learning_rate")} for row in log(1.0)]
    for seed in training.of_seeds:
        record(folder, training, seed, 1.2, rows, device=DEVICE, seconds=seconds)


@pytest.fixture
def place(tmp_path):
    return accelerator.Place(tmp_path / "out", tmp_path / "runs", None, "tiny", "bfloat16")


@pytest.fixture
def trained(monkeypatch, place):
    """The labels of the trainings that a session starts; they end at once."""
    labels = []

    def train(missing, runs_dir, data_dir, seconds):
        (training,) = missing
        labels.append(training.label)
        recorded(place.folder, training)
        return True

    monkeypatch.setattr(accelerator, "checked_device", lambda folder: DEVICE)
    monkeypatch.setattr(accelerator.runs, "train_missing", train)
    monkeypatch.setattr(accelerator.runs, "missing_data", lambda name, data_dir: "")
    return labels


@pytest.mark.slow
def test_the_most_valuable_trainings_come_first(place, trained, capsys):
    assert accelerator.session(place, minutes=20) == 0
    losses = [label.partition("-")[0] for label in trained]
    assert losses == [
        *("cross_entropy", "bsce_gra", "flsd53", "adafocal", "focal"),
        *("brier", "mmce", "dual_focal", "label_smoothing"),
    ]
    printed = capsys.readouterr().out
    assert "every training is done." in printed
    for claim in (
        "bsce-gra-beats-ce-own",
        "adafocal-beats-ce-flsd-cifar10",
        "mukhoti-flsd-outperforms-own",
        "guo-lenet-better-calibrated-than-resnet",
        "bsce-gra-across-architectures",
    ):
        assert f"{claim}: " in printed
    assert (place.folder / "mukhoti_focal.json").is_file()
    # The same command trains none again.
    assert accelerator.session(place, minutes=20) == 0
    assert len(trained) == len(losses)


def test_what_does_not_fit_is_not_begun(place, trained, monkeypatch, capsys):
    monkeypatch.setattr(accelerator, "entries", lambda place: [])
    first = scales.on_gpu(trainings.CE, "tiny")
    recorded(place.folder, first, seconds=600.0)
    assert accelerator.session(place, minutes=19) == 0
    assert trained == []
    printed = capsys.readouterr().out
    assert "bsce_gra-tiny-bfloat16 needs about 20.0 minutes, and 19.0 are left." in printed
    assert accelerator.session(place, minutes=21) == 0
    assert len(trained) == 8


def test_a_training_that_is_stopped_is_named(place, trained, monkeypatch, capsys):
    monkeypatch.setattr(accelerator.runs, "train_missing", lambda *arguments: False)
    assert accelerator.session(place, minutes=1) == 0
    assert "stopped at the end of the minutes; the same command resumes." in capsys.readouterr().out


def test_a_stopped_sweep_ends_by_a_signal(tmp_path, monkeypatch):
    monkeypatch.setattr(runs.sys, "executable", "sleep")
    monkeypatch.setattr(runs.subprocess, "Popen", sleeping(runs.subprocess.Popen))
    assert runs.train_missing([trainings.CE], tmp_path, None, seconds=0.01) is False


def sleeping(popen):
    """Start a process that sleeps, whatever the command."""
    return lambda command, cwd: popen(["sleep", "60"])


def test_the_trainings_are_short_and_of_the_papers_networks():
    for training in accelerator.ORDER:
        scaled = scales.on_gpu(training)
        config = runs.config_of(scaled)
        assert config["precision"] == "bfloat16"
        assert config["num_epochs"] <= scales.SHORT_EPOCHS
        assert config["model"]["name"] in ("resnet8", "lenet5", "wide_resnet26_10", "densenet121")
        assert config["data"]["options"].get("training_size") in (None, 45_000)
        assert scaled.seeds == 3
    labels = {(t.config, t.label) for t in map(scales.on_gpu, accelerator.ORDER)}
    assert len(labels) == len(accelerator.ORDER)


def test_a_wrong_value_is_a_difference():
    check = device_check.Check("loss by hand", float("nan"), 1e-6)
    assert not check.passed
    assert "DIFFERS" in check.text()
    # TensorFloat-32 keeps 10 bits of a matrix; the comparisons with float64 must notice them.
    assert device_check.CLOSE < 2**-11


@pytest.mark.slow
def test_minutes_need_the_scale(tmp_path):
    message = "--minutes needs --scale=gpu, and chooses the runs itself: omit --run."
    printed = refused("papers", "--minutes=1", f"--results={tmp_path}")
    assert printed == f"error: {message}\n"


@pytest.mark.slow
def test_a_session_at_tiny_size(tmp_path, monkeypatch, capfd):
    """The same on a processor: a check, two trainings, records and verdicts; and it resumes."""
    tiny.cifar10(tmp_path / "data")
    monkeypatch.setattr(accelerator, "ORDER", (trainings.CE, trainings.BSCE_GRA))
    folders = tmp_path / "out", tmp_path / "runs", str(tmp_path / "data")
    place = accelerator.Place(*folders, "tiny", "bfloat16")
    assert accelerator.session(place, minutes=60) == 0
    printed = capfd.readouterr().out
    assert "this is a CPU" in printed
    assert "every training is done." in printed
    assert "bsce-gra-beats-ce-own: " in printed
    assert accelerator.session(place, minutes=60) == 0
    assert "trained and recorded" not in capfd.readouterr().out
    by_claim = {claim: e for e in accelerator.entries(place) for claim in e.claims}
    standing = verdicts.read(place.folder, by_claim)
    listed = {row.claim.id: row for row in listing.rows(place.folder, standing, by_claim)}
    assert not listed["bsce-gra-beats-ce-own"].missing
    assert listed["bsce-gra-beats-ce-own"].minutes == "0"
