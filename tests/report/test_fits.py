"""For which model a calibrator is fitted, on which file, and whether the fit has an optimum."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import report
from calib_jax.report import results as render
from calib_jax.report.files import score_files


def sample(scale, seed, num_rows=80):
    """Return logits that are `scale` times too large, and labels."""
    random = np.random.default_rng(seed)
    logits = random.standard_normal((num_rows, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    return (scale * logits).astype(np.float32), labels


def write(folder, name, logits, labels):
    np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    return str(folder / f"{name}.npz")


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def scored(files, fits=(), **options):
    small = {"metrics": ["nll"], "resamples": 20, "calibrate": "temperature"}
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
    alone = [
        temperatures(scored([model], [fit]))["temperature"]
        for model, fit in zip(models, fits, strict=True)
    ]
    assert [*found.values()] == alone
    assert alone[0] == pytest.approx(4 * alone[1], rel=1e-3)  # b's logits are a quarter of a's
    text = str(result)
    for fit in fits:
        assert f"80 other examples of {fit}" in text
        assert fit in render.as_markdown(result)
    with pytest.raises(ValueError, match="80 of 80 scored examples"):
        scored(models, [files["val_a"], files["a"]])


def test_one_file_is_that_of_the_first_model_and_the_report_says_so(files):
    result = scored([files["a"], files["b"]], [files["val_a"]])
    assert [*temperatures(result)] == ["temperature"]
    assert f"temperature fitted on 80 other examples of {files['val_a']}, T = " in str(result)
    assert result.notes[-1].startswith("b is not calibrated: --fit_on is given for a.")


def test_another_number_of_files_is_refused(files):
    three = [files["val_a"], files["val_b"], files["val_a"]]
    with pytest.raises(ValueError, match="given 3 times, for 2 models"):
        scored([files["a"]], three, compare=[files["b"]])
    with pytest.raises(ValueError, match="given 2 times, for 1 model"):
        scored([files["a"]], three[:2])


def test_an_average_is_fitted_on_the_average_of_its_files(files):
    models, fits = [files["a"], files["b"]], [files["val_a"], files["val_b"]]
    result = scored(models, fits, average=True)
    held = [arrays(file) for file in fits]
    mean = report.average([jnp.asarray(each["logits"]) for each in held])
    test = [arrays(file) for file in models]
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


def test_every_page_says_that_a_fit_did_not_converge(separable):
    for page in (render.as_model_card(separable), render.as_text(separable, explained=True)):
        assert f"T = {separable.calibrator['params']['temperature']:.4g} (no_optimum)" in page
        assert "temperature (no_optimum)" in page
        assert "the fit did not converge or is no optimum (no_optimum)" in page
        assert "No p-value for nll" not in page  # which has one where the fit converged


def test_rounded_rows_of_a_sharper_model_are_not_examples_of_the_fit(tmp_path):
    """Many of its rows read 1.00 and 0.00 alone, as some of the fit do."""

    def rounded(name, scale, seed):
        logits, labels = sample(scale, seed, num_rows=400)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        lines = [
            f"{y}," + ",".join(f"{v:.2f}" for v in row) for y, row in zip(labels, p, strict=True)
        ]
        (tmp_path / name).write_text("\n".join(["label,0,1,2", *lines]) + "\n")
        return str(tmp_path / name)

    models = [rounded("a.csv", 3, 0), rounded("b.csv", 40, 0)]
    result = scored(models, [rounded("val.csv", 3, 1)], probabilities=True)
    assert [*result.calibrators] == ["temperature"]
