"""Telling other inputs from the test set: values of slow definitions, before and after."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from calib_jax import calibrators, inference, metrics, report
from tests.selection import some


def logits_of(num_rows, scale, seed):
    return (scale * np.random.default_rng(seed).standard_normal((num_rows, 3))).astype(np.float32)


# All tests, and the docstring, have sets of these sizes, which share compiled programs.
INSIDE, NEAR, FAR = logits_of(200, 4.0, 0), logits_of(50, 2.5, 1), logits_of(50, 0.8, 2)
HELD_OUT = logits_of(200, 4.0, 3), (logits_of(200, 4.0, 3) + logits_of(200, 4.0, 4)).argmax(-1)
FEW = {"num_resamples": 20}


@pytest.fixture(scope="module")
def actual():
    fit = {"calibrate": "temperature", "fit_on": HELD_OUT, "scores": ("entropy", "energy")}
    return report.out_of_distribution(INSIDE, {"near": NEAR, "far": FAR}, **fit, **FEW)


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
                sets = [one / np.float32(state.temperature) for one in sets]
            expected = pairs_in_order(*(score_of(one, score) for one in sets))
            value = actual.value(name, score, "ood_auroc", predictions)
            assert value == pytest.approx(expected, abs=2e-3)  # float32 may swap near ties
    assert actual.value("far", score, "ood_auroc") > actual.value("near", score, "ood_auroc")


def test_each_set_keeps_its_size_in_every_resample(actual):
    names = dict.fromkeys(row.metric for row in actual.rows)
    several = {name: metrics.named(name).with_options(score="entropy") for name in names}
    how = {"key": jax.random.key(0), "method": "percentile", "by_class": True, **FEW}
    expected = inference.estimates(several, *metrics.in_and_out(INSIDE, NEAR), **how)["ood_auroc"]
    row = actual.rows[0]
    assert (row.outside, row.score, row.metric) == ("near", "entropy", "ood_auroc")
    assert (row.value, row.low, row.high) == pytest.approx(tuple(map(float, expected[:3])))


def test_what_is_written(actual, tmp_path):
    names = actual.save(tmp_path)
    assert sorted(names) == sorted(file.name for file in tmp_path.iterdir())
    assert {"ood.csv", "ood.html", "ood.md", "roc_far.png", "roc_near.png"} < {*names}
    assert len((tmp_path / "ood.csv").read_text().splitlines()) == 1 + 2 * 2 * 2 * 3
    record = json.loads((tmp_path / "ood.json").read_text())
    assert (record["calibrator"]["name"], record["files"]) == ("temperature", names)
    assert record["settings"]["outside"] == {"near": 50, "far": 50}
    page = (tmp_path / "ood.md").read_text()
    assert "| near | entropy | temperature |" in page
    assert "![roc_far](roc_far.png)" in page
    assert "fitted on 200 other examples" in str(actual)
    assert actual.save(tmp_path) == names
    (tmp_path / "ood.json").unlink()
    with pytest.raises(ValueError, match=r"ood\.csv is a file that no report wrote"):
        actual.save(tmp_path)


def test_whole_clusters_are_drawn():
    """Copies of an example in its cluster say no more than the example."""
    few = {"scores": ("entropy",), **FEW}
    ids = np.repeat(np.arange(200), 4), {"near": np.repeat(np.arange(50), 4)}
    copies = report.out_of_distribution(
        np.repeat(INSIDE, 4, axis=0), {"near": np.repeat(NEAR, 4, axis=0)}, clusters=ids, **few
    )
    alone = report.out_of_distribution(INSIDE, {"near": NEAR}, **few)
    for copied, row in zip(copies.rows, alone.rows, strict=True):
        assert copied.value == pytest.approx(row.value, abs=1e-5)
        if row.metric == "ood_auroc":
            assert copied.high - copied.low == pytest.approx(row.high - row.low, rel=0.5)
    assert "20 resamples of each set, whole clusters at a time. An AUROC" in str(copies)


def offset_sets(offset=3.0):
    """Draw logits whose rows have offsets, inside, outside and held out, with labels."""
    random = np.random.default_rng(7)
    sets = []
    for num_rows, scale in ((200, 3.0), (50, 1.5), (200, 3.0)):
        labels = random.integers(3, size=num_rows)
        logits = scale * (random.standard_normal((num_rows, 3)) + 2 * np.eye(3)[labels])
        sets.append((logits + offset * random.standard_normal((num_rows, 1))).astype(np.float32))
    return sets[0], sets[1], (sets[2], labels)


def log_p(logits):
    return scipy.special.log_softmax(logits, axis=-1).astype(np.float32)


def energies(detections):
    return {row.predictions for row in detections.rows if row.score == "energy"}


KEEP_OFFSETS = {"temperature", "vector", "matrix"}
REMOVE_OFFSETS = sorted({*calibrators.catalogue()} - KEEP_OFFSETS)


@pytest.mark.parametrize("name", some(REMOVE_OFFSETS, {"histogram"}))
def test_no_energy_after_a_calibrator_that_removes_offsets(name, tmp_path):
    inside, outside, held_out = offset_sets()
    detections = report.out_of_distribution(
        inside, {"o": outside}, calibrate=name, fit_on=held_out, scores=["energy"], **FEW
    )
    assert energies(detections) == {"as given"}
    (note,) = detections.notes
    assert note.startswith(f"No energy of the predictions {name}: ")
    assert note in str(detections)
    detections.save(tmp_path)
    assert note in json.loads((tmp_path / "ood.json").read_text())["notes"]


@pytest.mark.parametrize("dtype", some([np.float32, np.float16, jnp.bfloat16], 1))
def test_log_probabilities_have_no_energy(dtype):
    inside, outside, (logits, labels) = offset_sets()
    inside, outside, logits = (log_p(z).astype(dtype) for z in (inside, outside, logits))
    detections = report.out_of_distribution(inside, {"o": outside}, **FEW)
    assert {row.score for row in detections.rows} == {"entropy", "max_confidence"}
    (note,) = detections.notes
    assert note in str(detections)
    assert note.startswith("No energy of the predictions as given: ")
    # Without offsets in the input, the output of a calibrator has none.
    fit = {"calibrate": "temperature", "fit_on": (logits, labels)}
    assert not energies(report.out_of_distribution(inside, {"o": outside}, **fit, **FEW))
    for scores in (["energy"], ["entropy", "energy"]):
        with pytest.raises(ValueError, match=r"no score energy of these rows: .* log-prob"):
            report.out_of_distribution(inside, {"o": outside}, scores=scores, **FEW)


def test_probabilities_equal_their_logarithms():
    inside, outside, (logits, labels) = offset_sets()
    fit = {"calibrate": "temperature", **FEW}
    p = [np.exp(log_p(z)) for z in (inside, outside, logits)]
    actual = report.out_of_distribution(
        p[0], {"o": p[1]}, fit_on=(p[2], labels), probabilities=True, **fit
    )
    expected = report.out_of_distribution(
        log_p(inside), {"o": log_p(outside)}, fit_on=(log_p(logits), labels), **fit
    )
    for one, other in zip(actual.rows, expected.rows, strict=True):
        assert one.value == pytest.approx(other.value, abs=2e-3)
    rounded = [np.round(each, 2) for each in p]
    sets = (rounded[0], {"o": rounded[1]}), {"fit_on": (rounded[2], labels), "probabilities": True}
    half, same = (
        report.out_of_distribution(*sets[0], **sets[1], floor=floor, **fit)
        for floor in (None, 0.005)
    )
    assert half.rows == same.rows
    assert "rounded to 0.01; 0 is read as 0.005" in half.notes[0]
    for sets, name in ((p[:2], "inside: all 200"), ((inside, p[1]), r"outside\['o'\]: all 50")):
        with pytest.raises(ValueError, match=f"^{name} rows "):
            report.out_of_distribution(sets[0], {"o": sets[1]}, **FEW)
    with pytest.raises(ValueError, match=r"inside, outside\['o'\] have \[3, 4\] classes"):
        report.out_of_distribution(np.zeros((9, 3)), {"o": np.zeros((9, 4))}, **FEW)


def test_no_calibrator_is_fitted_on_the_examples_that_are_scored():
    inside, outside, held_out = offset_sets()
    labels = held_out[1]
    order = np.random.default_rng(0).permutation(200)
    padded = np.concatenate([inside, outside[:1]]), np.append(labels, 0), np.arange(201) < 200
    fit = {"calibrate": "temperature", **FEW}
    for fit_on, name in (
        ((inside, labels), "inside"),
        ((inside.astype(np.float64), labels), "inside"),
        ((inside[order], labels[order]), "inside"),
        (padded, "inside"),
        ((outside, labels[:50]), r"outside\['o'\]"),
    ):
        with pytest.raises(ValueError, match=rf"are also among the .* of fit_on \({name}\)"):
            report.out_of_distribution(inside, {"o": outside}, fit_on=fit_on, **fit)
    weighted = (*held_out, np.arange(200) % 2)
    detections = report.out_of_distribution(inside, {"o": outside}, fit_on=weighted, **fit)
    assert "fitted on 100 other examples" in str(detections)
