"""Which folders may be a --workdir: new ones and those of calib_jax, and never those of others."""

import shutil

import pytest

from experiments.running import training
from tests.train.test_loop import run as fit

OF_OTHERS = {
    "a network of transformers": ("config.json", "model.safetensors"),
    "a project with event files": ("runs/Nov26/events.out.tfevents.1", "report.md"),
    "checkpoints of lightning": ("checkpoints/epoch=3-step=100.ckpt",),
    "numbered checkpoints": ("checkpoints/1000/model.pt", "config.json"),
    "folders of seeds": ("seed_1/events", "seed_2/events"),
    "sources": ("main.c", ".git/HEAD"),
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_folder_of_another_program_is_refused(tmp_path, name):
    for file in OF_OTHERS[name]:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    with pytest.raises(ValueError, match="holds files that belong to no run, such as"):
        training.named(str(tmp_path))


@pytest.mark.slow
def test_folders_of_runs_are_ours_also_as_copies_and_with_more_files(tmp_path):
    fit(tmp_path / "run")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "run", copy, ignore=shutil.ignore_patterns(".*"))
    for folder in (tmp_path / "run", copy):
        (folder / "notes.txt").write_text("mine")
        assert training.named(str(folder)) == folder
