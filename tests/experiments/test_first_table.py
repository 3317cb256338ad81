"""The first command's table: computed again from its predictions, and published from a sweep."""

import json

import numpy as np
import pytest
import scipy.special

from experiments.reports import first_table, summary
from tests.experiments.processes import ROOT, refused

NUMBERS = ("value", "sd", "low", "high", "difference", "difference_low", "difference_high")


@pytest.fixture(scope="module")
def saved():
    """The committed numbers."""
    return json.loads((ROOT / first_table.NUMBERS).read_text())


@pytest.fixture(scope="module")
def published():
    """The committed predictions, and their provenance."""
    return first_table.runs(ROOT / first_table.PREDICTIONS)


def by_column(saved):
    return {(cell["loss"], cell["phase"], cell["metric"]): cell for cell in saved["cells"]}


def test_the_predictions_are_those_of_the_numbers(saved, published):
    """Error and NLL by hand."""
    runs, made = published
    assert made == saved["provenance"]
    assert [f"{one.loss} seed {one.seed}" for one in runs] == list(saved["checkpoints"])
    cells = by_column(saved)
    for loss in {one.loss for one in runs}:
        tests = [(one.test[0].astype(float), one.test[1]) for one in runs if one.loss == loss]
        errors = [np.mean(logits.argmax(axis=-1) != labels) for logits, labels in tests]
        nlls = [
            np.mean(-scipy.special.log_softmax(logits, axis=-1)[np.arange(len(labels)), labels])
            for logits, labels in tests
        ]
        for name, values in (("error", errors), ("nll", nlls)):
            cell = cells[loss, summary.BEFORE, name]
            np.testing.assert_allclose(cell["value"], np.mean(values), rtol=1e-5)
            np.testing.assert_allclose(cell["sd"], np.std(values, ddof=1), rtol=1e-4)


@pytest.mark.slow
def test_the_numbers_are_those_of_today_s_statistics(saved, published):
    """Every value, interval, difference and p-value, as the sweep computed them."""
    options = {"baseline": saved["baseline"], "num_bins": saved["num_bins"]}
    again = summary.summarize(published[0], **options)
    known = by_column(saved)
    assert len(again.cells) == len(known)
    for cell in again.cells:
        expected = known[cell.loss, cell.phase, cell.metric]
        for name in (*NUMBERS, "p", "p_holm"):
            actual, before = getattr(cell, name), expected[name]
            what = f"{cell.loss} {cell.phase} {cell.metric} {name}: {before}, now {actual}"
            assert (actual is None) == (before is None), what
            if before is not None:  # a hundredth of the last digit that a table shows
                assert np.isclose(actual, before, rtol=1e-4, atol=1e-5, equal_nan=True), what
    for loss, temperatures in saved["temperatures"].items():
        np.testing.assert_allclose(again.temperatures[summary.AFTER][loss], temperatures, rtol=1e-4)


def test_the_committed_rows_are_those_of_the_numbers(saved):
    """`python -m experiments.reports.first_table` writes them."""
    text = (ROOT / first_table.PAGE).read_text(encoding="utf-8")
    assert first_table.with_rows(text, saved) == text


@pytest.fixture
def checkout(tmp_path, saved, published):
    """Copies of both pages, and the folder of a sweep of two losses and two seeds."""
    root, folder = tmp_path / "checkout", tmp_path / "sweep"
    for page in (first_table.README, first_table.PAGE):
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        (root / page).write_text((ROOT / page).read_text(encoding="utf-8"), encoding="utf-8")
    (root / first_table.NUMBERS).parent.mkdir(parents=True)
    names = ["focal seed 1", "focal seed 2", "brier seed 1", "brier seed 2"]
    for one in published[0]:
        if f"{one.loss} seed {one.seed}" in names:
            path = folder / "runs" / one.loss / str(one.seed)
            path.mkdir(parents=True)
            for part in first_table.PARTS:
                logits, labels = getattr(one, part)
                np.savez(path / f"predictions_{part}.npz", logits=logits + 1, labels=labels)
    cells = [cell | {"value": 1.25, "n": 2} for cell in saved["cells"] if cell["loss"] == "focal"]
    cells += [cell | {"loss": "brier"} for cell in cells]
    made = saved["provenance"] | {"processor": "Other", "cores": 7, "commit": "0123abc"}
    record = {"cells": cells, "checkpoints": {name: {} for name in names}, "provenance": made}
    record |= {"temperatures": {"focal": [2.0, 4.0], "brier": [1.0, 1.0]}}
    (folder / "sweep.json").write_text(json.dumps(record))
    return root, folder


def test_a_sweep_is_published(checkout, published):
    root, folder = checkout
    written = first_table.publish(folder, root)
    written.append(first_table.README)  # only read
    assert {path for path in root.rglob("*") if path.is_file()} == {root / p for p in written}
    assert (root / first_table.NUMBERS).read_text() == (folder / "sweep.json").read_text()
    runs, made = first_table.runs(root / first_table.PREDICTIONS)
    assert made["commit"] == "0123abc"
    before = {(one.loss, one.seed): one for one in published[0]}
    assert [(one.loss, one.seed) for one in runs] == [
        *(("focal", 1), ("focal", 2)),
        *(("brier", 1), ("brier", 2)),
    ]
    for one in runs:
        for part in first_table.PARTS:
            (logits, labels), known = getattr(one, part), getattr(before[one.loss, one.seed], part)
            np.testing.assert_array_equal(logits, known[0] + 1)
            np.testing.assert_array_equal(labels, known[1])
    old = (ROOT / first_table.PAGE).read_text(encoding="utf-8").splitlines()
    new = (root / first_table.PAGE).read_text(encoding="utf-8").splitlines()
    gone, come = set(old) - set(new), set(new) - set(old)
    rows = [line for line in come if line.startswith("|")]
    assert len(rows) == 2
    assert len(old) - len(new) == 8
    assert all("| 1.250 " in row for row in rows)
    rest = {line for line in gone | come if not line.startswith("|")}
    assert all(line.startswith("The numbers are those of") for line in rest)
    assert any("Other with 7 cores at commit 0123abc." in line for line in rest)
    assert "| focal | 1.250 ±" in (root / first_table.PAGE).read_text(encoding="utf-8")
    assert " | 3.00 | " in (root / first_table.PAGE).read_text(encoding="utf-8")


def test_a_sweep_of_another_command_is_refused(checkout):
    root, folder = checkout
    path = folder / "sweep.json"
    path.write_text(path.read_text().replace("--seeds=3", "--seeds=2"))
    with pytest.raises(ValueError, match=r"sweep\.json .*its command is not the README's"):
        first_table.publish(folder, root)
    assert not (root / first_table.NUMBERS).exists()


def test_a_page_without_the_table_is_named(checkout):
    root, folder = checkout
    path = root / first_table.PAGE
    path.write_text(path.read_text(encoding="utf-8").replace("| loss |", "| Loss |"))
    with pytest.raises(ValueError, match=r"first_table\.md has 0 tables with the head \| loss \|"):
        first_table.publish(folder, root)
    assert not (root / first_table.NUMBERS).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --workdir=FOLDER"),
        (["--workdir=/nowhere"], "there is no file /nowhere/sweep.json"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message):
    assert refused("reports.first_table", *arguments).startswith(f"error: {message}")
