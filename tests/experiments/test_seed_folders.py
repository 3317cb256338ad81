"""Which folders may be a --workdir: new ones and those of calib_jax, and never those of others."""

import json
import shutil

import pytest

from calib_jax import train
from calib_jax.train.folder import journal, lock
from experiments.reports import evaluation_record
from experiments.running import seed_folders
from tests.train.test_loop import run as fit

TRANSFORMERS = {"model_type": "bert", "hidden_size": 768, "num_labels": 77}
HYDRA = {"data": {"name": "mine"}, "model": {"name": "net"}, "loss": {"name": "l2"}, "run": {}}
LIGHTNING = "checkpoints/epoch=3-step=100.ckpt"

OF_OTHERS = {
    "a network of transformers": {"config.json": TRANSFORMERS, "model.safetensors": ""},
    "a config of the same keys": {"config.json": HYDRA, "main.py": ""},
    "a project with event files": {"runs/Nov26/events.out.tfevents.1": "", "report.md": "mine"},
    "checkpoints of lightning": {LIGHTNING: "", "data.json": {"rows": 3}},
    "numbered checkpoints": {"checkpoints/1000/model.pt": "", "config.json": HYDRA},
    "predictions of an ensemble": {"predictions_ensemble.npz": "", "notes.txt": ""},
    "other rows": {"metrics.jsonl": {"loss": 3}},
    "a format of another kind": {"format.json": {"format": "parquet"}},
    "another evaluation": {"evaluation.json": {"accuracy": 0.9}},
    "another sweep": {"sweep.json": {"method": "grid"}},
    "another lock": {".lock": "1", "setup.py": ""},
    "folders of seeds": {"seed_1/events": "", "seed_2/events": ""},
    "broken files": {"config.json": "{", "format.json": "\0", "evaluation.json": "[1]"},
}


def fill(folder, contents):
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_folder_of_another_program_is_refused(tmp_path, name):
    fill(tmp_path, OF_OTHERS[name])
    with pytest.raises(ValueError, match="holds files that belong to no run, such as"):
        seed_folders.named(str(tmp_path))


def test_a_project_with_a_run_of_ours_inside_it_is_refused(tmp_path):
    seed_folders.prepare(tmp_path / "runs" / "digits" / "1")
    fill(tmp_path, {"report.md": "the report of the sweep"})
    assert seed_folders.named(str(tmp_path)) == tmp_path
    fill(tmp_path, {"main.py": ""})
    with pytest.raises(ValueError, match=r"such as main\.py"):
        seed_folders.named(str(tmp_path))


def copy_without_hidden_files(folder):
    copied = folder.with_name("copied")
    shutil.copytree(folder, copied, ignore=shutil.ignore_patterns(".*"))
    return copied


@pytest.mark.slow
def test_folders_of_runs_are_ours_also_as_copies_and_with_more_files(tmp_path):
    fit(tmp_path / "run", config={"rate": 1})
    for folder in (tmp_path / "run", copy_without_hidden_files(tmp_path / "run")):
        (folder / "notes.txt").write_text("mine")
        assert seed_folders.named(str(folder)) == folder


def test_folders_of_evaluations_and_begun_runs_are_ours(tmp_path):
    with lock.only_one(tmp_path, lock.EVALUATION):
        (tmp_path / "predictions_validation.npz").write_text("")
    assert seed_folders.named(str(tmp_path)) == tmp_path
    evaluation_record.write(tmp_path, evaluation_record.Evaluated("latest", 4))
    copied = copy_without_hidden_files(tmp_path)
    assert seed_folders.named(str(copied)) == copied
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "subwords.txt").write_text("")
    assert seed_folders.named(str(tmp_path / "begun"))


@pytest.mark.parametrize("config", [TRANSFORMERS, "{", "[]", ""])
def test_the_library_sets_another_config_aside(tmp_path, config):
    fill(tmp_path, {"config.json": config})
    before = (tmp_path / "config.json").read_text()
    fit(tmp_path, config={"rate": 1})
    assert json.loads((tmp_path / "config.json").read_text()) == {"rate": 1}
    assert (tmp_path / "config.json.damaged").read_text() == before
    assert "config.json" in (tmp_path / journal.SPOKEN).read_text()


@pytest.mark.slow
def test_a_run_that_was_killed_at_its_start_keeps_its_config(tmp_path):
    fit(tmp_path, config={"rate": 1}, plan=train.Plan(num_epochs=1, batch_size=10))
    shutil.rmtree(tmp_path / "checkpoints")
    fit(tmp_path, config={"rate": 2}, plan=train.Plan(num_epochs=1, batch_size=10))
    assert not (tmp_path / "config.json.damaged").exists()
