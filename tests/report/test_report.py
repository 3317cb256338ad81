"""The report: its numbers are those of the rooms it joins, and its tables say what it did."""

import csv
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, metrics, report
from calib_jax.report import tables

FEW = {"metrics": ["accuracy", "ece", "nll"], "num_resamples": 50}


def sample(num_rows=200, num_classes=3, seed=0):
    """Return overconfident logits and labels."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.standard_normal((num_rows, num_classes))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    return (2.5 * logits).astype(np.float32), labels


@pytest.fixture(scope="module")
def full():
    """Score with everything there is, once."""
    logits, labels = sample()
    return report.score(
        logits,
        labels,
        groups=np.where(np.arange(200) < 60, "few", "many"),
        calibrate="temperature",
        fit_on=sample(seed=1),
        compare=logits[:, ::-1],
        per_class=True,
        **FEW,
    )


def test_values_are_those_of_the_metrics(full):
    logits, labels = sample()
    params = calibrators.temperature.fit(*sample(seed=1))
    models = {
        "as given": logits,
        "temperature": calibrators.temperature.apply(params, logits),
        "other": logits[:, ::-1],
    }
    for model, z in models.items():
        for name in FEW["metrics"]:
            expected = metrics.named(name)(z, labels)
            assert full.value(name, model) == pytest.approx(float(expected), rel=1e-5)
    key = jax.random.key(0)
    found = metrics.estimates(metrics.nll, logits, labels, key=key, num_resamples=50)
    (row,) = (r for r in full.rows if r.metric == "nll" and r.predictions == "as given")
    np.testing.assert_allclose([row.low, row.high], [found.low, found.high], rtol=1e-5)
    paired = metrics.paired_bootstrap(
        metrics.nll, logits, models["temperature"], labels, key=key, num_resamples=50
    )
    (change,) = (c for c in full.changes if c.metric == "nll" and c.after == "temperature")
    numbers = [change.value, change.low, change.high, change.p_value]
    np.testing.assert_allclose(numbers, [float(x) for x in paired[:4]], rtol=1e-4, atol=1e-6)
    assert full.value("nll", "temperature") < full.value("nll")


def test_parts_are_scored_on_their_own_examples(full):
    logits, labels = sample()
    few = {(p.metric, p.predictions): p for p in full.groups if p.part == "few"}
    assert few["nll", "as given"].examples == 60
    expected = float(metrics.nll(logits[:60], labels[:60]))
    assert few["nll", "as given"].value == pytest.approx(expected, rel=1e-5)
    recalls = metrics.per_class_recall(logits, labels)
    for k in range(3):
        (part,) = (
            p
            for p in full.classes
            if (p.part, p.metric, p.predictions) == (str(k), "per_class_recall", "as given")
        )
        assert part.examples == np.sum(labels == k)
        assert part.value == pytest.approx(float(recalls[k]))


def test_tables_say_the_numbers_and_the_conventions(full):
    text = str(full)
    assert "200 examples in 3 classes; 90% percentile intervals of 50 resamples" in text
    fitted = calibrators.temperature.fit(*sample(seed=1)).temperature
    assert f"temperature fitted on 200 other examples, T = {float(fitted):.4g}." in text
    assert "15 bins of equal width, (lo, hi]" in text
    assert f"{full.value('ece'):.4f} [" in text
    assert "biased upwards" in text
    assert full._repr_markdown_().count("\n|---") == 3  # metrics, classes, groups
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(full))))
    assert len(rows) == len(full.rows) + len(full.changes) + len(full.classes) + len(full.groups)
    (nll,) = (
        r
        for r in rows
        if (r["table"], r["metric"], r["predictions"]) == ("metrics", "nll", "as given")
    )
    assert float(nll["value"]) == full.value("nll")
    everything = json.loads(tables.as_json(full))
    assert everything["settings"]["examples"] == 200
    assert everything["calibrator"]["params"]["state"]["name"] == "converged"
    assert len(everything["reliability"]["as given"]["accuracy"]) == 15


def test_files(full, tmp_path):
    names = full.save(tmp_path / "new" / "folder")
    assert set(names) >= {"report.json", "report.csv", "report.md", "intervals.png"}
    for name in names:
        assert (tmp_path / "new" / "folder" / name).stat().st_size > 100
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written to"):
        full.save(tmp_path / "file")


def test_cross_fitting_never_sees_what_it_scores():
    logits, labels = sample(num_rows=60)
    # One example is decided against by all others; a temperature fitted with it would be higher.
    found = report.score(logits, labels, calibrate="temperature", cross_fit=60, **FEW)
    folds = found.calibrator["params"]
    assert len(folds) == 60
    order = np.random.default_rng(0).permutation(60) % 60
    left_out = int(np.flatnonzero(order == 7)[0])
    rest = np.arange(60) != left_out
    expected = calibrators.temperature.fit(logits[rest], labels[rest]).temperature
    assert folds[7]["temperature"] == pytest.approx(float(expected), rel=1e-3)


def test_a_temperature_by_a_metric_on_the_papers_grid():
    logits, labels = sample()
    found = report.score(
        logits, labels, calibrate="temperature", fit_on=(logits, labels), objective="ece", **FEW
    )
    temperature = found.calibrator["params"]["temperature"]
    grid = np.arange(1, 101) / 10
    errors = [float(metrics.ece(logits / t, labels)) for t in grid.astype(np.float32)]
    at = np.argmin(np.abs(grid - temperature))
    assert temperature == pytest.approx(grid[at], rel=1e-6)
    assert errors[at] == pytest.approx(min(errors), abs=2e-3)  # ragged: examples sit on edges
    assert errors[at] < errors[9] - 0.05  # T = 1


def test_weights_leave_examples_out():
    logits, labels = sample(num_rows=50)
    weights = (np.arange(50) < 40).astype(np.float32)
    found = report.score(logits, labels, weights=weights, **FEW)
    expected = float(metrics.nll(logits[:40], labels[:40]))
    assert found.value("nll") == pytest.approx(expected, rel=1e-5)


def test_binary_models_and_probabilities():
    random = np.random.default_rng(0)
    score = random.standard_normal(80).astype(np.float32)
    labels = random.integers(2, size=80)
    one = report.score(score, labels, **FEW)
    column = report.score(score[:, None], labels, **FEW)
    p = 1 / (1 + np.exp(-score))
    told = report.score(np.stack([1 - p, p], 1), labels, probabilities=True, **FEW)
    alone = report.score(p, labels, probabilities=True, **FEW)
    for found in (column, told, alone):
        assert found.value("nll") == pytest.approx(one.value("nll"), rel=1e-5)
    assert one.settings["classes"] == 2
    with pytest.raises(ValueError, match="all 80 rows of the logits look like prob"):
        report.score(np.stack([1 - p, p], 1), labels, **FEW)
    with pytest.raises(ValueError, match="all 80 values of the one column lie in"):
        report.score(p, labels, **FEW)
    with pytest.raises(ValueError, match="must not be negative and must sum to 1"):
        report.score(np.stack([p, p], 1), labels, probabilities=True, **FEW)
    certain = np.array([[1.0, 0.0]] * 80, np.float32)
    found = report.score(certain, labels, probabilities=True, **FEW)
    assert np.isfinite(found.value("nll"))


def test_an_average_of_models():
    one, two = sample(seed=0)[0], sample(seed=1)[0]
    mean = jax.nn.softmax(report.average([jnp.asarray(one), jnp.asarray(two)]))
    expected = (jax.nn.softmax(one) + jax.nn.softmax(two)) / 2
    np.testing.assert_allclose(mean, expected, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="predictions of one shape"):
        report.average([jnp.asarray(one), jnp.asarray(two[:5])])


def test_refusals():
    logits, labels = sample(num_rows=30)
    with pytest.raises(ValueError, match="never fitted on the examples that are scored"):
        report.score(logits, labels, calibrate="temperature", **FEW)
    with pytest.raises(ValueError, match=r"cross_fit must lie in \[2, 30\], got 31"):
        report.score(logits, labels, calibrate="temperature", cross_fit=31, **FEW)
    with pytest.raises(ValueError, match="'temprature'; did you mean 'temperature'"):
        report.score(logits, labels, calibrate="temprature", cross_fit=5, **FEW)
    with pytest.raises(ValueError, match="did you mean 'ece'"):
        report.score(logits, labels, metrics=["eec"])
    with pytest.raises(TypeError, match="must be a list of names"):
        report.score(logits, labels, metrics="ece")
    with pytest.raises(ValueError, match=r"need labels of shape \(30,\), got \(29,\)"):
        report.score(logits, labels[1:], **FEW)
    with pytest.raises(ValueError, match="lengths must agree: groups has 3, labels has 30"):
        report.score(logits, labels, groups=["a", "b", "c"], **FEW)
    bad = logits.copy()
    bad[4] = np.inf
    with pytest.raises(ValueError, match="1 of 30 rows have NaN or infinite logits"):
        report.score(bad, labels, **FEW)
    with pytest.raises(KeyError, match="no 'ece' of predictions 'platt'"):
        report.score(logits, labels, **FEW).value("ece", "platt")
