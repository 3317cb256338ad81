"""Telling other inputs from the test set: values of slow definitions, before and after."""

import csv
import json
import re

import numpy as np
import pytest
import scipy.special
import scipy.stats

from calib_jax import calibrators, report

from .test_html import read


def logits_of(num_rows, scale, seed):
    return (scale * np.random.default_rng(seed).standard_normal((num_rows, 4))).astype(np.float32)


INSIDE, NEAR, FAR = logits_of(60, 4.0, 0), logits_of(50, 2.5, 1), logits_of(50, 0.8, 2)
HELD_OUT = logits_of(80, 4.0, 3), (logits_of(80, 4.0, 3) + logits_of(80, 4.0, 4)).argmax(-1)


@pytest.fixture(scope="module")
def actual():
    return report.out_of_distribution(
        INSIDE,
        {"near": NEAR, "far": FAR},
        calibrate="temperature",
        fit_on=HELD_OUT,
        scores=("entropy", "energy"),
        num_resamples=40,
    )


def score_of(logits, score):
    z = np.asarray(logits, np.float64)
    if score == "energy":
        return -scipy.special.logsumexp(z, axis=1)
    return scipy.stats.entropy(scipy.special.softmax(z, axis=1), axis=1)


def pairs_in_order(inside, outside):
    """Count pairs, ties as half: the AUROC without a curve."""
    return np.mean((outside[:, None] > inside) + 0.5 * (outside[:, None] == inside))


@pytest.mark.parametrize("score", ["entropy", "energy"])
def test_values_before_and_after(actual, score):
    state = calibrators.temperature.fit(*HELD_OUT)
    for name, logits in (("near", NEAR), ("far", FAR)):
        for predictions in ("as given", "temperature"):
            sets = [INSIDE, logits]
            if predictions == "temperature":
                sets = [calibrators.temperature.apply(state, one) for one in sets]
            expected = pairs_in_order(*(score_of(one, score) for one in sets))
            value = actual.value(name, score, "ood_auroc", predictions)
            assert value == pytest.approx(expected, abs=2e-3)  # float32 may swap near ties
    assert actual.value("far", score, "ood_auroc") > actual.value("near", score, "ood_auroc")


def test_an_interval_holds_its_value_and_the_curve_ends_at_one(actual):
    for row in actual.rows:
        if row.metric == "ood_auroc":
            assert row.low < row.value < row.high
    for curve in actual.curves.values():
        assert curve.false_positive_rate[-1] == curve.true_positive_rate[-1] == 1


def test_what_is_written(actual, tmp_path):
    names = actual.save(tmp_path)
    texts = [f"ood.{ending}" for ending in ("csv", "html", "json", "md")]
    assert sorted(names) == [*texts, "roc_far.png", "roc_near.png"]
    with (tmp_path / "ood.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2 * 3
    record = json.loads((tmp_path / "ood.json").read_text())
    assert record["settings"]["outside"] == {"near": 50, "far": 50}
    assert record["calibrator"]["name"] == "temperature"
    page = (tmp_path / "ood.md").read_text()
    assert "| near | entropy | temperature |" in page
    assert "![roc_far](roc_far.png)" in page
    assert "fitted on 80 other examples" in str(actual)
    html = read((tmp_path / "ood.html").read_text())
    assert html.count["svg"] == 2
    numbers = set(re.findall(r"[-+]?\d[\d,]*\.\d+", page))
    assert len(numbers) > 30
    assert [number for number in numbers if number not in "".join(html.text)] == []


def test_refusals():
    with pytest.raises(ValueError, match="outside is empty"):
        report.out_of_distribution(INSIDE, {})
    with pytest.raises(ValueError, match="give fit_on"):
        report.out_of_distribution(INSIDE, {"near": NEAR}, calibrate="temperature")
    with pytest.raises(ValueError, match="score must be one of"):
        report.out_of_distribution(INSIDE, {"near": NEAR}, scores=["doubt"])
    with pytest.raises(ValueError, match="same classes"):
        report.out_of_distribution(INSIDE, {"near": NEAR[:, :3]}, num_resamples=2)


def test_whole_clusters_are_drawn():
    """Copies of an example in its cluster say no more than the example."""
    few = {"scores": ("entropy",), "num_resamples": 40}
    ids = np.repeat(np.arange(60), 9), {"near": np.repeat(np.arange(50), 9)}
    copies = report.out_of_distribution(
        np.repeat(INSIDE, 9, axis=0), {"near": np.repeat(NEAR, 9, axis=0)}, clusters=ids, **few
    )
    alone = report.out_of_distribution(INSIDE, {"near": NEAR}, **few)
    for copied, row in zip(copies.rows, alone.rows, strict=True):
        assert copied.value == pytest.approx(row.value, abs=1e-5)
        if row.metric == "ood_auroc":
            assert copied.high - copied.low == pytest.approx(row.high - row.low, rel=0.5)
    assert "40 resamples of each set, whole clusters at a time. An AUROC" in str(copies)
