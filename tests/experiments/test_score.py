"""The command that scores files: as a process, with real files."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def sample(num_rows=120, seed=0):
    """Return logits and labels as a file holds them."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal((num_rows, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    return {"logits": (3 * logits).astype(np.float32), "labels": labels}


def run(*arguments):
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "experiments.score", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def test_from_files_to_a_table_and_a_folder(tmp_path):
    np.savez(tmp_path / "test.npz", **sample(), groups=np.arange(120) % 2)
    np.savez(tmp_path / "val.npz", **sample(seed=1))
    found = run(
        f"--predictions={tmp_path / 'test.npz'}",
        "--calibrate=temperature",
        f"--fit_on={tmp_path / 'val.npz'}",
        f"--compare={tmp_path / 'test.npz'}",
        "--metrics=accuracy,nll",
        "--resamples=20",
        f"--out={tmp_path / 'out'}",
    )
    assert found.returncode == 0, found.stderr
    assert "120 examples in 3 classes" in found.stdout
    assert "temperature - as given" in found.stdout
    assert "group" in found.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "report.json",
        "report.csv",
        "report.md",
        "reliability_temperature.png",
    }
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert "--metrics=accuracy,nll" in written["settings"]["command"]
    # The same predictions: no difference, and no accident.
    (same,) = (c for c in written["changes"] if (c["metric"], c["after"]) == ("nll", "other"))
    assert (same["value"], same["p_value"]) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is nothing to score: give --predictions=FILE"),
        (["--predictions=FOLDER/none.npz"], "there is no file"),
        (["--predictions=FOLDER/run.npz", "--metrics=eec"], "did you mean 'ece'?"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, arguments, said):
    np.savez(tmp_path / "run.npz", **sample())
    found = run(*(each.replace("FOLDER", str(tmp_path)) for each in arguments))
    assert found.returncode == 2
    assert said in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stderr.count("\n") == 1
