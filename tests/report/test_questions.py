"""Questions of users: rounded probabilities, rows with own options, thresholds, ranks, transfer."""

import json

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from calib_jax import calibrators, inference, metrics, report
from calib_jax.report import calibrate, predictions, questions
from calib_jax.report.read import read_models

FEW = {"metrics": ["accuracy", "ece", "nll"], "num_resamples": 20}


def sample(num_rows=250, scale=3.0, seed=0, num_classes=3):
    """Return logits that are `scale` times too large, and labels."""
    random = np.random.default_rng(seed)
    z = 1.3 * random.standard_normal((num_rows, num_classes))
    labels = (z + random.gumbel(size=z.shape)).argmax(-1)
    return scale * z, labels


def rounded(digits=2, **options):
    logits, labels = sample(**options)
    return np.round(softmax(logits, axis=1), digits), labels


@pytest.mark.parametrize("step", [0.1, 0.01, 0.001, 0.0001])
def test_the_grid_of_rounded_probabilities_is_found(step):
    p = np.round(softmax(sample()[0], axis=1) / step) * step
    assert predictions.grid_of(p) == predictions.grid_of(p.astype(np.float32)) == step
    assert (predictions.grid_of(p[:20]), predictions.grid_of(p[:19])) == (step, None)
    off, weights = softmax(sample()[0], axis=1), np.arange(500) < 250
    sure = 2e-8 ** np.linspace(0.5, 1, 25)  # near 0, and not rounded
    for each in (off, np.round(off[:, :1]), sure, 1 - sure, np.stack([sure, 1 - sure], 1)):
        assert predictions.grid_of(each) is None
    given = predictions.Predictions(np.vstack([p, off]), (), weights, kind="probabilities")
    assert given.floor == step / 2
    # More classes share a step: half a step each would take 40 % from a row of 1 and 139 zeros.
    many = predictions.Predictions(np.eye(140)[:25] + step * np.eye(140, k=1)[:25], (), None)
    assert many._replace(kind="probabilities").floor == step / 139


def test_zeros_of_rounded_probabilities_are_half_a_step_and_the_first_line_says_so():
    p, labels = rounded()
    scored = report.score(p, labels, probabilities=True, **FEW)
    kept = np.maximum(p / p.sum(1, keepdims=True), 0.005)
    expected = -np.log(kept / kept.sum(1, keepdims=True))[np.arange(250), labels].mean()
    assert scored.value("nll") == pytest.approx(expected, rel=1e-5)
    first = str(scored).splitlines()[0]
    assert first.startswith("The probabilities are rounded to 0.01; 0 is")
    assert "read as 0.005 (0.5 of a step; --floor sets another value)" in first


def test_a_note_that_holds_of_several_models_is_written_once():
    p, labels = rounded()
    options = {"name": "a", "compare": {"b": p[:, ::-1]}, "probabilities": True, **FEW}
    (line,) = [line for line in report.score(p, labels, **options).headlines if "rounded" in line]
    assert line.startswith("a, b: The probabilities are rounded to 0.01")


def test_a_fit_that_a_few_zeros_decide_has_no_star():
    p, labels = rounded()
    fit = rounded(seed=1)
    options = {"probabilities": True, "calibrate": "temperature", "fit_on": fit, **FEW}
    half = report.score(p, labels, **options)
    assert half.unsettled == {}
    decided = report.score(p, labels, floor=5e-4, **options)  # T is 1.28 times as large
    assert decided.unsettled == {"temperature": "decided by zeros"}
    assert all(change.p_value is None for change in decided.changes)
    assert report.score(p, labels, floor=1e-3, **options).unsettled == {}  # 1.19 times
    (line,) = (line for line in decided.headlines if "decide the fit" in line)
    fitted = half.calibrator["params"]["temperature"]
    assert f"and {fitted:.3g} with --floor=0.005" in line


def test_the_floor_of_a_warning_is_half_the_least_probability_that_is_allowed():
    labels = np.array([0, 1, 0, 1, 0, 1, 0, 2])
    for row, floor in (([0.15, 0.85, 0], 0.075), ([0.5, 0.5, 0], 0.1)):
        given = predictions.Predictions(np.tile(row, (8, 1)), labels, kind="probabilities")
        warning = calibrate.decided_by_zeros(given, given.values())
        assert warning.startswith("1 of 8 true classes")
        assert warning.endswith(f"with --floor={floor}.")
    none = predictions.Predictions(np.zeros(8), labels % 2, kind="probabilities")
    assert calibrate.decided_by_zeros(none, none.values()) == ""


def test_percent_on_a_grid_is_read_as_percent(tmp_path):
    p, labels = rounded()
    np.savez(tmp_path / "p.npz", probabilities=np.round(100 * p), labels=labels)
    (model,) = read_models(str(tmp_path / "p.npz"))
    assert (model.kind, model.floor) == ("probabilities", 0.005)
    np.testing.assert_allclose(model.logits, p, atol=1e-9)
    # A row of weight 0 may hold anything.
    given = {"probabilities": np.vstack([100 * p, 0 * p[:1]]), "labels": np.append(labels, 0)}
    np.savez(tmp_path / "p.npz", **given, weights=np.arange(251) < 250)
    (model,) = read_models(str(tmp_path / "p.npz"))
    np.testing.assert_allclose(model.logits[:250], p, atol=1e-9)


def lines(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def options_file(path, num_rows=240, seed=0, sizes=4):
    """Write questions of two options or more, in any order; return logits and places of labels."""
    random = np.random.default_rng(seed)
    rows, expected = [], []
    for k in range(num_rows):
        size = 2 + k % sizes
        z = random.standard_normal(size)
        place = int(random.integers(size))
        z[place - 1] -= np.inf if k % 7 == 0 else 0  # a grade that no model states
        kind = "score" if size in (3, 4) else "choice"
        names = [f"{k if kind == 'choice' else ''}{8 + j}" for j in range(size)]
        given = {names[j]: z[j] for j in random.permutation(size)}
        rows.append({"logits": given, "label": names[place], "question": f"{seed} {k}"})
        rows[-1]["type"] = kind
        expected.append((z, place))
    return lines(path, rows), expected


def test_options_vary_by_row(tmp_path):
    file, expected = options_file(tmp_path / "a.jsonl")
    names = ["accuracy", "nll", "brier"]
    scored = report.score_files(predictions=[file], metrics=names, resamples=20)
    nll = [-log_softmax(z)[place] for z, place in expected]
    assert scored.value("nll") == pytest.approx(np.mean(nll), rel=1e-5)
    right = [z.argmax() == place for z, place in expected]
    assert scored.value("accuracy") == pytest.approx(np.mean(right))
    brier = [np.sum((softmax(z) - np.eye(len(z))[place]) ** 2) for z, place in expected]
    assert scored.value("brier") == pytest.approx(np.mean(brier), rel=1e-5)
    parts = {(part.part, part.metric): part for part in scored.groups}
    assert parts["options=3", "nll"].value == pytest.approx(np.mean(nll[1::4]), rel=1e-5)
    assert parts["type=score", "nll"].examples == 120
    for size in (3, 4):  # each is divided by its own number of options
        ranked = [
            np.sum((np.cumsum(softmax(z)) - (np.arange(len(z)) >= place)) ** 2)
            for z, place in expected[size - 2 :: 4]
        ]
        value = parts[f"ordinal=yes, options={size}", "ranked_probability_score"].value
        assert value == pytest.approx(np.mean(ranked) / (size - 1), rel=1e-4)
    # Another file may have fewer options at most, and an average has as many as its models.
    other, _ = options_file(tmp_path / "b.jsonl", seed=1, sizes=3)
    fit = {"fit_on": [other], "calibrate": "temperature"}
    fitted = report.score_files(predictions=[file], metrics=names, resamples=20, **fit)
    (held,) = read_models(other)
    temperature = float(calibrators.temperature.fit(held.values(), held.labels).temperature)
    assert fitted.calibrator["params"]["temperature"] == pytest.approx(temperature)
    nll_after = [-log_softmax(z / temperature)[place] for z, place in expected]
    assert fitted.value("nll", "temperature") == pytest.approx(np.mean(nll_after), rel=1e-5)
    few = {"metrics": names, "resamples": 20}
    one, other = (options_file(tmp_path / f"{k}.jsonl", 240 - k)[0] for k in (0, 1))
    mean = report.score_files(predictions=[one, other], average=True, **few)
    assert mean.value("nll") == pytest.approx(np.mean(nll[:239]), rel=1e-5)
    # The places of options are no classes.
    for wrong in ({"per_class": True}, {"calibrate": "vector", "cross_fit": 2}):
        with pytest.raises(ValueError, match="the same classes"):
            report.score_files(predictions=[file], **few, **wrong)


def test_labels_of_lists_of_own_lengths_may_count_from_1(tmp_path):
    rows = [{"probabilities": [0.75, 0.25], "label": 1}]
    rows += [{"probabilities": [0.5, 0.25, 0.25], "label": label} for label in (3, "2")]
    for first in (0, 1):
        given = [row | {"label": int(row["label"]) - 1 + first} for row in rows]
        (model,) = read_models(lines(tmp_path / "a.jsonl", given), first_label=first)
        assert model.labels.tolist() == [0, 2, 1]


def test_the_same_options_in_every_row_are_classes(tmp_path):
    rows = [{"probabilities": {"no": 0.3, "yes": 0.7}, "label": "yes"}]
    rows += [{"probabilities": {"yes": 0.6, "no": 0.4}, "label": False}]
    for first in (0, 1):  # the label of the first class; then of a file of one row
        (model,) = read_models(lines(tmp_path / "a.jsonl", rows[: 2 - first]), first_label=first)
        assert model.class_names == ("no", "yes")
        assert model.logits.tolist() == [[0.3, 0.7], [0.4, 0.6]][: 2 - first]
        assert model.labels.tolist() == [1, 0][: 2 - first]


def test_responses_of_decision_models(tmp_path):
    p = {"a": 0.5, "b": 0.25, "c": 0.25}
    answers = {
        "urgent": {"type": "noul", "noul": 0.75},
        "team": {"type": "choice", "choice": "a", "probabilities": p},
    }
    row = {"id": "t", "model": "m", "answers": answers, "labels": {"urgent": True, "team": "c"}}
    (model,) = read_models(lines(tmp_path / "a.jsonl", [row]))
    np.testing.assert_array_equal(model.logits, [[0.25, 0.75, np.nan], [0.5, 0.25, 0.25]])
    assert (model.model, model.labels.tolist()) == ("m", [1, 2])
    assert model.groups["type"].tolist() == ["noul", "choice"]
    assert model.clusters.tolist() == ["t", "t"]


def test_a_threshold_has_its_guarantee():
    logits, labels = sample(scale=1)
    scored = report.score(logits, labels, threshold_for="accuracy:0.6", **FEW)
    found = inference.guaranteed_coverage(logits, labels, risk=0.4)
    assert 0.1 < found.coverage < 0.9
    (table,) = (table for table in scored.tables if table.title.startswith("Threshold"))
    confidence = softmax(logits, axis=1).max(axis=1)
    assert np.mean(confidence > found.threshold) == pytest.approx(found.coverage, abs=1e-3)
    assert float(table.rows[1][2]) == pytest.approx(found.threshold, rel=1e-6)
    none = report.score(logits[:60], labels[:60], threshold_for="error:0.25", **FEW)
    (table,) = (table for table in none.tables if table.title.startswith("Threshold"))
    assert table.rows[1][2] == "none"
    for times in (4, 8):
        again = np.tile(logits[:60], (times, 1)), np.tile(labels[:60], times)
        found = inference.guaranteed_coverage(*again, risk=0.25)
        assert np.isfinite(found.threshold) == (times == 8)
    assert table.rows[1][4].startswith(f"{7 * 60} more rows")
    one = inference.Evaluation(logits[:60], labels[:60], clusters=np.arange(60) // 2)
    needed = int(questions.more_rows(one, risk=0.35, level=0.9).split()[0].replace(",", ""))
    for times in ((needed + 60) // 120, (needed + 60) // 60):  # of further clusters
        again = np.tile(logits[:60], (times, 1)), np.tile(labels[:60], times)
        how = {"risk": 0.35, "clusters": np.arange(60 * times) // 2}
        found = inference.guaranteed_coverage(*again, **how)
        assert np.isfinite(found.threshold) == (60 * times == needed + 60)


@pytest.mark.parametrize("text", ["accuracy", "accuracy:2", "recall:0.5"])
def test_other_thresholds_are_refused(text):
    with pytest.raises(ValueError, match=r"must be like accuracy:0\.95"):
        report.score(*sample(60), threshold_for=text, **FEW)


def test_three_models_have_ranks():
    logits, labels = sample(scale=1)
    models = {"bold": 4 * logits, "same": 1.01 * logits}
    scored = report.score(logits, labels, name="true", compare=models, **FEW)
    (table,) = (table for table in scored.tables if table.title == "Ranks")
    assert [row[1] for row in table.rows[1:]][-1] == "bold"
    assert table.rows[3][0] == "3"
    nll, parts = metrics.nll(4 * logits, labels), table.rows[3][3:5]
    assert sum(map(float, parts)) == pytest.approx(float(nll), abs=2e-4)


def test_three_models_whose_nll_has_no_parts_have_ranks():
    random = np.random.default_rng(0)
    stated = random.uniform(0.05, 0.95, (3, 60))
    answers = [metrics.Stated(each, stated[0] > 0.5) for each in stated]
    infinite = np.where(np.eye(3)[np.arange(60) % 3] > 0, -np.inf, 0.0)
    certain = [infinite, infinite[::-1], infinite]
    for models, labels, name in ((answers, None, "nll"), (certain, np.arange(60) % 3, "brier")):
        others = {"compare": {"b": models[1], "c": models[2]}, "metrics": ["error"]}
        scored = report.score(models[0], labels, num_resamples=20, **others)
        (ranks,) = (table for table in scored.tables if table.title == "Ranks")
        assert ranks.rows[0] == ["rank", "model", name, "tied with"]
        assert {len(row) for row in ranks.rows} == {4}


@pytest.mark.parametrize(
    ("other", "verdict"), [(2.26, "no sign that the sets differ"), (2.2, "the two sets differ")]
)
def test_whether_the_temperature_transfers(other, verdict):
    """Their difference is 1.90 and 2.06 standard deviations."""
    test, fit = sample(200), sample(200, scale=other, seed=1)
    scored = report.score(*test, calibrate="temperature", fit_on=fit, level=0.8, **FEW)
    (table,) = (table for table in scored.tables if "transfer" in table.title)
    temperature, after, best = float(table.rows[1][1].split()[0]), *map(float, table.rows[1][3:])
    assert after == pytest.approx(float(metrics.nll(test[0] / temperature, test[1])), abs=1e-3)
    low, high = inference.predict_loss(*test, "cross_entropy").cross_entropy.interval(0.8)
    assert table.rows[1][2].endswith(f"[{low:.3f}, {high:.3f}]")
    own = float(table.rows[1][2].split()[0])
    assert best == pytest.approx(float(metrics.nll(test[0] / own, test[1])), abs=1e-4)
    assert f"the fitted temperature costs {after - best:.3f} nats here: {verdict}." in table.note
    # The intervals of both temperatures need independent examples.
    options = {"clusters": np.arange(200) // 2, "calibrate": "temperature", "fit_on": fit}
    tables = report.score(*test, predict_losses=True, **options, **FEW).tables
    assert not any("transfer" in table.title for table in tables)
    assert any("intervals ignore the clusters" in table.note for table in tables)


def test_a_temperature_for_each_group(tmp_path):
    logits, labels = sample(scale=1)
    groups = np.where(np.arange(250) % 2, "sure", "true")
    given = logits * np.where(groups == "sure", 4, 1)[:, None]
    options = {"calibrate": "temperature", "cross_fit": 2}
    one = report.score(given, labels, groups=groups, **options, **FEW)
    np.savez(tmp_path / "run.npz", logits=given, labels=labels, groups=groups)
    file = {"predictions": [str(tmp_path / "run.npz")], "per": "group", "per_group": False}
    per = report.score_files(**options, **file, resamples=20)
    assert not per.groups
    assert per.value("nll", "temperature") < one.value("nll", "temperature") - 0.02
    for how, message in ((options, "no such column of groups"), ({}, "per needs calibrate")):
        with pytest.raises(ValueError, match=message):
            report.score(given, labels, per="type", **how)


def test_predicted_losses_are_those_of_inference():
    logits, labels = sample()
    scored = report.score(logits, labels, predict_losses=True, level=0.8, **FEW)
    (table,) = (table for table in scored.tables if table.title == "Trained with another loss")
    t, gap, ce2 = inference.predict_loss(logits, labels, "focal")[2:]
    (row,) = (row for row in table.rows if row[1] == "focal")
    low, high = gap.interval(0.8)
    ends = f"{100 * gap.value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] points"
    assert (row[2].split()[0], row[3]) == (f"{t.value:.2f}", ends)
    low, high = (100 * max(end, 0) ** 0.5 for end in ce2.interval(0.8))
    assert row[4].endswith(f"[{low:.1f}, {high:.1f}] points")
    assert "clusters" not in table.note


def test_the_examples_needed_are_those_of_inference():
    random = np.random.default_rng(0)
    logits = 2 * random.standard_normal((200, 3))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    logits = (1.5 * logits).astype(np.float32)
    found = report.score(logits, labels, metrics=["error"], num_resamples=20)
    needed = inference.rows_needed(inference.Evaluation(logits, labels), temperature=0.05)
    page = found._repr_markdown_()
    assert f"{needed.temperature:,} to fit a temperature within 5 %" in page
    assert f"{needed.ece:,} to detect an ECE of 2 points" in page
