"""Fits: for which model and on what, whether they have an optimum, and what they minimize."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax import calibrators, metrics, report
from calib_jax.report import calibrate, read, render, results
from calib_jax.report.command import score_files

from . import sample

FEW = {"metrics": ["accuracy", "ece", "nll"], "num_resamples": 20}


def write(folder, name, logits, labels):
    np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    return str(folder / f"{name}.npz")


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def scored(files, fits=(), **options):
    small = {"metrics": FEW["metrics"], "resamples": 20, "calibrate": "temperature"}
    return score_files(predictions=files, fit_on=fits, **{**small, **options})


def temperatures(result):
    return {name: fit["params"]["temperature"] for name, fit in result.calibrators.items()}


@pytest.fixture
def files(tmp_path):
    """Write two models of the same test examples, and held-out predictions of each."""
    logits, labels = sample(2, 0)
    held, held_labels = sample(2, 1)
    return {
        "a": write(tmp_path, "a", logits, labels),
        "b": write(tmp_path, "b", logits / 4 + 0.01, labels),
        "val_a": write(tmp_path, "val_a", held, held_labels),
        "val_b": write(tmp_path, "val_b", held / 4 + 0.01, held_labels),
    }


def test_every_model_is_calibrated_by_its_own_file(files):
    models, fits = [files["a"], files["b"]], [files["val_a"], files["val_b"]]
    result = scored(models, fits)
    found = temperatures(result)
    assert [*found] == ["temperature of a", "temperature of b"]
    assert [*result.reliability] == ["a", *list(found)[:1], "b", *list(found)[1:]]
    pairs = zip(models, fits, strict=True)
    alone = [temperatures(scored([model], [fit]))["temperature"] for model, fit in pairs]
    assert [*found.values()] == alone
    assert alone[0] == pytest.approx(4 * alone[1], rel=1e-3)  # b's logits are a quarter of a's
    text = str(result)
    for fit in fits:
        assert f"80 other examples of {fit}" in text
        assert fit in result._repr_markdown_()
    with pytest.raises(ValueError, match="80 of 80 scored examples"):
        scored(models, [files["val_a"], files["a"]])
    # One file of several models, by their names, also where others have no part in the report.
    held = [arrays(file) for file in (fits[1], *fits)]
    both = {key: np.concatenate([each[key] for each in held]) for key in held[0]}
    np.savez(file := fits[0].replace("val_a", "all"), **both, models=np.repeat([*"bac"], 80))
    assert [*temperatures(scored(models, [file], name=["x", "y"])).values()] == alone
    assert temperatures(scored(models[1:], [file]))["temperature"] == alone[1]


def test_one_file_is_that_of_the_first_model_and_the_report_says_so(files):
    result = scored([files["a"], files["b"]], [files["val_a"]])
    assert [*temperatures(result)] == ["temperature"]
    line = f"(method valid). temperature fitted on 80 other examples of {files['val_a']}, T = "
    assert line in str(result)
    assert result.notes[-1].startswith("b: not calibrated, because --fit_on is given for a:")


def test_another_number_of_files_is_refused(files):
    three = [files["val_a"], files["val_b"], files["val_a"]]
    with pytest.raises(ValueError, match="given 3 times, for 2 models"):
        scored([files["a"]], three, compare=[files["b"]])
    with pytest.raises(ValueError, match="given 2 times, for 1 model"):
        scored([files["a"]], three[:2])


def test_an_average_is_fitted_on_the_average_of_its_files(files):
    models, fits = [files["a"], files["b"]], [files["val_a"], files["val_b"]]
    result = scored(models, [*fits, fits[0]], average=True, compare=models[:1])
    held = [arrays(file) for file in fits]
    mean = report.average([jnp.asarray(each["logits"]) for each in held])
    np.testing.assert_allclose(np.exp(mean).sum(axis=1), 1, rtol=1e-5)
    test = [arrays(file) for file in models]
    given = report.average([jnp.asarray(each["logits"]) for each in test])
    how = {"calibrate": "temperature", "fit_on": (mean, held[0]["labels"])}
    expected = report.score(given, test[0]["labels"], **how, **FEW)
    found, wanted = temperatures(result), temperatures(expected)["temperature"]
    assert found["temperature of mean of 2"] == pytest.approx(wanted, rel=1e-5)
    assert f"of {fits[0]}, {fits[1]}, T = " in str(result)


@pytest.fixture(scope="module")
def separable():
    """Score with a temperature fitted on examples that are all classified correctly."""
    logits, labels = sample(2, 0)
    held, _ = sample(2, 1)
    how = {"calibrate": "temperature", "fit_on": (held, held.argmax(-1)), "per_class": True}
    how |= {"compare": {"other": logits / 2}, "groups": np.arange(len(labels)) % 2}
    return report.score(logits, labels, **how, **FEW)


@pytest.mark.slow
def test_a_fit_without_an_optimum_is_named_and_has_no_p_value(separable):
    fit = separable.calibrators["temperature"]
    assert fit["state"] == fit["params"]["state"]["name"] == "no_optimum"
    for change in separable.changes:
        untested = change.after == "temperature" or change.metric == "ece"
        assert (change.p_value is None) == untested
        assert (change.p_holm is None) == untested
    for row in [*separable.rows, *separable.classes, *separable.groups]:
        if row.predictions == "temperature":
            assert row.p_value is None
    assert any(part.p_value is not None for part in separable.groups)


def test_every_page_says_that_a_fit_did_not_converge(separable):
    for page in (results.as_model_card(separable), render.as_text(results.page(separable))):
        assert f"T = {separable.calibrator['params']['temperature']:.4g} (no_optimum)" in page
        assert "temperature (no_optimum)" in page
        assert "the fit did not converge or is no optimum (no_optimum)" in page
        assert "No p-value for nll" not in page  # which has one where the fit converged


def test_rounded_rows_of_a_sharper_model_are_not_examples_of_the_fit(tmp_path):
    """Many of its rows read 1.00 and 0.00 alone, as some of the fit do."""

    def rounded(name, scale, seed):
        logits, labels = sample(scale, seed, num_rows=250)
        return write(tmp_path, name, scipy.special.softmax(logits, axis=-1).round(2), labels)

    models = [rounded("a", 3, 0), rounded("b", 40, 0)]
    result = scored(models, [rounded("val", 3, 1)], probabilities=True)
    assert [*result.calibrators] == ["temperature"]


ONES_256 = np.ones(256)  # as in a report, whose fits have weights
CRITERIA = ["nll", "ece", "adaptive_ece:0.01"]


def test_each_temperature_minimizes_its_criterion():
    held_out = sample(2.5, 1, 256)
    options = {"calibrate": "temperature", "fit_on": held_out, "criterion": CRITERIA, **FEW}
    found = temperatures(report.score(*sample(2.5, 0), **options))
    expected = {"T by nll": calibrators.temperature.fit(*held_out, ONES_256).temperature}
    for name, metric, step in (
        ("T by ece", metrics.ece, 0.1),
        ("T by adaptive_ece:0.01", metrics.adaptive_ece, 0.01),
    ):
        grid = {"start": step, "stop": 10.0, "step": step, "criterion": metric}
        expected[name] = calibrators.temperature.fit_grid(*held_out, ONES_256, **grid).temperature
    assert found == pytest.approx({name: float(one) for name, one in expected.items()}, rel=1e-6)
    assert len(set(found.values())) == 3


def test_refusals():
    data = sample(2.5, 0)

    def score(criterion, calibrate="temperature"):
        options = {"calibrate": calibrate, "fit_on": sample(2.5, 1), "criterion": criterion}
        return report.score(*data, metrics=["nll"], num_resamples=2, **options)

    for criterion in ("ece:x", "ece:0", "ece:1.5", "eec"):
        with pytest.raises(ValueError, match=r"criterion|did you mean"):
            score(criterion)
    with pytest.raises(ValueError, match="criterion='ece' is for a temperature, and 'vector'"):
        score(["nll", "ece"], calibrate="vector")
    two = [metrics.ece, metrics.ece.with_options(num_bins=5)]
    for names in (two, {"nll (class 1)": metrics.nll}, {"squared_calibration_error": metrics.nll}):
        with pytest.raises(ValueError, match=r"two metrics are called ece|a name that reports add"):
            report.score(*data, metrics=names, num_resamples=2)


def test_folds_contain_whole_clusters():
    """With one fold per cluster, each temperature is fitted without the cluster that it scales."""
    random = np.random.default_rng(1)
    logits = 3 * random.standard_normal((256, 3)).astype(np.float32)
    labels, cluster = random.integers(0, 3, 256), random.permutation(np.arange(256) // 64)
    given = jnp.asarray(logits), jnp.asarray(labels), None

    def folds(count):
        drawn = calibrate.folds_of(256, count, cluster, seed=0)
        return calibrate.calibrated("temperature", "nll", given, drawn, None)[1]

    weights = [(cluster != k).astype(np.float32) for k in range(4)]
    fits = [calibrators.temperature.fit(logits, labels, weight) for weight in weights]
    temperatures = [fold["temperature"] for fold in folds(4)["params"]]
    wanted = [float(fit.temperature) for fit in fits]
    np.testing.assert_allclose(sorted(temperatures), sorted(wanted), rtol=1e-5)
    assert folds(4)["fitted_on"] == "the rest of the examples, in 4 folds"
    with pytest.raises(ValueError, match=r"the number of clusters, must lie in \[2, 4\], got 5"):
        folds(5)


COSTS = np.array([[0.0, 1, 4], [2, 0, 1], [5, 2, 0]])


@pytest.mark.slow
def test_costs_stand_in_the_report_before_and_after_calibration():
    random = np.random.default_rng(0)
    logits = (3 * random.standard_normal((200, 3))).astype(np.float32)
    labels = (logits + 3 * random.gumbel(size=(200, 3))).argmax(axis=1)
    data = logits[:100], labels[:100]
    options = {"costs": COSTS, "abstain_cost": 0.8}
    actual = report.score(
        *data,
        metrics=["accuracy"],
        num_resamples=20,
        calibrate="temperature",
        fit_on=(logits[100:], labels[100:]),
        **options,
    )
    for name in ("expected_cost", "stated_cost"):
        rows = [row for row in actual.rows if row.metric == name]
        assert [row.predictions for row in rows] == ["as given", "temperature"]
        wanted = metrics.named(name, **options)(*data)
        np.testing.assert_allclose(rows[0].value, wanted, rtol=1e-6)
        assert rows[0].low <= rows[0].value <= rows[0].high
    changes = {change.metric: change for change in actual.changes}
    assert changes["expected_cost"].p_value is not None
    assert changes["stated_cost"].value > 0
    with pytest.raises(ValueError, match=r"costs must be finite, \[3 classes"):
        report.score(*data, costs=COSTS[:2])


def test_costs_are_read_from_a_file(tmp_path):
    file = tmp_path / "costs.csv"
    file.write_text("0, 1, 4\n2, 0, 1\n5, 2, 0\n")
    np.testing.assert_array_equal(read.costs(str(file)), COSTS)
    assert read.costs(None) is None
    for broken in ("a,b\n1,2\n", "1,2\n3\n"):
        file.write_text(broken)
        message = r"costs\.csv cannot be read as .*; give a CSV file of numbers, a row"
        with pytest.raises(ValueError, match=message):
            read.costs(str(file))
    file.write_text("\n")
    with pytest.raises(ValueError, match=r"costs\.csv .*: it is empty"):
        read.costs(str(file))


def test_costs_are_no_address(monkeypatch):
    """NumPy would fetch a name that begins with http."""
    opened = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **_: opened.append(args))
    with pytest.raises(FileNotFoundError, match=r"there is no file http://localhost/c\.csv"):
        read.costs("http://localhost/c.csv")
    assert opened == []
