"""The first command's table: computed again from its predictions, and published from a sweep."""

import json

import numpy as np
import pytest
import scipy.special

from experiments.documentation import first_table
from experiments.reports import summary
from tests.experiments.processes import ROOT

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
    """`python -m experiments.documentation.first_table` writes them."""
    text = (ROOT / first_table.PAGE).read_text(encoding="utf-8")
    assert first_table.with_rows(text, saved) == text
