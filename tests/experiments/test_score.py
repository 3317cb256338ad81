"""The command that scores files: as a process, with real files."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from experiments import predictions

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


def test_every_kind_of_file_holds_the_same(tmp_path):
    data = sample(num_rows=10)
    np.savez(tmp_path / "a.npz", **data)
    np.save(tmp_path / "logits.npy", data["logits"])
    np.save(tmp_path / "labels.npy", data["labels"])
    lines = ["label,logit_0,logit_1,logit_2,group"]
    for label, row in zip(data["labels"], data["logits"], strict=True):
        lines.append(",".join([str(label), *map(repr, row.tolist()), "all"]))
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    pair = f"{tmp_path / 'logits.npy'},{tmp_path / 'labels.npy'}"
    for name in (str(tmp_path / "a.npz"), pair, str(tmp_path / "a.csv")):
        found = predictions.read(name)
        np.testing.assert_array_equal(found.labels, data["labels"])
        np.testing.assert_allclose(found.logits, data["logits"], rtol=1e-6)
    assert isinstance(predictions.read(pair).logits, np.memmap)
    assert set(predictions.read(str(tmp_path / "a.csv")).groups) == {"all"}


def test_columns_are_ordered_by_their_number(tmp_path):
    head = ["label", *(f"logit_{k}" for k in reversed(range(11)))]
    row = ["0", *(str(float(k)) for k in reversed(range(11)))]
    (tmp_path / "a.csv").write_text(",".join(head) + "\n" + ",".join(row) + "\n")
    np.testing.assert_array_equal(
        predictions.read(str(tmp_path / "a.csv")).logits, [np.arange(11.0)]
    )


def test_unreadable_files_are_named(tmp_path):
    data = sample(num_rows=10)

    def refused(name, said):
        with pytest.raises(predictions.Unreadable, match=said):
            predictions.read(str(tmp_path / name))

    np.savez(tmp_path / "keys.npz", z=data["logits"], labels=data["labels"])
    refused("keys.npz", "has no array 'logits'; it has z, labels")
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04 not an archive")
    refused("damaged.npz", "cannot be read: it is damaged, or no NumPy file")
    np.savez(tmp_path / "pickle.npz", logits=np.array([{}], object), labels=data["labels"])
    refused("pickle.npz", "holds pickled objects, which are not read")
    np.savez(tmp_path / "lengths.npz", logits=data["logits"], labels=data["labels"][1:])
    refused("lengths.npz", "it has 10 logits, 9 labels")
    np.savez(tmp_path / "swapped.npz", logits=data["labels"], labels=data["logits"])
    refused("swapped.npz", "logits of .* must be floating point, got int64")
    (tmp_path / "a.csv").write_text("label,score\n0,1.5\n")
    refused("a.csv", "must have columns label, logit_0, logit_1, ...; it has label, score")
    (tmp_path / "b.csv").write_text("label,logit_0\n0,1.5\n1\n")
    refused("b.csv", "line 3 of .* has 1 fields, not 2")
    (tmp_path / "c.csv").write_text("label,logit_0\nx,1.5\n")
    refused("c.csv", "column label of .* must hold numbers")
    np.save(tmp_path / "alone.npy", data["logits"])
    refused("alone.npy", "needs its labels")
    (tmp_path / "a.txt").write_text("")
    refused("a.txt", "must end in .npz, .csv, or be LOGITS.npy,LABELS.npy")
