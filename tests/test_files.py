"""Files from others: damaged ones are named, nothing in them is run, no other file is touched.

Damaged data sets: tests/data/test_refusals.py; predictions and answers: tests/report.
"""

import ast
import os
import pathlib
import pickle

import numpy as np
import pytest

from calib_jax import calibrators, data, models, report, train
from calib_jax.core.files import writing
from tests.data import tiny

ROOT = pathlib.Path(__file__).parents[1]
RANDOM = np.random.default_rng(0)
LOGITS, LABELS = RANDOM.normal(size=(20, 3)).astype(np.float32), np.arange(20) % 3


def weights(folder, suffix):
    models.write_weights(folder / f"w.{suffix}", {"a": LOGITS, "b": LABELS})
    return folder / f"w.{suffix}"


def predictions(folder, suffix):
    path = folder / f"p.{suffix}"
    if suffix == "npz":
        np.savez_compressed(path, logits=LOGITS, labels=LABELS)
    else:
        rows = [f"{y}," + ",".join(map(str, z)) for y, z in zip(LABELS, LOGITS, strict=True)]
        path.write_text("\n".join(["label,logit_0,logit_1,logit_2", *rows]) + "\n")
    return path


def calibrator(folder):
    calibrators.save(folder / "t.npz", "matrix", calibrators.matrix.fit(LOGITS, LABELS))
    return folder / "t.npz"


def block(folder):
    train.write_blocks([(LOGITS, LABELS, np.ones(20))], folder / "blocks")
    return folder / "blocks" / "block_00000.npz"


def word_vectors(folder):
    data.write_vectors(folder / "vectors.txt", {"the": LOGITS[0], "a": LOGITS[1]})
    return folder / "vectors.txt"


def subwords(folder):
    data.Subwords.of(tiny.sentences(9)[0], size=40).write(folder / "subwords.txt")
    return folder / "subwords.txt"


# Each format: its writer and its reader.
FORMATS = {
    "weights.npz": (lambda f: weights(f, "npz"), models.read_weights),
    "weights.safetensors": (lambda f: weights(f, "safetensors"), models.read_weights),
    "predictions.npz": (lambda f: predictions(f, "npz"), lambda p: report.read_predictions(str(p))),
    "predictions.csv": (lambda f: predictions(f, "csv"), lambda p: report.read_predictions(str(p))),
    "calibrator": (calibrator, calibrators.load),
    "block of logits": (block, lambda p: list(train.read_blocks(p.parent))),
    "word vectors": (word_vectors, lambda p: data.read_vectors(p, ["the"])),
    "subwords": (subwords, data.Subwords.read),
}


class Trap:
    """An object whose unpickling is detected."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_named_and_never_unpickled(name, tmp_path):
    make, read = FORMATS[name]
    path = make(tmp_path)
    whole = path.read_bytes()
    read(path)
    cut = [whole[: len(whole) // 3]] if path.suffix in (".npz", ".safetensors") else []
    for content in (*cut, pickle.dumps(Trap()), b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name) as caught:
            read(path)
        assert len(str(caught.value)) < 1000
        assert str(caught.value).isprintable() or "\n" in str(caught.value)


def test_arrays_of_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "w.npz", a=np.array([Trap()]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"w\.npz .* pickled objects, which are never read"):
        models.read_weights(tmp_path / "w.npz")


# Functions that run code from data, or read objects by running code.
MODULES = {"cloudpickle", "code", "dill", "joblib", "marshal", "pickle", "shelve", "yaml"}
CALLS = {"__import__", "eval", "exec", "compile", "execfile"}
ATTRIBUTES = {"os.system", "os.popen", "runpy.run_path", "torch.load", "pandas.read_pickle"}


def harmful(source):
    """Yield what a file does that no file may do."""
    for node in ast.walk(ast.parse(source)):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module]
        yield from (name for name in modules if name.partition(".")[0] in MODULES)
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                if keyword.arg in ("allow_pickle", "shell") and value is not False:
                    yield keyword.arg
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                yield node.func.id
        if isinstance(node, ast.Attribute):
            name = f"{getattr(node.value, 'id', '')}.{node.attr}"
            yield from {name} & ATTRIBUTES


def test_no_file_runs_code_from_data():
    paths = [
        p for top in ("calib_jax", "configs", "experiments") for p in (ROOT / top).rglob("*.py")
    ]
    found = {(str(p), each) for p in paths for each in harmful(p.read_text(encoding="utf-8"))}
    assert found == set()
    seen = "import pickle\neval(x)\nnp.load(p, allow_pickle=True)\ntorch.load\nnetwork.eval()"
    assert [*harmful(seen)] == ["pickle", "eval", "allow_pickle", "torch.load"]


def test_an_unfinished_file_follows_no_link(tmp_path, monkeypatch):
    """Somebody who knew its name could put a link there, through which the file is written."""
    monkeypatch.setattr(os, "urandom", bytes)
    victim = tmp_path / "victim"
    victim.write_text("whole")
    (tmp_path / f".a.json.{16 * '0'}.partial").symlink_to(victim)
    with pytest.raises(FileExistsError), writing.replacing(tmp_path / "a.json") as path:
        path.write_text("written")
    assert victim.read_text() == "whole"
