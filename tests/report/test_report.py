"""The report: its numbers are those of the rooms it joins, and its tables say what it did."""

import csv
import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, inference, metrics, report
from calib_jax.report import render
from calib_jax.report.chosen_metrics import convention_of

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
    actual = inference.estimates(metrics.nll, logits, labels, key=key, num_resamples=50)
    (row,) = (r for r in full.rows if r.metric == "nll" and r.predictions == "as given")
    np.testing.assert_allclose([row.low, row.high], [actual.low, actual.high], rtol=1e-5)
    paired = inference.paired_bootstrap(
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
    several = {name: metrics.named(name) for name in ("nll", "ece")}
    key = jax.random.key(0)
    alone = inference.estimates(several, logits[:60], labels[:60], key=key, num_resamples=50)
    for name, expected in alone.items():
        part = few[name, "as given"]
        assert (part.value, part.low, part.high) == pytest.approx(
            tuple(map(float, expected[:3])), rel=1e-5
        )
        assert (part.floor, part.p_value) == (expected.floor, expected.p_value)
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
    text = render.as_text(full, explained=True)
    assert (
        "200 examples in 3 classes; 90% intervals: noise bounds of binned calibration errors, else"
        " percentiles of 50 resamples." in text
    )
    fitted = calibrators.temperature.fit(*sample(seed=1)).temperature
    assert f"temperature fitted on 200 other examples, T = {float(fitted):.4g}." in text
    assert "15 bins of equal width, (lo, hi]" in text
    cut_by_mass = metrics.adaptive_debiased_rms_calibration_error
    assert convention_of(cut_by_mass) == "15 bins of equal mass"
    (ece,) = (r for r in full.rows if r.metric == "ece" and r.predictions == "as given")
    bound = inference.noise_bound(metrics.ece, *sample(), key=jax.random.key(0), num_resamples=50)
    np.testing.assert_allclose([ece.value, ece.low, ece.high], bound[:3], rtol=1e-5)
    assert (ece.interval, ece.floor, ece.p_value) == ("noise bound", *bound[3:])
    assert f"{ece.value:.4f} [{ece.low:.4f}, {ece.high:.4f}]" in text
    assert f"{ece.floor:.4f} p <= .020" in text
    assert ece.p_value == pytest.approx(1 / 51)  # the smallest of 50 draws
    assert "Noise floor: the mean error of a perfectly calibrated model" in text
    assert "squared_calibration_error: debiased" in text
    # Metrics, noise floors, classes, groups, whether the temperature transfers.
    assert full._repr_markdown_().count("\n|---") == 5
    rows = list(csv.DictReader(io.StringIO(render.as_csv(full))))
    tables_of = (full.rows, full.changes, full.classes, full.groups)
    assert len(rows) == sum(map(len, tables_of))
    (nll,) = (
        r
        for r in rows
        if (r["table"], r["metric"], r["predictions"]) == ("metrics", "nll", "as given")
    )
    assert float(nll["value"]) == full.value("nll")
    assert (nll["interval"], nll["floor"], nll["p_value"]) == ("percentile", "", "")
    everything = json.loads(render.as_json(full))
    assert everything["settings"]["examples"] == 200
    assert everything["calibrator"]["params"]["state"]["name"] == "converged"
    assert len(everything["reliability"]["as given"]["accuracy"]) == 15


@pytest.mark.slow
def test_an_accuracy_of_1_has_the_exact_end_of_its_interval():
    labels = np.arange(60) % 3
    logits = 4 * np.eye(3, dtype=np.float32)[labels] + sample(num_rows=60)[0] / 10
    scored = report.score(logits, labels, metrics=["accuracy", "error", "nll"], num_resamples=50)
    accuracy, error, nll = scored.rows
    end = 0.05 ** (1 / 60)  # all 60 are right with a probability of 5 %
    np.testing.assert_allclose([accuracy.low, accuracy.high], [end, 1], atol=1e-6)
    np.testing.assert_allclose([error.low, error.high], [0, 1 - end], atol=1e-6)
    assert nll.low < nll.value < nll.high
    assert "1.0000 [1.0000, 1.0000]" not in str(scored)
    assert "intervals" in report.pictures(scored)
    one_wrong = report.score(logits, np.where(np.arange(60) == 0, 1, labels), metrics=["error"])
    assert one_wrong.rows[0].low == 0 < one_wrong.rows[0].high


def test_classes_and_groups_have_p_values_corrected_for_their_number(full):
    logits, labels = sample()
    key = jax.random.key(0)
    tests = inference.class_errors(logits, labels, key=key, num_resamples=60)  # 20 for each class
    actual = [p for p in full.classes if (p.metric, p.predictions) == ("per_class_ece", "as given")]
    for part, test in zip(actual, tests, strict=True):
        assert part.value == pytest.approx(test.error, abs=1e-6)
        assert (part.floor, part.p_value, part.p_holm) == test[-3:]
        assert np.isnan([part.low, part.high]).all()  # a bootstrap interval would not be valid
    assert all(p.p_holm is None for p in full.classes if p.metric == "per_class_recall")
    groups = [p for p in full.groups if (p.metric, p.predictions) == ("ece", "as given")]
    holm = inference.holm([p.p_value for p in groups])
    assert [p.p_holm for p in groups] == list(holm)
    text = render.as_text(full, explained=True)
    for part in groups:  # 50 draws have no smaller p-value than 1 / 51, and there are two groups
        line = next(line for line in text.splitlines() if line.startswith(f"{part.part} "))
        least = part.p_value == pytest.approx(1 / 51)
        assert (" p <= .0" if least else " p = .0") in line
    smallest = dataclasses.replace(groups[0], p_value=1 / 51, p_holm=2 / 51)
    assert render._with_p(smallest, 1 / 51).endswith("] p <= .040")
    assert f"{actual[0].value:.4f}, noise floor {actual[0].floor:.4f} p " in text
    assert "per_class_ece: all resamples" not in text
    assert "corrected for their number (Holm)" in text


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
    copies = report.score(logits, labels, weights=2 * weights, **FEW)
    assert "If they are copies, repeat the examples." in str(copies)


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
    with pytest.raises(ValueError, match="all 80 rows of the logits look like prob"):
        report.score(np.stack([1 - p, p], 1), labels, **FEW)
    with pytest.raises(ValueError, match="all 80 values of the one column lie in"):
        report.score(p, labels, **FEW)
    with pytest.raises(ValueError, match="must not be negative and must sum to 1"):
        report.score(np.stack([p, p], 1), labels, probabilities=True, **FEW)
    certain = np.array([[1.0, 0.0]] * 80, np.float32)
    actual = report.score(certain, labels, probabilities=True, **FEW)
    assert np.isfinite(actual.value("nll"))


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
    with pytest.raises(
        ValueError, match=r"cross_fit must lie in \[2, 30\], the number of examples, got 31"
    ):
        report.score(logits, labels, calibrate="temperature", cross_fit=31, **FEW)
    with pytest.raises(ValueError, match="'temprature'; did you mean 'temperature'"):
        report.score(logits, labels, calibrate="temprature", cross_fit=5, **FEW)
    with pytest.raises(ValueError, match="did you mean 'ece'"):
        report.score(logits, labels, metrics=["eec"])
    with pytest.raises(TypeError, match="must be a list of names"):
        report.score(logits, labels, metrics="ece")
    with pytest.raises(ValueError, match=r"need labels of shape \(30,\), got \(29,\)"):
        report.score(logits, labels[1:], **FEW)
    for groups in (["a", "b", "c"], [["a", "b"]] * 30):
        with pytest.raises(ValueError, match=r"groups must have shape \(30,\), one number"):
            report.score(logits, labels, groups=groups, **FEW)
    others = sample(num_rows=30, num_classes=5, seed=1)
    with pytest.raises(ValueError, match=r"fit_on has 5 classes, .* to score have 3"):
        report.score(logits, labels, calibrate="temperature", fit_on=others, **FEW)
    with pytest.raises(ValueError, match="labels are not among the 2 classes, 2 is one"):
        report.score(logits, labels, compare={"other": logits[:, :2]}, **FEW)
    wider = np.concatenate([logits, logits[:, :1] - 9], axis=1)  # with a class that never occurs
    scored = report.score(logits, labels, compare={"wider": wider}, **FEW)
    assert scored.changes
    assert any(note.startswith("wider has 4 classes") for note in scored.notes)
    with pytest.raises(ValueError, match="per_class needs models of the same classes"):
        report.score(logits, labels, compare={"wider": wider}, per_class=True, **FEW)
    for useless in ({"fit_on": sample(seed=1)}, {"cross_fit": 5}, {"criterion": ["nll", "ece"]}):
        (name,) = useless
        with pytest.raises(ValueError, match=f"^{name} needs calibrate, the name"):
            report.score(logits, labels, **useless, **FEW)
    both = {"fit_on": sample(seed=1), "cross_fit": 5}
    with pytest.raises(ValueError, match="give fit_on or cross_fit, not both"):
        report.score(logits, labels, calibrate="temperature", **both, **FEW)
    with pytest.raises(ValueError, match="method must be one of 'valid', 'percentile', 'basic'"):
        report.score(logits, labels, method="bca", **FEW)
    with pytest.raises(TypeError, match="a row of the report is one number, and per_class_ece is"):
        report.score(logits, labels, metrics=["accuracy", "per_class_ece"])
    bad = logits.copy()
    bad[4] = np.inf
    with pytest.raises(ValueError, match="1 of 30 rows have NaN or infinite logits"):
        report.score(bad, labels, **FEW)
    scored = report.score(logits, labels, **FEW)
    with pytest.raises(
        KeyError, match="no 'ece' of predictions 'platt'; it has that of 'as given'"
    ):
        scored.value("ece", "platt")
    with pytest.raises(KeyError, match="no metric 'acc'; the nearest of its names: accuracy, "):
        scored.value("acc")


UNTESTED = ["ece", "adaptive_ece", "classwise_ece", "mce", "ks_error"]
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


def test_no_metric_has_an_invalid_p_value_anywhere(calibrated_pair):
    for change in calibrated_pair.changes:
        assert (change.p_value is None) == (change.metric in UNTESTED)
    tested = 0
    explained = render.as_text(calibrated_pair, explained=True)
    for lines in (explained, calibrated_pair._repr_markdown_()):
        for line in lines.splitlines():
            words = line.replace("|", " ").split()
            if words and words[0] in UNTESTED and "[" in line:  # not a line of noise floors
                assert " p " not in line
            tested += bool(words and words[0] in TESTED and (" p = " in line or " p <= " in line))
        (reason,) = [line for line in lines.splitlines() if "No p-value for" in line]
        assert all(name in reason for name in UNTESTED)
    assert tested == 2 * len(TESTED)
    for row in csv.DictReader(io.StringIO(render.as_csv(calibrated_pair))):
        if row["table"] == "changes":
            assert (row["p_value"] == "") == (row["metric"] in UNTESTED)
            assert ("No p-value" in row["note"]) == (row["metric"] in UNTESTED)
    record = json.loads(render.as_json(calibrated_pair))
    for change in record["changes"]:
        assert (change["p_value"] is None) == (change["metric"] in UNTESTED)
    assert any("No p-value" in note for note in record["notes"])


def test_models_that_differ_in_sharpness_alone_differ_in_scores_alone(calibrated_pair):
    """Both are calibrated: a difference of plug-in ECEs must get no star."""
    stars = {change.metric: change.p_holm < 0.05 for change in calibrated_pair.changes
             if change.p_holm is not None}  # fmt: skip
    assert stars == {"accuracy": True, "nll": True, "aurc": True,
                     "squared_calibration_error": False}  # fmt: skip
    legend = "* p < .05 against sharp on the same examples, after Holm's correction for all compar"
    assert legend in calibrated_pair.explanations[0]


@pytest.fixture(scope="module")
def contradicting_pair():
    """Score two calibrated models with a bootstrap interval that excludes 0 beside a large p."""
    random = np.random.default_rng(0)
    vague = random.dirichlet([6.0] * 4, 2000)
    sharp = np.maximum([random.dirichlet(0.4 * p) for p in vague], 1e-30)
    labels = (random.random((2000, 1)) * sharp.sum(1, keepdims=True) > np.cumsum(sharp, 1)).sum(1)
    data = [np.log(p).astype(np.float32) for p in (sharp, vague)] + [labels]
    names = ["nll", "ece", "adaptive_ece", "rms_calibration_error", "classwise_ece"]

    options = {"compare": data[1], "metrics": names, "num_resamples": 100}
    valid, percentile = (
        report.score(data[0], data[2], method=method, **options)
        for method in ("valid", "percentile")
    )
    return valid, percentile, data


@pytest.mark.slow
def test_no_interval_excludes_0_beside_a_large_p(contradicting_pair):
    valid, percentile, (sharp, vague, labels) = contradicting_pair
    by_metric, bootstrap = ({c.metric: c for c in s.changes} for s in (valid, percentile))
    kinds = {metric: change.interval for metric, change in by_metric.items()}
    assert kinds == {
        "nll": "percentile",
        "ece": "noise bound",
        "adaptive_ece": "noise bound",
        "rms_calibration_error": "none",
        "classwise_ece": "percentile",
        "squared_calibration_error": "normal",
    }
    excluded = []
    for name, equal_mass in (("ece", False), ("adaptive_ece", True)):
        change, other = by_metric[name], bootstrap[name]
        assert change.p_value is other.p_value is None
        assert change.low <= 0 <= change.high
        excluded.append(not other.low <= 0 <= other.high)
        options = {"key": jax.random.key(0), "num_resamples": 100, "equal_mass": equal_mass}
        wanted = inference.compare_ece(sharp, vague, labels, **options)
        numbers = [change.value, change.low, change.high]
        np.testing.assert_allclose(numbers, wanted[:3], rtol=1e-9)
        assert f"{change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}] " in str(valid)
    assert any(excluded)  # the bootstrap of this pair excludes 0
    assert by_metric["squared_calibration_error"].p_value > 0.1
    root = by_metric["rms_calibration_error"]
    assert np.isnan([root.low, root.high]).all()
    assert root.p_value is None


def test_weights_that_are_no_counts_have_no_interval_of_a_calibration_error():
    logits, labels = sample()
    options = {"compare": 0.5 * logits, "metrics": ["nll", "ece"], "num_resamples": 50}
    scored = report.score(logits, labels, weights=0.5 + np.arange(200) % 2 / 3, **options)
    nll, ece = scored.changes
    assert (nll.interval, ece.interval, ece.p_value) == ("percentile", "none", None)
    assert np.isnan([ece.low, ece.high]).all()
    text = render.as_text(scored, explained=True)
    assert "No interval of the difference of ece" in text
    assert "need weights that count" in text


def test_several_predictions_are_corrected_by_holm():
    logits, labels = sample()
    scored = report.score(
        logits, labels, calibrate="temperature", fit_on=sample(seed=1), compare=0.5 * logits,
        metrics=["nll", "ece"], num_resamples=100,
    )  # fmt: skip
    for metric in ("nll", "squared_calibration_error"):
        changes = [change for change in scored.changes if change.metric == metric]
        assert len(changes) == 2
        wanted = inference.holm([change.p_value for change in changes])
        np.testing.assert_allclose([change.p_holm for change in changes], wanted)
    by_squared = [c.p_value for c in scored.changes if c.metric == "squared_calibration_error"]
    wanted = inference.compare_calibration(logits, 0.5 * logits, labels).p_value
    assert by_squared[1] == pytest.approx(wanted, rel=1e-4)
    rows = list(csv.DictReader(io.StringIO(render.as_csv(scored))))
    assert [row["p_holm"] != "" for row in rows if row["table"] == "changes"] == [
        metric != "ece" for metric in ("nll", "nll", "ece", "ece", "", "")
    ]
    assert ", Holm " in str(scored)


def outside_its_interval(method="percentile"):
    """Score a calibrated model, whose resampled ECE lies above its ECE; more noise, few rows."""
    logits, labels = sample(60, 4)
    three = ["nll", "ece", "adaptive_ece"]
    return report.score(logits / 2.5, labels, metrics=three, num_bins=30, method=method)


def test_a_value_outside_its_interval_is_never_shown_without_the_reason(tmp_path):
    actual = outside_its_interval()
    outside = {row.metric for row in actual.rows if not row.low <= row.value <= row.high}
    assert outside
    assert "nll" not in outside
    text = str(actual)
    for row in actual.rows:
        assert (f"{row.value:.4f}† [" in text) == (row.metric in outside)
    reason = "† outside its own interval: the resamples are not centered on it."
    assert reason in text
    assert reason in actual._repr_markdown_()
    assert any(reason in note for note in json.loads(render.as_json(actual))["notes"])
    for row in csv.DictReader(io.StringIO(render.as_csv(actual))):
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


@pytest.mark.parametrize("others", [{"nll": metrics.nll}, {}])
def test_metrics_without_a_value_are_saved(tmp_path, others):
    logits, labels = sample(50)
    actual = report.score(
        logits, labels, metrics={"lost": nan_metric("lost"), **others}, num_resamples=20
    )
    names = actual.save(tmp_path)
    assert ("intervals.png" in names) == bool(others)
    assert "reliability.png" in names
    assert "nan: the metric has no value on these examples." in str(actual)
    record = json.loads((tmp_path / "report.json").read_text())
    assert record["metrics"][0]["value"] is None
    if others:
        figure = report.pictures(actual)["intervals"]
        assert [axes.get_xlabel() for axes in figure.axes] == ["nll"]
        assert "no finite value: lost (as given)" in figure.get_supxlabel()


@pytest.mark.parametrize("counting", [1, 13])
def test_fewer_examples_than_bins_are_scored(counting):
    random = np.random.default_rng(0)
    logits = random.standard_normal((20, 4)).astype(np.float32)
    labels, weights = random.integers(0, 4, 20), np.arange(20) < counting
    kind = {"metrics": ["adaptive_ece", "ece"], "num_resamples": 4}
    some = report.score(logits, labels, weights=weights, **kind)
    alone = report.score(logits[:counting], labels[:counting], **kind)
    for name in kind["metrics"]:
        assert some.value(name) == pytest.approx(alone.value(name), rel=1e-5)


def test_no_calibrator_is_fitted_on_the_examples_that_are_scored():
    logits, labels = sample(30)
    order = np.random.default_rng(0).permutation(30)
    padded = np.concatenate([logits, np.ones((2, 3), np.float32)]), np.append(labels, [255, -1])
    for held_out in (
        (logits, labels),
        (logits.astype(np.float64), labels),
        (logits[order], labels[order]),
        (*padded, np.append(np.ones(30), [0, 0])),
    ):
        with pytest.raises(
            ValueError, match="30 of 30 scored examples are also among the 30 of fit_on"
        ):
            report.score(logits, labels, calibrate="temperature", fit_on=held_out, **FEW)
    p = np.asarray(jax.nn.softmax(logits))
    options = {"calibrate": "temperature", "probabilities": True, **FEW}
    with pytest.raises(
        ValueError, match="30 of 30 scored examples are also among the 30 of fit_on"
    ):
        report.score(p, labels, fit_on=(p.round(6), labels), **options)
    others = (logits, (labels + 1) % 3)  # other labels, so other examples
    assert report.score(logits, labels, calibrate="temperature", fit_on=others, **FEW).calibrator
