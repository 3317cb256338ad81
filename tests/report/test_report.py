"""The report: its numbers are those of the rooms it joins, and its words say what it did."""

import csv
import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from calib_jax import calibrators, inference, metrics, report
from calib_jax.report import caveats, figures, render, results
from calib_jax.report.score import chosen_metrics
from tests.options import assert_recorded

FEW = {"metrics": ["accuracy", "ece", "nll"], "num_resamples": 20}
SEVERAL = chosen_metrics(FEW["metrics"], num_bins=15)


def sample(num_rows=200, num_classes=3, seed=0):
    """Return overconfident logits and labels."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.standard_normal((num_rows, num_classes))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(-1)
    return (2.5 * logits).astype(np.float32), labels


def evaluated(logits, labels):
    """Read predictions as a report does, with which the report's compiled programs are shared."""
    return inference.Evaluation(logits, labels, padded=True)


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
    models = {model: evaluated(z, labels) for model, z in models.items()}
    for model, one in models.items():
        for name, expected in one.values(SEVERAL).items():
            assert full.value(name, model) == pytest.approx(float(expected), rel=1e-5)
    how = {"key": jax.random.key(0), "num_resamples": 20}
    actual = inference.estimates(SEVERAL, models["as given"], **how)["nll"]
    (row,) = (r for r in full.rows if r.metric == "nll" and r.predictions == "as given")
    np.testing.assert_allclose([row.low, row.high], [actual.low, actual.high], rtol=1e-5)
    pair = models["as given"], models["temperature"]
    paired = inference.paired_bootstrap(SEVERAL, *pair, **how)["nll"]
    (change,) = (c for c in full.changes if c.metric == "nll" and c.after == "temperature")
    numbers = [change.value, change.low, change.high, change.p_value]
    np.testing.assert_allclose(numbers, [float(x) for x in paired[:4]], rtol=1e-4, atol=1e-6)


def test_parts_are_scored_on_their_own_examples(full):
    logits, labels = sample()
    few = {(p.metric, p.predictions): p for p in full.groups if p.part == "few"}
    assert few["nll", "as given"].examples == 60
    rows, key = evaluated(logits[:60], labels[:60]), jax.random.key(0)
    alone = inference.estimates(SEVERAL, rows, key=key, num_resamples=20)
    for name, expected in alone.items():
        part = few[name, "as given"]
        numbers = tuple(map(float, expected[:3]))
        assert (part.value, part.low, part.high) == pytest.approx(numbers, rel=1e-5)
        assert (part.floor, part.p_value) == (expected.floor, expected.p_value)
    recalls = metrics.per_class_recall(logits, labels)
    by_class = {(p.part, p.metric, p.predictions): p for p in full.classes}
    for k in range(3):
        part = by_class[str(k), "per_class_recall", "as given"]
        assert part.examples == np.sum(labels == k)
        assert part.value == pytest.approx(float(recalls[k]))


def test_classes_and_groups_have_p_values_corrected_for_their_number(full):
    key = jax.random.key(0)
    tests = inference.class_errors(evaluated(*sample()), key=key, num_resamples=60)  # 20 a class
    actual = [p for p in full.classes if (p.metric, p.predictions) == ("per_class_ece", "as given")]
    for part, test in zip(actual, tests, strict=True):
        assert part.value == pytest.approx(test.error, abs=1e-6)
        assert (part.floor, part.p_value, part.p_holm) == test[-3:]
        assert np.isnan([part.low, part.high]).all()  # a bootstrap interval would not be valid
    assert all(p.p_holm is None for p in full.classes if p.metric == "per_class_recall")
    groups = [p for p in full.groups if (p.metric, p.predictions) == ("ece", "as given")]
    holm = inference.holm([p.p_value for p in groups])
    assert [p.p_holm for p in groups] == list(holm)
    part = dataclasses.replace(groups[0], p_value=0.02, p_holm=0.04)
    assert results._cell(part).endswith("] p = .040")
    assert [caveats.starred(p) for p in (0.049, 0.05)] == ["*", ""]
    assert [caveats.p_of(p) for p in (0.00105, 0.001, 0.0009)] == ["= .001", "= .001", "< .001"]
    text = render.as_text(results.page(full))
    assert f"{actual[0].value:.4f}, noise floor {actual[0].floor:.4f} p " in text


def test_cross_fitting_never_sees_what_it_scores():
    logits, labels = sample(num_rows=60)
    # One example is decided against by all others; a temperature fitted with it would be higher.
    actual = report.score(logits, labels, calibrate="temperature", cross_fit=60, **FEW)
    folds = actual.calibrator["params"]
    assert len(folds) == 60
    order = np.random.default_rng(0).permutation(60) % 60
    left_out = int(np.flatnonzero(order == 7)[0])
    rest = np.arange(60) != left_out
    expected = calibrators.temperature.fit(logits[rest], labels[rest]).temperature
    assert folds[7]["temperature"] == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.slow
def test_weights_leave_examples_out():
    logits, labels = sample(num_rows=50)
    weights = (np.arange(50) < 40).astype(np.float32)
    actual = report.score(logits, labels, weights=weights, **FEW)
    assert "40 examples (weighted, 10 of weight 0 left out) in" in str(actual)
    assert (actual.settings["examples"], actual.settings["left_out"]) == (40, 10)
    expected = float(metrics.nll(logits[:40], labels[:40]))
    assert actual.value("nll") == pytest.approx(expected, rel=1e-5)
    assert not actual.notes
    chosen = report.score(logits, labels, metrics=["nll", metrics.ece.with_options(num_bins=3)])
    assert [row.metric for row in chosen.rows] == ["nll", "ece"]
    assert chosen.value("ece") == pytest.approx(float(metrics.ece(logits, labels, num_bins=3)))


def test_binary_models_and_probabilities():
    random = np.random.default_rng(0)
    score = random.standard_normal(80).astype(np.float32)
    labels = random.integers(2, size=80)
    one = report.score(score, labels, **FEW)
    column = report.score(score[:, None], labels, **FEW)
    p = 1 / (1 + np.exp(-score))
    told = report.score(np.stack([1 - p, p], 1), labels, probabilities=True, **FEW)
    alone = report.score(p, labels, probabilities=True, **FEW)
    for actual in (column, told, alone):
        assert actual.value("nll") == pytest.approx(one.value("nll"), rel=1e-5)
    assert one.settings["classes"] == 2


UNTESTED = ["ece", "classwise_ece", "ks_error"]
TESTED = ["accuracy", "nll", "aurc"]


@pytest.fixture(scope="module")
def calibrated_pair():
    """Score two calibrated models of one set of labels, the second far less sharp."""
    random = np.random.default_rng(0)
    vague = random.dirichlet([3.0] * 4, 400)
    sharp = np.stack([random.dirichlet(0.4 * p) for p in vague])  # its mean is the vague one
    sharp = np.maximum(sharp, 1e-30)
    labels = (np.cumsum(sharp, 1) > random.random((400, 1)) * sharp.sum(1, keepdims=True)).argmax(1)
    return report.score(
        np.log(sharp).astype(np.float32),
        labels,
        compare=np.log(vague).astype(np.float32),
        name="sharp",
        compare_name="vague",
        metrics=[*TESTED, *UNTESTED],
        num_resamples=100,
    )


def test_no_metric_has_an_invalid_p_value(calibrated_pair):
    for change in calibrated_pair.changes:
        assert (change.p_value is None) == (change.metric in UNTESTED)
    (reason,) = [line for line in calibrated_pair.explanations if "No p-value for" in line]
    assert all(name in reason for name in UNTESTED)
    for row in csv.DictReader(io.StringIO(results.as_csv(calibrated_pair))):
        if row["table"] == "changes":
            assert (row["p_value"] == "") == (row["metric"] in UNTESTED)


def test_models_that_differ_in_sharpness_alone_differ_in_scores_alone(calibrated_pair):
    """Both are calibrated: a difference of plug-in ECEs must get no star."""
    stars = {change.metric: change.p_holm < 0.05 for change in calibrated_pair.changes
             if change.p_holm is not None}  # fmt: skip
    assert stars == {"accuracy": True, "nll": True, "aurc": True,
                     "squared_calibration_error": False}  # fmt: skip


def test_an_interval_and_a_test_stand_only_beside_the_same_quantity(full):
    logits, labels = sample()
    changes = {c.metric: c for c in full.changes if c.after == "other"}
    assert changes["ece"].p_value is changes["ece"].p_holm is None
    assert np.isfinite(changes["ece"].low)
    sides = evaluated(logits, labels), evaluated(logits[:, ::-1], labels)
    expected, actual = inference.compare_calibration(*sides), changes["squared_calibration_error"]
    numbers = [actual.value, actual.low, actual.high, actual.p_value]
    np.testing.assert_allclose(numbers, expected[:4], rtol=1e-4)
    found = full.value("squared_calibration_error", "other")
    assert found == pytest.approx(expected.error_b.value, rel=1e-5)
    for metric in ("nll", "squared_calibration_error"):
        both = [change for change in full.changes if change.metric == metric]
        wanted = inference.holm([change.p_value for change in both])
        assert len(both) == 2
        np.testing.assert_allclose([change.p_holm for change in both], wanted)


def test_a_value_outside_its_interval_is_never_shown_without_the_reason(tmp_path):
    logits, labels = sample(60, 4)  # of a calibrated model the resampled errors lie above its own
    both = {"metrics": ["nll", "adaptive_ece"], "num_resamples": 100}
    actual = report.score(logits / 2.5, labels, num_bins=30, method="percentile", **both)
    outside = {row.metric for row in actual.rows if not row.low <= row.value <= row.high}
    assert outside
    assert "nll" not in outside
    text = str(actual)
    for row in actual.rows:
        assert (f"{row.value:.4f}† [" in text) == (row.metric in outside)
    reason = "† outside its own interval: the resamples are not centered on it."
    assert reason in text
    for row in csv.DictReader(io.StringIO(results.as_csv(actual))):
        assert (reason in row["note"]) == (row["metric"] in outside)
    figure = report.pictures(actual)["intervals"]
    marked = {axes.get_xlabel() for axes in figure.axes if axes.texts}
    assert marked == outside
    assert reason in " ".join(figure.get_supxlabel().split())


def nan_metric(name):
    def function(logits, labels=None, weights=None):
        """Compute NaN."""

    function.__name__ = name
    return metrics.Metric(
        function, metrics.nll.prepare, lambda sums: jnp.nan * metrics.nll.finish(sums)
    )


def test_metrics_without_a_value_are_saved(tmp_path):
    two = {"lost": nan_metric("lost"), "nll": metrics.nll}
    actual = report.score(*sample(50), metrics=two, num_resamples=20)
    drawn = report.pictures(actual)["intervals"]
    assert [axes.get_xlabel() for axes in drawn.axes] == ["nll"]
    assert "no finite value: lost (as given)" in drawn.get_supxlabel()
    lost = dataclasses.replace(actual, rows=actual.rows[:1])
    assert lost.save(tmp_path)[4:] == ["reliability.png"]
    assert "nan: the metric has no value on these examples." in str(lost)
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["metrics"][0]["value"] is None


def test_a_value_without_an_interval_is_drawn_alone():
    whole = (1.0, 0.5, 2.0)
    rows = [("m", "a", whole), ("m", "b", (1.0, np.nan, 2.0)), ("m", "c", (np.nan, 0.5, 2.0))]
    by_method, note = figures.drawable(rows)
    assert (by_method, "c (m)" in note) == ({"m": {"a": whole, "b": 1.0}}, True)
    assert figures.drawable(rows[:2])[1] is None
    ends = (0, 0), (1, 1 - 9e-7), (1, 1 + 1.1e-6), (1, 1 - 1.05e-6)
    kinds = [caveats.shown(value, value, high, "basic").interval for value, high in ends]
    assert kinds == ["none", "none", "basic", "basic"]
    word = "0123456789abcdefghijklmnopqrstu"
    shortened = {word[1:]: word[1:], word: "0123456789abcd...ijklmnopqrstu"}
    assert caveats.shortened([word[1:], word]) == shortened
    assert caveats.shortened([word, word + word]) == {word: word, word + word: word + word}
    assert caveats.fewer(dict.fromkeys("abcdef", 9), 10, "{}") == [
        "Fewer than 10 a: 9, b: 9, c: 9, d: 9, e: 9, ... (6 in all)"
    ]


def test_defaults_are_the_recorded_ones():
    assert_recorded("report")


def test_lines_of_text_are_no_longer_than_the_terminal():
    table = [["metric", "A", "bins"], ["error", ".1", ""], ["ece", ".2", "15"]]
    first, second = "metric  A\nerror   .1\nece     .2", "metric  bins\nece     15"
    assert render.aligned(table, 12) == f"{first}\n\n{second}"
    table = [["g", "model", "a", "b"], ["x", "A", "1", "2"], ["x", "B", "3", "4"]]
    assert render.aligned(table, 12).splitlines()[5:] == ["x  A      2", "x  B      4"]


OF_ANSWERS = ["error", "ece", "signed_gap"]


@pytest.fixture(scope="module")
def examples():
    """Labels drawn from the softmax of the logits, which are calibrated."""
    random = np.random.default_rng(3)
    logits = 2 * random.normal(size=(1500, 3)).astype(np.float32)
    p = softmax(logits, axis=1)
    labels = (random.random((1500, 1)) > np.cumsum(p, axis=1)[:, :-1]).sum(axis=1)
    return logits, labels


@pytest.fixture(scope="module")
def answered(examples):
    logits, labels = examples
    return report.score(
        3 * logits[500:],
        labels[500:],
        name="sure",
        compare={"vague": 0.4 * logits[500:], "calibrated": logits[500:]},
        calibrate="temperature",
        fit_on={"sure": (3 * logits[:500], labels[:500])},
        metrics=OF_ANSWERS,
        num_resamples=200,
    )


def test_what_is_stated_and_what_is_right(answered, examples):
    logits, labels = examples
    right = np.mean(logits[500:].argmax(axis=1) == labels[500:])
    sure, vague, calibrated = answered.answers[:3]
    for line, scale, words in (
        (sure, 3.0, "too sure by"),
        (vague, 0.4, "too unsure, -"),
        (calibrated, 1.0, "not shown to differ,"),
    ):
        stated = np.mean(softmax(scale * logits[500:], axis=1).max(axis=1))
        assert f"{100 * stated:.1f} % stated, {100 * right:.1f} % right: {words}" in line
    gap = answered.row("signed_gap", "sure")
    assert f"too sure by {100 * gap.value:.1f} points [{100 * gap.low:.1f}," in sure
    assert "With temperature " in sure
    assert "temperature" not in vague + calibrated
    assert str(answered).startswith("\n".join(answered.answers))


def test_differences_are_named_only_where_they_are_shown(answered):
    sure_vague, sure_calibrated = answered.answers[3:]
    assert sure_vague.startswith(
        "vague against sure: error not shown to differ, .0 points (p = 1.000); ece not shown to"
    )
    change = next(c for c in answered.changes if (c.metric, c.after) == ("ece", "calibrated"))
    assert change.low < change.high < 0
    points = f"{100 * change.value:.1f} points [{100 * change.low:.1f},"
    assert f"ece differs by {points}" in sure_calibrated


def test_without_the_metric_there_is_a_number_and_no_claim(examples):
    logits, labels = examples
    scored = report.score(3 * logits[:250], labels[:250], metrics=["error"], num_resamples=20)
    (line,) = scored.answers
    assert "% right: difference " in line
    assert "sure" not in line


NOTE = "Fewer than 10 examples"


def rare(positives, *, errors=100, size=250):
    """Return logits and labels with so many examples of class 1 and so many wrong predictions."""
    random = np.random.default_rng(positives)
    labels = np.arange(size) < positives
    wrong = np.zeros(size, bool)
    wrong[random.permutation(size)[:errors]] = True
    score = (0.5 + random.random(size)) * np.where(labels ^ wrong, 1, -1)
    return np.stack([-score, score], axis=1), labels.astype(int)


def notes_of(logits, labels, names, **options):
    scored = report.score(logits, labels, metrics=names, num_resamples=20, **options)
    return [line for line in str(scored).splitlines() if line.startswith(NOTE)]


def test_a_class_of_fewer_than_ten_examples_is_named_beside_its_metrics():
    for name in ("auroc", "mean_iou"):
        (note,) = notes_of(*rare(9), [name, "nll"])
        assert "class 1: 9): the bootstrap intervals of metrics that count" in note
        assert notes_of(*rare(10), [name, "nll"]) == []
    assert notes_of(*rare(9), FEW["metrics"]) == []  # nothing shown hangs on the class


def test_few_wrong_or_right_predictions_are_named():
    """One note for all metrics whose intervals are of resamples."""
    names = ["accuracy", "aurc", "selective_accuracy", "signed_gap"]
    (note,) = notes_of(*rare(100, errors=9), names)
    assert "(wrong predictions of as given: 9): the bootstrap intervals of metrics" in note
    (note,) = notes_of(*rare(100, errors=245), names)
    assert "(right predictions of as given: 5)" in note
    scored = report.score(*rare(100, errors=10), metrics=names, num_resamples=20)
    assert NOTE not in str(scored)
    assert {row.interval for row in scored.rows} == {"percentile"}


@pytest.mark.parametrize("errors", [0, 2, 10])
def test_no_direction_is_claimed_from_few_errors(errors):
    """Of 60 calibrated predictions stated at 97 %, all are right in one set of six."""
    score = np.random.default_rng(0).uniform(3, 4, 60)
    logits, labels = np.stack([0 * score, score], axis=1), (np.arange(60) >= errors).astype(int)
    scored = report.score(logits, labels, metrics=["error", "signed_gap"], num_resamples=20)
    (gap,) = [row for row in scored.rows if row.metric == "signed_gap"]
    assert errors == 2 or not gap.low <= 0 <= gap.high
    claimed = any(words in scored.answers[0] for words in ("too sure", "too unsure", "not shown"))
    assert claimed == (errors == 10)
    warned = f"(wrong predictions of as given: {errors})" in str(scored)
    assert warned == (errors < 10)
