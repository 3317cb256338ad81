"""The training benchmark compares like with like, and its page says what missed its target."""

import json
import sys

import jax
import numpy as np
import pytest

from experiments.benchmarks import torch_worker, training_page, training_traffic
from experiments.benchmarks.training_work import Epochs, Work
from tests.experiments import processes


def test_runs_apart_and_together_train_the_same():
    work = Work("mlp", batch_size=4, steps=3)
    apart, together = Epochs(work, groups=[(0,), (1,)]), Epochs(work, groups=[(0, 1)])
    for epochs in (apart, together):
        epochs()
    alone = [apart.arrangement.fetch(states)[0] for states in apart.states]
    beside = together.arrangement.fetch(together.states[0])
    assert [int(state.step) for state in beside] == [3, 3]
    jax.tree.map(np.testing.assert_array_equal, alone, beside)
    kernels = [state.params["head"]["kernel"] for state in beside]
    assert not np.array_equal(*kernels)


def row(name, ratio, bound, target, task="objective"):
    low, middle, high = ratio
    return {
        **{"task": task, "name": name, "model": "mlp", "batch_size": 8, "steps": 2, "rounds": 7},
        **{"seconds": 0.5, "step_seconds": 0.25, "images_per_second": 32.0, "against": "that"},
        **{"loss_seconds": 5e-6, "compile_seconds": 1.0, "first_call_seconds": 0.1, "memory": 9},
        "ratio": {"low": low, "median": middle, "high": high},
        "target": {bound: target},
    }


@pytest.mark.parametrize(
    ("ratio", "bound", "target", "said"),
    [
        ((0.9, 1.0, 1.01), "at_most", 1.02, "kept"),
        ((1.03, 1.05, 1.2), "at_most", 1.02, "**missed**"),
        ((1.0, 1.03, 1.2), "at_most", 1.02, "open"),
        ((1.0, 1.01, 1.2), "at_most", 1.02, "open"),
        ((0.6, 0.7, 0.8), "at_least", 0.5, "kept"),
        ((0.3, 0.4, 0.45), "at_least", 0.5, "**missed**"),
        ((1.0, 1.0, 1.0), "at_least", 1.0, "kept"),
    ],
)
def test_targets_are_marked(ratio, bound, target, said):
    assert training_page.verdict(row("x", ratio, bound, target)) == said


def test_the_page_marks_and_explains_what_is_missed():
    rows = [
        row("cross_entropy", (1, 1, 1), "at_most", 1.02),
        {**row("recall", (1.03, 1.05, 1.2), "at_most", 1.02), "loss_seconds": 2505e-6},
    ]
    provenance = dict.fromkeys(
        ("processor", "cores", "system", "device", "python", "commit", "date", "command"), "here"
    )
    setting = {"torch": None, "load": {"objective": 0.2}, "part_seconds": {"objective": 60.0}}
    found = {
        "provenance": provenance | {"versions": {"jax": "1.2"}},
        "setting": setting | {"backend": "cpu"},
        "results": rows,
    }
    text = training_page.page(found)
    assert "Nothing on this page was measured on a GPU" in text
    assert "PyTorch: not measured" in text
    assert "was not idle" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("| recall")]
    assert "1.050 [1.030, 1.200]" in line
    assert "at most 1.02: **missed**" in line
    (why,) = [line for line in text.splitlines() if line.startswith("- recall")]
    assert "+2,500 µs beside cross-entropy, +1.00% of a step" in why
    assert "- cross_entropy" not in text
    setting["load"]["objective"] = 5.0
    assert "was not idle" in training_page.page(found | {"setting": setting | {"backend": "gpu"}})


def test_the_committed_page_is_that_of_the_committed_numbers():
    results = processes.ROOT / "experiments" / "results"
    found = json.loads((results / "benchmarks_training_cpu.json").read_text())
    assert training_page.page(found) == (results / "benchmarks_training.md").read_text()


def test_what_is_exchanged_is_told_apart():
    loop = "jit(_fun)/shard_map/while/body/"
    assert training_traffic.purpose(loop + "psum") == "gradient"
    assert training_traffic.purpose(loop + "jvp(ResNet)/stage1/norm1/psum") == "batch norm"
    assert training_traffic.purpose(loop + "transpose(jvp())/reduce_scatter") == "loss"


def test_a_python_without_torch_is_said(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"PyTorch in .*python.*: ImportError: none here"):
        torch_worker.Peer(sys.executable, threads=1)


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path):
    out, page = tmp_path / "found.json", tmp_path / "page.md"
    small = ["--model=mlp", "--batch_size=8", "--steps=3", "--rounds=3", "--seeds=2"]
    code, said = processes.run("benchmarks.training", *small, f"--out={out}", f"--page={page}")
    assert code == 0, said
    found = json.loads(out.read_text())
    tasks = {row["task"] for row in found["results"]}
    assert tasks == {"epoch", "objective", "fit", "seeds", "devices"}
    assert all(row["seconds"] > 0 for row in found["results"] if row["task"] != "devices")
    exchanged = [row for row in found["results"] if row["task"] == "devices"]
    assert all(0 <= row["bytes"] - row["gradient_bytes"] < 10_000 for row in exchanged)
    assert page.read_text() == training_page.page(found)
    code, said = processes.run("benchmarks.training", "--parts=speed")
    assert code
    assert "--parts=speed is none of epoch, objective, fit, seeds, devices, gpu." in said
