"""For which model a calibrator is fitted, on which file, and whether the fit has an optimum."""

import csv
import io
import json

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, report
from calib_jax.report import file_scoring, tables
from calib_jax.report.files import score_page
from calib_jax.report.html_page import render


def sample(scale, seed, num_rows=80):
    """Return logits that are `scale` times too large, and labels."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal((num_rows, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    return (scale * logits).astype(np.float32), labels


def write(folder, name, logits, labels):
    np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    return str(folder / f"{name}.npz")


def scored(files, fits=(), **options):
    small = {"metrics": ["nll"], "resamples": 20, "calibrate": "temperature"}
    return file_scoring.score_files(predictions=files, fit_on=fits, **{**small, **options})


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
    alone = [
        temperatures(scored([model], [fit]))["temperature"]
        for model, fit in zip(models, fits, strict=True)
    ]
    assert [*found.values()] == alone
    assert alone[0] == pytest.approx(4 * alone[1], rel=1e-3)  # b's logits are a quarter of a's
    text = str(result)
    for fit in fits:
        assert f"80 other examples of {fit}" in text
        assert fit in tables.as_markdown(result)
    with pytest.raises(ValueError, match="80 of 80 scored examples"):
        scored(models, [files["val_a"], files["a"]])


def test_one_file_is_that_of_the_first_model_and_the_report_says_so(files):
    result = scored([files["a"], files["b"]], [files["val_a"]])
    assert [*temperatures(result)] == ["temperature"]
    assert f"temperature fitted on 80 other examples of {files['val_a']}, T = " in str(result)
    assert result.notes[-1].startswith("b is not calibrated: --fit_on is given once, for a.")


def test_another_number_of_files_is_refused(files):
    three = [files["val_a"], files["val_b"], files["val_a"]]
    with pytest.raises(ValueError, match=r"given 3 times, and there are 2 files of predictions"):
        scored([files["a"]], three, compare=[files["b"]])
    with pytest.raises(ValueError, match=r"given 2 times, and there is 1 file of predictions"):
        scored([files["a"]], three[:2])


def test_an_average_is_fitted_on_the_average_of_its_files(files):
    models, fits = [files["a"], files["b"]], [files["val_a"], files["val_b"]]
    result = scored(models, fits, average=True)
    held = [np.load(file) for file in fits]
    mean = report.average([jnp.asarray(each["logits"]) for each in held])
    test = [np.load(file) for file in models]
    expected = report.score(
        report.average([jnp.asarray(each["logits"]) for each in test]),
        test[0]["labels"],
        calibrate="temperature",
        fit_on=(mean, held[0]["labels"]),
        metrics=["nll"],
        num_resamples=20,
    )
    assert temperatures(result)["temperature"] == pytest.approx(
        temperatures(expected)["temperature"], rel=1e-5
    )
    assert f"of {fits[0]}, {fits[1]}, T = " in str(result)


def test_fits_by_name_belong_to_a_model():
    logits, labels = sample(2, 0)
    with pytest.raises(
        ValueError, match="fit_on has 'b', and the predictions are called 'as given'"
    ):
        report.score(
            logits, labels, calibrate="temperature", fit_on={"b": sample(2, 1)}, metrics=["nll"]
        )


@pytest.fixture(scope="module")
def separable():
    """Score with a temperature fitted on examples that are all classified correctly."""
    logits, labels = sample(2, 0)
    held, _ = sample(2, 1)
    return report.score(
        logits,
        labels,
        calibrate="temperature",
        fit_on=(held, held.argmax(-1)),
        compare={"other": logits / 2},
        groups=np.arange(len(labels)) % 2,
        per_class=True,
        metrics=["nll", "ece"],
        num_resamples=40,
    )


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


@pytest.mark.parametrize("kind", ["text", "markdown", "card", "html"])
def test_every_page_says_that_a_fit_did_not_converge(separable, kind):
    page = {
        "text": tables.as_text,
        "markdown": tables.as_markdown,
        "card": tables.as_model_card,
        "html": lambda scored: render(score_page(scored, {})),
    }[kind](separable)
    assert f"T = {separable.calibrator['params']['temperature']:.4g} (no_optimum)" in page
    assert "temperature (no_optimum)" in page
    assert "the fit did not converge (no_optimum)" in page
    assert "No p-value for nll" not in page  # which has one where the fit converged


def test_files_of_numbers_say_it_too(separable):
    rows = [*csv.DictReader(io.StringIO(tables.as_csv(separable)))]
    of_fit = [
        row
        for row in rows
        if row["predictions"] in ("temperature", "as given -> temperature")
        and row["table"] in ("metrics", "changes")
    ]
    assert len(of_fit) == 6
    for row in of_fit:
        assert "did not converge (no_optimum)" in row["note"]
        assert row["p_value"] == row["p_holm"] == ""
    written = json.loads(tables.as_json(separable))
    assert written["calibrator"]["state"] == "no_optimum"
    assert all(
        change["p_value"] is None
        for change in written["changes"]
        if change["after"] == "temperature"
    )


@pytest.mark.parametrize("label", [3, -1, 255, 2**31, np.nan, 0.5])
@pytest.mark.parametrize("place", ["scored", "fit_on"])
def test_a_label_that_is_no_class_is_one_sentence(label, place):
    logits, labels = sample(2, 0)
    held, held_labels = sample(2, 1)
    wrong = labels if place == "scored" else held_labels
    wrong = wrong.astype(type(label)) if isinstance(label, float) else wrong
    wrong[7] = label
    given = {"scored": (wrong, held_labels), "fit_on": (labels, wrong)}[place]
    kind, message = (
        (TypeError, "labels .* must be integers, got float")
        if isinstance(label, float)
        else (ValueError, f"1 of 80 labels are not among the 3 classes, {label} is one")
    )
    with pytest.raises(kind, match=message):
        report.score(
            logits, given[0], calibrate="temperature", fit_on=(held, given[1]), metrics=["nll"]
        )


def test_labels_from_one_are_recognised():
    logits, labels = sample(2, 0)
    with pytest.raises(
        ValueError, match="run from 1 to 3, and the 3 classes count from 0: subtract"
    ):
        report.score(logits, labels + 1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.array(["1"] * 80), "weights must be numbers, got <U1"),
        (np.array([None] * 80), "weights must be numbers, got object"),
        (np.where(np.arange(80) == 3, -1, 1), "1 of 80 are not, such as -1"),
        (np.where(np.arange(80) == 3, np.nan, 1), "1 of 80 are not, such as nan"),
    ],
)
def test_weights_that_are_none_are_one_sentence(weights, message):
    logits, labels = sample(2, 0)
    with pytest.raises((TypeError, ValueError), match=message):
        report.score(logits, labels, weights=weights)


@pytest.mark.parametrize("several", [False, True])
def test_structures_are_no_groups(several):
    logits, labels = sample(2, 0)
    groups = np.zeros(80, [("age", "f4"), ("site", "i4")])
    with pytest.raises(TypeError, match=r"must be numbers or text, got .*'age'.*: give a mapping"):
        report.score(logits, labels, groups={"both": groups} if several else groups)


def test_no_p_value_stands_beside_a_baseline_without_an_optimum():
    random, score = np.random.default_rng(0), np.linspace(-3, 3, 60)
    correct = (score > 0).astype(int)
    models = {
        "separable": calibrators.Scored(score, correct),
        "noisy": calibrators.Scored(score + random.normal(0, 2, 60), correct),
    }
    (name, first), *others = models.items()
    options = {"calibrate": "platt", "cross_fit": 2, "num_resamples": 40}
    scored = report.score(first, name=name, compare=dict(others), **options)
    assert scored.unsettled
    assert scored.changes
    assert all(change.p_value is None for change in scored.changes)
    rows = csv.DictReader(io.StringIO(tables.as_csv(scored)))
    assert all("did not converge" in row["note"] for row in rows if row["table"] == "changes")
