"""The benchmark of coverage and size: its simulated data, its cells, its file and its page."""

import json
import math
import os
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics
from experiments.benchmarks import coverage, simulations, tables
from tests.experiments.processes import ROOT, environment
from tests.selection import first_case


def test_the_truth_is_the_recorded_number():
    """These were measured with another program; two classes also by an integral."""
    assert simulations.truth(2, 1.15, 2**16).values["ece"] == pytest.approx(0.0205, abs=3e-4)
    true = simulations.truth(2, 1.5, 2**16).values
    assert true["ece"] == pytest.approx(0.0568, abs=3e-4)
    calibrated = simulations.truth(2, 1.0, 2**16).values
    for name in ("ece", "adaptive_ece", "classwise_ece", "squared_error"):
        assert calibrated[name] < 1e-12

    # The difference of two logits is normal with variance 2 x 1.5^2.
    margin = np.linspace(0, 15, 30_001)
    density = np.exp(-(margin**2) / 9)
    density /= density.sum()
    right, confidence = 1 / (1 + np.exp(-margin)), 1 / (1 + np.exp(-1.5 * margin))
    nll = -(right * np.log(confidence) + (1 - right) * np.log1p(-confidence))
    brier = 2 * (right * (1 - confidence) ** 2 + (1 - right) * confidence**2)
    assert true["accuracy"] == pytest.approx(right @ density, abs=3e-3)
    assert true["nll"] == pytest.approx(nll @ density, abs=5e-3)
    assert true["brier"] == pytest.approx(brier @ density, abs=4e-3)
    bins = np.ceil(15 * confidence).astype(int)
    gap = np.bincount(bins, density * (confidence - right), 17)
    assert true["ece"] == pytest.approx(np.abs(gap).sum(), abs=4e-4)
    squared = np.square(gap) / np.maximum(np.bincount(bins, density, 17), 1e-12)
    assert true["squared_error"] == pytest.approx(squared.sum(), abs=1e-4)
    # The gap of the other class is the opposite, in the bin of 1 - c.
    other = np.bincount(
        np.ceil(15 * (1 - confidence)).astype(int), density * (confidence - right), 17
    )
    assert true["classwise_ece"] == pytest.approx(np.abs(gap - other).sum() / 2, abs=4e-4)
    # An error is answered at all coverages above the share of more confident examples.
    at_least = np.cumsum(density)
    assert true["augrc"] == pytest.approx((1 - right) * at_least @ density, abs=2e-3)


def top(logits):
    p = np.asarray(jax.nn.softmax(logits))
    return p.max(axis=1), p.argmax(axis=1)


@first_case
@pytest.mark.parametrize("dependent", [False, True])
def test_models_have_the_errors_that_they_are_drawn_with(dependent):
    """Mean confidence minus accuracy, of 20,000 rows."""
    rows, key = 20_000, jax.random.key(3)
    a, b, labels = map(np.asarray, simulations.sharper(key, rows, 2, dependent))
    for logits in (a, b):
        confidence, predicted = top(logits)
        assert np.mean(confidence) == pytest.approx(np.mean(predicted == labels), abs=0.03)
    assert np.mean(top(b)[0]) > np.mean(top(a)[0]) + 0.1
    a, b, labels = map(np.asarray, simulations.equal_errors(key, rows, 2, dependent))
    gaps = [np.mean(c - (predicted == labels)) for c, predicted in map(top, (a, b))]
    assert gaps[0] > 0.02
    assert gaps[0] == pytest.approx(gaps[1], abs=0.02)
    a, b, labels = simulations.less_calibrated(key, rows, 2, dependent, 1.5)
    np.testing.assert_allclose(b, 1.5 * np.asarray(a), rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 100])
def test_a_confident_model_has_one_bin_and_its_gap(classes):
    logits, labels = simulations.confident(jax.random.key(1), 50_000, classes, 0.03)
    confidence, predicted = top(logits)
    assert set(np.ceil(15 * confidence)) == {15}
    right = predicted == np.asarray(labels)
    assert np.mean(confidence) - np.mean(right) == pytest.approx(0.03, abs=0.004)


@pytest.mark.parametrize("case", coverage.RARE)
def test_a_constant_model_has_its_confidence_and_accuracy(case):
    confidence, accuracy = coverage.RARE[case]
    logits, labels = simulations.constant(jax.random.key(0), 20_000, 3, confidence, accuracy)
    np.testing.assert_allclose(jax.nn.softmax(logits).max(axis=1), confidence, rtol=1e-5)
    error = 1 - float(np.mean(labels == 0))
    spread = np.sqrt(accuracy * (1 - accuracy) / 20_000)
    assert abs(error - (1 - accuracy)) < 4 * spread


def test_examples_of_a_cluster_depend_on_each_other():
    logits, labels = simulations.one_model(jax.random.key(0), 20_000, 2, True, 1.0)
    confidence, predicted = top(logits)
    residual = (predicted == np.asarray(labels)) - confidence
    sums = np.bincount(simulations.clusters_of(20_000), residual)
    # Independent rows have the ratio 1; a latent correlation of .3 has one of about 3.
    assert np.var(sums) / (np.var(residual) * simulations.CLUSTER_SIZE) > 2


@pytest.mark.slow
def test_intervals_of_means_cover_and_those_of_the_error_do_not(monkeypatch):
    """Check 200 sets of a calibrated model, whose standard error is 2.1 %."""
    several = {name: coverage.BOOTSTRAPPED[name] for name in ("accuracy", "nll", "ece", "augrc")}
    monkeypatch.setattr(coverage, "BOOTSTRAPPED", several)
    methods = coverage.measured(coverage.Cell("bootstrap", 200, 2, "T = 1", 200), 100)["methods"]
    error = methods.pop("ece")
    assert error["coverage"] < 0.05
    assert error["value"] > 0.02
    for name, method in methods.items():
        assert 0.83 <= method["coverage"] <= 0.965, name
        assert method["value"] == pytest.approx(method["truth"], abs=0.01)


def test_a_summary_counts_ends_values_and_p_values():
    outcome = coverage.Outcome
    result = coverage._summary(
        [
            outcome(0.1, 0.0, 0.2, 0.01, 0.2),
            outcome(0.1, 0.1, 0.2, 0.05, 0.05),
            outcome(0.3, 0.1, 0.2, 0.5, 0.15),
            outcome(),
        ]
    )
    assert result["coverage"] == pytest.approx(2 / 3)
    assert result["width"] == pytest.approx(0.4 / 3)
    assert result["rejected"] == pytest.approx(2 / 3)
    assert result["contains_value"] == pytest.approx(2 / 3)
    assert (result["intervals"], result["p_values"]) == (3, 3)
    assert coverage._summary([outcome()])["coverage"] is None


@pytest.mark.slow
def test_every_part_measures_what_its_title_says():
    for part, question in coverage.QUESTIONS.items():
        rows = max(200, question.fewest)
        (first, *_) = coverage.cells_of(20, [part], [rows], [2])
        methods = coverage.measured(first._replace(sets=2), 39)["methods"]
        numbers = [
            m["coverage"] if m["rejected"] is None else m["rejected"] for m in methods.values()
        ]
        assert all(0 <= number <= 1 for number in numbers), part
    tested = set(inference.calibration_tests()) - set(metrics.catalogue())
    chosen = {
        name
        for part in ("tests", "all_pairs")
        for name in coverage.QUESTIONS[part].measure(jax.random.key(0), 200, 2, "T = 1", 39)
    }
    assert chosen == tested


def fake(cell, draws):
    """Return a row as `measured` does."""
    value = coverage.Outcome(0.1, 0.0, 0.2, 0.01, 0.5)
    return cell._asdict() | {"draws": draws, "methods": {"ece": coverage._summary([value] * 9)}}


def test_finished_cells_are_not_measured_again(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(
        coverage, "measured", lambda cell, draws: measured.append(cell) or fake(cell, draws)
    )
    goal = tmp_path / "cells.json"
    options = {"parts": ["bounds"], "examples": ["200"], "classes": ["2", "10"], "processes": 1}
    coverage.main(sets=9, cells=str(goal), **options)
    assert len(measured) == 6
    coverage.main(sets=5, cells=str(goal), **options)
    assert len(measured) == 6
    coverage.main(sets=10, cells=str(goal), **{**options, "classes": ["2"]})
    assert len(measured) == 9
    rows = json.loads(goal.read_text())["cells"]
    assert sorted(row["sets"] for row in rows) == [9, 9, 9, 10, 10, 10]
    assert os.listdir(tmp_path) == ["cells.json"]


def test_an_interrupted_run_keeps_its_cells(tmp_path, monkeypatch):
    def measured(cell, draws):
        if cell.case == "T = 1.5":
            raise KeyboardInterrupt
        return fake(cell, draws)

    monkeypatch.setattr(coverage, "measured", measured)
    goal = tmp_path / "cells.json"
    options = {"parts": ["bounds"], "examples": ["200"], "classes": ["2"], "processes": 1}
    with pytest.raises(KeyboardInterrupt):
        coverage.main(sets=9, cells=str(goal), **options)
    assert len(json.loads(goal.read_text())["cells"]) == 2


def test_the_page_shows_what_fails_in_bold(monkeypatch):
    monkeypatch.setattr(coverage, "measured", fake)
    report = coverage.main(parts=["bounds"], examples=["200"], classes=["2"], processes=1)
    (covered, rejected) = (
        tables.table(report.sections[row["task"]].columns, [row]) for row in report.results
    )
    assert "| ece | 200 | 2 | **0.0%** (0.200) | **0.0%** (0.200) |" in covered
    # Only rejections of true hypotheses are failures.
    assert "| ece | 200 | 2 | **100.0%** | 100.0% | 100.0% |" in rejected


def test_large_sets_are_fewer():
    cells = coverage.cells_of(2000, ["classwise", "pairs"], [200, 10_000], [2, 100])
    sets = {(c.part, c.examples, c.classes): c.sets for c in cells}
    assert sets["classwise", 10_000, 100] == sets["pairs", 10_000, 100] == 200
    assert sets["classwise", 10_000, 2] == sets["pairs", 200, 100] == 2000
    assert math.isclose(coverage._three_errors(0.9, 100), 0.09)


def test_bad_flags_are_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"results": []}')
    with pytest.raises(coverage.cli.Refused, match="has no finished cells"):
        coverage.main(cells=str(tmp_path / "other.json"))
    for options in ({"parts": ["speed"]}, {"examples": ["many"]}, {"classes": ["1"]}):
        with pytest.raises(
            coverage.cli.Refused, match=rf"--{next(iter(options))} (must be|is called 'speed')"
        ):
            coverage.main(**options)


WAITING = """
import os, time
from experiments.benchmarks import coverage
if __name__ == "__main__":
    pool = coverage.pool_of(2)
    tasks = [pool.submit(time.sleep, 600) for _ in range(4)]
    while len(pool._processes) < 2:
        time.sleep(0.01)
    print(*pool._processes, flush=True)
    print(pool.submit(os.getpid).result())
"""


def is_running(process):
    """Check whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_the_workers_of_a_killed_parent_end(tmp_path):
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    settings = environment() | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings) as parent:
        workers = parent.stdout.readline().split()
        assert len(workers) == 2
        time.sleep(0.1)
        assert all(map(is_running, workers))
        parent.kill()
    ends = time.monotonic() + 120  # a worker imports the libraries before it watches
    while any(map(is_running, workers)) and time.monotonic() < ends:
        time.sleep(0.1)
    left = [worker for worker in workers if is_running(worker)]
    for worker in left:
        os.kill(int(worker), 9)
    assert not left
