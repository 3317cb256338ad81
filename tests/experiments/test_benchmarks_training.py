"""The benchmarks compare like with like, and their pages mark the targets that are missed."""

import json
import pathlib
import sys

import jax
import numpy as np
import pytest

from experiments import score  # noqa: F401  Its flags have names of the benchmarks' flags.
from experiments.benchmarks import losses, tables, timing, training
from experiments.benchmarks.training_work import Epochs, Peer, Work
from tests.experiments import processes

ORIGIN = dict.fromkeys(
    ("processor", "cores", "system", "device", "python", "commit", "date", "command"), "here"
) | {"versions": {"jax": "1.2"}}


@pytest.mark.bitwise
def test_runs_apart_and_together_train_the_same():
    work = Work("mlp", batch_size=4, steps=3)
    apart, together = Epochs(work, [(0,), (1,)]), Epochs(work, [(0, 1)])
    for epochs in (apart, together):
        epochs()
    alone = [apart.arrangement.fetch(states)[0] for states in apart.states]
    beside = together.arrangement.fetch(together.states[0])
    assert [int(state.step) for state in beside] == [3, 3]
    jax.tree.map(np.testing.assert_array_equal, alone, beside)
    kernels = [state.params["head"]["kernel"] for state in beside]
    assert not np.array_equal(*kernels)


def row(name, ratio, bound="at_most", target=1.02):
    low, middle, high = ratio
    ratio = {"low": low, "median": middle, "high": high}
    return {"task": "a", "name": name, "ratio": ratio, "target": {bound: target}}


@pytest.mark.parametrize(
    ("ratio", "bound", "target", "verdict"),
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
def test_targets_are_marked(ratio, bound, target, verdict):
    assert tables.verdict(row("x", ratio, bound, target)) == verdict


def test_a_page_has_a_table_for_each_task_and_counts_what_is_missed():
    rows = [row("fine", (1, 1, 1)), row("slow", (1.03, 1.05, 1.2)), {"task": "b", "ms": 1234.5}]
    sections = {
        "a": tables.Section("First", tables.SPEED, "A note."),
        "b": tables.Section("Second", {"ms": tables.number("ms"), "none": tables.text("none")}),
    }
    text = tables.page(tables.Report("Title", rows, sections, setting={"load": 1 / 3}), ORIGIN)
    assert "- versions: python here, jax 1.2\n" in text
    assert "- load: 0.333\n" in text
    assert "Missed: 1 of 2." in text
    assert "| slow | 1.05 [1.03, 1.2] | at most 1.02: **missed** |" in text
    assert text.endswith("## Second\n\n| ms |\n|---|\n| 1,230 |\n")


def test_a_call_that_takes_too_long_is_timed_once():
    clock = iter(np.cumsum([0, 1] * 100)).__next__  # Every call takes a second.
    calls = {"a": lambda: None, "b": lambda: None}
    result = timing.interleaved(calls, rounds=3, clock=clock)
    assert {name: seconds.tolist() for name, seconds in result.items()} == {
        "a": [1] * 3,
        "b": [1] * 3,
    }
    slow = timing.interleaved(calls, rounds=3, patience=0.5, clock=clock)
    assert {name: seconds.tolist() for name, seconds in slow.items()} == {"a": [1], "b": [1]}
    rows = timing.compared({"base": np.array([2.0, 4.0]), "other": np.array([1.0])}, "base")
    assert rows[1]["ratio"] == {"median": 0.375, "low": 0.3125, "high": 0.4375}
    assert (rows[1]["seconds"], rows[1]["rounds"]) == (1, 1)
    faster = timing.compared(
        {"base": np.array([2.0]), "other": np.array([1.0])}, "base", speed=True
    )
    assert faster[1]["ratio"]["median"] == 2


def test_every_loss_has_a_row_and_a_target():
    from calib_jax import losses as ours

    result = losses.variants()
    assert {variant.objective for variant in result.values()} == set(ours.catalogue())
    for variant in result.values():
        ours.objective(variant.objective, **variant.options)
    assert result["flsd53 weighting=loss"].at_most == result["bsce_gra beta=2.0"].at_most == 1.3
    assert result["bsce_gra beta=1.5"].at_most == result["mmce"].at_most == 2.0


def test_the_committed_page_is_that_of_the_committed_numbers():
    results = processes.ROOT / "experiments" / "results"
    result = json.loads((results / "benchmarks_training_cpu.json").read_text())
    report = tables.Report(
        "Training: what it costs", result["results"], training.SECTIONS, setting=result["setting"]
    )
    assert tables.page(report, result["provenance"]) == (
        results / "benchmarks_training.md"
    ).read_text(encoding="utf-8")


def test_a_python_without_torch_is_reported(monkeypatch, tmp_path, capfd):
    (tmp_path / "torch.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="PyTorch ended with code 1; see above"):
        Peer(sys.executable, {})
    assert "ImportError: none here" in capfd.readouterr().err


@pytest.mark.slow
def test_the_training_benchmark_runs(tmp_path):
    out = tmp_path / "found.json"
    small = ["--model=lenet5", "--batch_size=8", "--steps=3", "--rounds=3", "--seeds=2"]
    parts = {"epoch", "objective", "fit", "seeds", "devices", "gpu"}
    processes.finish(
        "benchmarks.training",
        f"--parts={','.join(parts)}",
        f"--torch_python={sys.executable}",  # not started: the networks of peers are larger
        *small,
        f"--out={out}",
    )
    written = json.loads(out.read_text())
    assert written["setting"]["rounds"] == 3
    assert written["setting"]["torch_python"] == pathlib.Path(sys.executable).name
    rows = written["results"]
    assert {row["task"] for row in rows} == parts
    assert all(row["seconds"] > 0 for row in rows if row["task"] != "devices")
    exchanged = [row for row in rows if row["task"] == "devices"]
    assert all(0 <= row["bytes"] - row["gradient_bytes"] < 10_000 for row in exchanged)
    output = processes.finish("benchmarks.training", "--parts=speed", code=2)
    assert "error: no value of --parts is called 'speed'; did you mean 'seeds'?" in output


SMALL = {
    "losses": ["--shapes=32x5", "--dtypes=float32", "--rounds=3", "--only=focal,mmce"],
    "metrics": ["--shapes=200x5", "--rounds=3", "--resamples=20", "--peers"],
    "calibrators": ["--shapes=300x4", "--rounds=3", "--parts=temperature,grid"],
    "coverage": ["--examples=50", "--classes=2", "--sets=3", "--draws=39"],
    "stream": ["--images=140", "--rounds=1", "--batches=6", "--threads=1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_benchmarks_run(name, tmp_path):
    out, goal = tmp_path / "found.json", tmp_path / "page.md"
    given = *SMALL[name], f"--out={out}", f"--page={goal}"
    output = processes.finish(f"benchmarks.{name}", *given)
    result = json.loads(out.read_text())
    assert result["results"]
    assert f"experiments.benchmarks.{name}" in result["provenance"]["command"]
    assert {"versions", "device", "processor", "commit"} <= set(result["provenance"])
    assert result["setting"]
    assert goal.read_text() in output
