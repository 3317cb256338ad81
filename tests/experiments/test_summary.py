"""Many runs in one table: every number against what one computes by hand."""

import csv
import dataclasses
import functools
import io
import json
import sys

import jax
import numpy as np
import pytest
import scipy.stats

from calib_jax import calibrators, inference, metrics
from experiments.reports import comparison, pages, streamed_scores, summary, summary_text
from tests.experiments.processes import ROOT
from tests.selection import first_case

NUM_BINS = 10
FILES = ("report.md", "sweep.csv", "sweep.json")
summarize = functools.partial(summary.summarize, baseline="a", num_bins=NUM_BINS, num_resamples=200)
CALIBRATION = {"ece", "adaptive_ece", "classwise_ece"}
UNTESTED = {"classwise_ece"}  # no test compares its plug-in values


def runs(losses=("a", "b"), seeds=3, examples=200):
    """Runs of two models, the second far too sure of itself."""
    actual = []
    labels = np.random.default_rng(0).integers(4, size=examples)
    for place, loss in enumerate(losses):
        for seed in range(seeds):
            random = np.random.default_rng([place, seed])

            def logits(labels, random=random, place=place):
                noise = random.normal(size=(len(labels), 4))
                return ((1 + 3 * place) * (noise + np.eye(4)[labels])).astype(np.float32)

            rows = [
                {"epoch": e, "step": e, "validation_error": e / 9, "validation_nll": seed}
                for e in (1.0, 2.0)
            ]
            sets = (logits(labels), labels), (logits(labels), labels)
            actual.append(summary.Run(loss, seed, *sets, rows))
    return actual


@pytest.fixture(scope="module")
def compiled():
    """How many bootstraps were compiled for `found`, which is made when it is first asked for."""
    return {}


@pytest.fixture(scope="module")
def actual(compiled):
    about = {"what": "Two models.", "num_bins": NUM_BINS}
    samples = sys.modules["calib_jax.inference.resamples.bootstrap"]._samples
    before = samples._cache_size()
    made = summarize(runs(), about=about)
    compiled["bootstraps"] = samples._cache_size() - before
    return made


@pytest.fixture(scope="module")
def saved(actual, tmp_path_factory):
    """The folder of `actual` with all its figures, and the names of its files."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, summary_text.save(actual, folder)


@pytest.fixture
def texts_only(monkeypatch):
    """Leave out the figures of `save`: drawing them takes most of its time."""
    monkeypatch.setattr(summary_text, "pictures", lambda _: {})


def cell(actual, loss, phase, metric):
    (one,) = (c for c in actual.cells if (c.loss, c.phase, c.metric) == (loss, phase, metric))
    return one


@pytest.mark.slow
def test_models_of_one_size_share_one_compiled_bootstrap(actual, compiled):
    """Six runs, before and after a temperature, some of them four times as sharp as others."""
    assert compiled["bootstraps"] == 1


@pytest.mark.parametrize("metric", ["error", "ece"])
def test_values_are_means_over_seeds(actual, metric):
    options = {"num_bins": NUM_BINS} if metric == "ece" else {}
    for loss in ("a", "b"):
        values = [
            float(metrics.named(metric, **options)(*run.test)) for run in runs() if run.loss == loss
        ]
        one = cell(actual, loss, summary.BEFORE, metric)
        assert one.value == pytest.approx(np.mean(values), rel=1e-6)
        assert one.sd == pytest.approx(np.std(values, ddof=1), rel=1e-5)
        assert one.n == 3


def test_after_is_with_a_temperature_of_the_validation_set(actual):
    run = runs()[3]
    fit = calibrators.temperature.fit(*run.validation)
    assert actual.temperatures[summary.AFTER]["b"][0] == pytest.approx(
        float(fit.temperature), rel=1e-6
    )
    own = [run for run in runs() if run.loss == "b"]
    values = [
        metrics.nll(
            calibrators.temperature.apply(calibrators.temperature.fit(*r.validation), r.test[0]),
            r.test[1],
        )
        for r in own
    ]
    assert cell(actual, "b", summary.AFTER, "nll").value == pytest.approx(np.mean(values), rel=1e-5)
    before, after = (cell(actual, "b", p, "nll").value for p in (summary.BEFORE, summary.AFTER))
    assert after < before


@pytest.mark.slow
def test_a_temperature_without_an_optimum_is_named_and_not_tested(actual):
    """All validation examples of one model are right, so its NLL falls with T towards 0."""
    labels = runs()[0].validation[1]
    right = (9 * np.eye(4, dtype=np.float32)[labels], labels)
    certain = [
        dataclasses.replace(run, validation=right) if run.loss == "b" else run for run in runs()
    ]
    about = {"what": "Two models.", "num_bins": NUM_BINS}
    made = summarize(certain, about=about)
    for one in made.cells:
        if (one.loss, one.phase) == ("b", summary.AFTER):
            assert one.p is one.p_holm is one.p_seeds is None
            assert one.unsettled == "no_optimum"
        else:
            assert one.p == cell(actual, one.loss, one.phase, one.metric).p
    written = summary_text.text(made)
    assert "(no_optimum)" in next(
        line for line in written.splitlines() if "b  " in line and "(no" in line
    )
    assert "b after temperature: the fit did not converge (no_optimum)" in written
    backwards = summarize(certain, baseline="b", about=about)
    assert {one.p for one in backwards.cells if one.phase == summary.AFTER} == {None}


@pytest.mark.slow
def test_several_temperatures_are_side_by_side(tmp_path):
    criteria = ["nll", "ece", "adaptive_ece:0.01"]
    several = summarize(runs(seeds=1), criteria=criteria)
    run = runs(seeds=1)[1]
    for criterion, step in (("ece", 0.1), ("adaptive_ece:0.01", 0.01)):
        phase = f"after temperature by {criterion}"
        (temperature,) = several.temperatures[phase]["b"]
        assert temperature / step == pytest.approx(round(temperature / step), abs=1e-3)
        value = metrics.ece(run.test[0] / np.float32(temperature), run.test[1], num_bins=NUM_BINS)
        assert cell(several, "b", phase, "ece").value == pytest.approx(float(value), rel=1e-4)
    names = summary_text.save(several, tmp_path)
    assert "reliability_after_adaptive_ece_0.01.png" in names
    text = summary_text.text(several)
    rows = [line.split()[:3] for line in text.split("\nafter temperature\n")[1].splitlines()]
    by_exact = several.temperatures["after temperature by nll"]["b"][0]
    assert rows[0] == ["loss", "T", "by"]
    assert rows[4] == ["b", "nll", f"{by_exact:.2f}"]
    assert [row[1] for row in rows[4:7]] == criteria
    assert max(map(len, text.split("difference to")[0].splitlines()[1:])) < 160
    how = "T by ece: the first minimum of ece on 0.1, 0.2, ..., 10, on the validation set."
    assert how in text
    assert how in (tmp_path / "report.md").read_text()
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert record["criteria"] == {f"after temperature by {each}": each for each in criteria}
    for wrong in (["nll", "eec"], ["nll", "nll"], ["ece:0"]):
        with pytest.raises(ValueError, match=r"did you mean 'ece'|several different|must lie in"):
            summary.phases_of(wrong)


def streamed(run, calibrate="temperature"):
    """The run as one whose logits were not kept."""
    scores = streamed_scores.score(
        lambda: [(*run.test, np.ones(len(run.test[1])))],
        summary.CELLS,
        num_bins=NUM_BINS,
        calibrate=calibrate,
        fit_on=lambda: [(*run.validation, np.ones(len(run.validation[1])))],
    )
    return dataclasses.replace(run, validation=(), test=(), streamed=scores)


@pytest.mark.slow
def test_a_loss_without_rows_has_its_values_and_no_intervals(tmp_path):
    """Both as the baseline and against one."""
    of_a, of_b = runs(seeds=1)
    actual = summarize([of_a, of_b])
    for mixed, alone in (([of_a, streamed(of_b)], "b"), ([streamed(of_a), of_b], "a")):
        made = summarize(mixed)
        assert made.streamed == [alone]
        for phase in (summary.BEFORE, summary.AFTER):
            assert list(made.reliability[phase]) == ["ab".replace(alone, "")]
        for one, other in zip(made.cells, actual.cells, strict=True):
            assert one.value == pytest.approx(other.value, rel=2e-4, abs=2e-5)
            assert np.isnan([one.low, one.high]).all() == (one.loss == alone)
            if one.loss == "b":
                assert one.difference == pytest.approx(other.difference, rel=2e-3, abs=5e-5)
            assert (one.p, one.difference_low, one.difference_high) == (None, None, None)
        line = f"The logits of {alone} were not kept: values from streamed statistics, without in"
        text = summary_text.text(made)
        assert line in text
        assert "nan" not in text
        assert "p < .05" not in text
        assert "No p-value for" not in text
        assert line in pages.as_markdown(summary_text.page(made, {}))
    assert "reliability.png" in summary_text.save(made, tmp_path)
    assert line in json.loads((tmp_path / "sweep.json").read_text())["notes"][0]


@first_case
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.usefixtures("texts_only")
def test_equal_resamples_are_no_interval(seeds, tmp_path):
    """No error on 18 examples is none in every resample, and certain all the same it is not."""
    perfect = []
    for run in runs(seeds=seeds, examples=18):
        logits, labels = run.test
        sure = logits / 4 + 6 * np.eye(4, dtype=np.float32)[labels]
        perfect.append(dataclasses.replace(run, test=(sure, labels)))
    made = summarize(perfect, num_resamples=100, criteria=[])
    for loss in "ab":
        one = cell(made, loss, summary.BEFORE, "error")
        assert (one.value, one.interval) == (0, "none")
        assert np.isnan([one.low, one.high]).all()
        assert cell(made, loss, summary.BEFORE, "nll").low > 0
    text = summary_text.text(made)
    assert "[.000, .000]" not in text.replace("±.000", "")
    line = "No interval of error: all resamples have the same value"
    assert line in text
    part = comparison.Part(comparison.ALONE, list(range(seeds)), made)
    about = {"baseline": "a", "examples": 18, "classes": 4, "level": 0.9}
    about |= {"resamples": 100, "num_bins": NUM_BINS}
    compared = comparison.Comparison([], [part], [], [], about)
    table = comparison.text(compared)
    assert line in table
    assert "0.0000 [0.0000, 0.0000]" not in table.replace("+0.0000 [+0.0000", "")
    summary_text.save(made, tmp_path)
    first, *_ = csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text()))
    assert first["note"].startswith(line)


@pytest.mark.slow
def test_seeds_without_rows_are_tested_over_the_seeds():
    five = [streamed(run, calibrate="") for run in runs(seeds=5)]
    made = summarize(five, criteria=[])
    one = cell(made, "b", summary.BEFORE, "error")
    values = [[float(metrics.error(*r.test)) for r in runs(seeds=5) if r.loss == k] for k in "ab"]
    assert one.p_seeds == pytest.approx(scipy.stats.ttest_rel(*values).pvalue, rel=1e-3)
    assert {one.phase for one in made.cells} == {summary.BEFORE}
    assert "after temperature" not in summary_text.text(made)
    with pytest.raises(ValueError, match="a seed 0 has streamed values without a calibrator, and"):
        summarize(five)
    with pytest.raises(
        ValueError, match="a seed 0 has streamed values with 10 bins, and the table"
    ):
        summarize(five, num_bins=15, criteria=[])


def test_intervals_are_of_the_mean_over_seeds(actual):
    samples = [
        inference.bootstrap(metrics.error, *run.test, key=jax.random.key(0), num_resamples=200)
        for run in runs()
        if run.loss == "a"
    ]
    seeds = [float(metrics.error(*run.test)) for run in runs() if run.loss == "a"]
    of_mean = np.var(np.mean(samples, axis=0))
    of_both = (np.mean([np.var(row) for row in samples]) - of_mean) / 2
    of_seeds = np.var(seeds, ddof=1) / 3
    variance = max(of_seeds + of_mean - of_both, of_seeds, of_mean)
    half = np.sqrt(variance) * scipy.stats.t(2 * (variance / of_seeds) ** 2).ppf(0.95)
    one = cell(actual, "a", summary.BEFORE, "error")
    assert (one.low, one.high) == pytest.approx((one.value - half, one.value + half), rel=1e-5)
    assert one.interval == "examples and seeds"
    assert "90% interval of that mean over the seeds and the test examples" in summary_text.text(
        actual
    )


@pytest.mark.usefixtures("texts_only")
def test_intervals_of_calibration_errors_are_noise_bounds(actual, tmp_path):
    single = summarize(runs(seeds=1))
    kinds = {one.metric: one.interval for one in single.cells}
    assert kinds == {
        name: "noise bound" if name in CALIBRATION else "percentile" for name in summary.CELLS
    }
    run = runs(seeds=1)[0]
    ece = metrics.named("ece", num_bins=NUM_BINS)
    bound = inference.noise_bound(ece, *run.test, key=jax.random.key(0), num_resamples=200)
    one = cell(single, "a", summary.BEFORE, "ece")
    assert (one.low, one.high) == pytest.approx((bound.low, bound.high), abs=0.01)
    assert "interval of that mean over the test examples" in summary_text.text(single)
    of_seeds = cell(actual, "b", summary.BEFORE, "ece")
    assert of_seeds.interval == "noise bound and seeds"
    assert 0 < of_seeds.low < of_seeds.value < of_seeds.high
    summary_text.save(single, tmp_path)
    with (tmp_path / "sweep.csv").open(newline="") as file:
        assert {row["interval"] for row in csv.DictReader(file)} == {"noise bound", "percentile"}


def test_a_difference_that_is_there_is_found_and_one_that_is_not_is_not(actual):
    assert cell(actual, "a", summary.BEFORE, "nll").p is None  # the baseline
    assert cell(actual, "b", summary.BEFORE, "nll").p < 0.02
    twin = [*runs(("a",)), *(dataclasses.replace(run, loss="b") for run in runs(("a",)))]
    same = summarize(twin)
    assert cell(same, "b", summary.BEFORE, "nll").p == 1.0


@pytest.mark.slow
def test_over_seeds_from_five_on(actual):
    assert cell(actual, "b", summary.BEFORE, "error").p_seeds is None
    five = runs(seeds=5)
    of_five = summarize(five)
    for one in of_five.cells:
        assert (one.p_seeds is not None) == (one.loss == "b" and one.metric not in CALIBRATION)
    one = cell(of_five, "b", summary.BEFORE, "error")
    values = [[float(metrics.error(*r.test)) for r in five if r.loss == name] for name in "ab"]
    assert one.p_seeds == pytest.approx(scipy.stats.ttest_rel(*values).pvalue, rel=1e-4)
    # A run of each failed, and not of the same seed: there are as many, but they are no pairs.
    unlike = [*five[:-1], dataclasses.replace(five[-1], seed=9)]
    actual = summarize(unlike)
    assert {one.p_seeds for one in actual.cells} == {None}


@pytest.mark.slow
def test_the_p_value_of_a_calibration_error_is_that_of_squared_errors(actual, saved):
    """The second model is far too sure of itself; plug-in differences alone would not show it."""
    for one in actual.cells:
        assert (one.p is not None) == (one.loss == "b" and one.metric not in UNTESTED)
        assert one.p_holm == one.p  # one comparison
    sides = [[run.test[0] for run in runs() if run.loss == loss] for loss in "ab"]
    wanted = inference.compare_calibration(*sides, runs()[0].test[1], num_bins=NUM_BINS).p_value
    own, other = (
        [float(metrics.ece(*run.test, num_bins=NUM_BINS)) for run in runs() if run.loss == loss]
        for loss in "ba"
    )
    ece = cell(actual, "b", summary.BEFORE, "ece")
    assert ece.p == cell(actual, "b", summary.BEFORE, "adaptive_ece").p
    assert ece.p == pytest.approx(wanted, rel=1e-6)
    assert ece.p < 0.0005
    assert ece.difference == pytest.approx(np.mean(own) - np.mean(other), rel=1e-4)
    assert 0.05 < ece.difference_low < ece.difference < ece.difference_high
    options = {"key": jax.random.key(0), "num_bins": NUM_BINS, "num_resamples": 200}
    bounds = inference.compare_ece(*sides, runs()[0].test[1], **options)
    np.testing.assert_allclose([ece.difference_low, ece.difference_high], bounds[1:3], rtol=1e-6)
    assert cell(actual, "a", summary.BEFORE, "ece").change is None
    folder, _ = saved
    written = f"{ece.difference:+.4f} [{ece.difference_low:+.4f}, {ece.difference_high:+.4f}]"
    legend = "* p < .05 against a on the same examples, after Holm's correction for all losses"
    reason = "p of ece, adaptive_ece and other top-label errors in bins: of the difference of deb"
    kind = "Interval of a difference of ece or adaptive_ece: it bounds the noise of both errors"
    for text in (summary_text.text(actual), (folder / "report.md").read_text()):
        assert f"{ece.value:.3f}".removeprefix("0") + "* ±" in text
        assert f"{written}, p <= .001" in text
        assert legend in text
        assert reason in text
        assert kind in text
    record = json.loads((folder / "sweep.json").read_text())
    assert any("No p-value for classwise_ece:" in note for note in record["notes"])
    assert reason in " ".join(record["notes"])
    with (folder / "sweep.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            untested = row["loss"] == "b" and row["metric"] in UNTESTED
            assert ("No p-value for" in row["note"]) == untested
            assert (row["p"] == "") == (row["p_holm"] == "") == (row["loss"] == "a" or untested)
            bounded = row["loss"] == "b" and row["metric"] in ("ece", "adaptive_ece")
            assert (row["difference_interval"] == "noise bound") == bounded
            assert (row["difference_interval"] == "") == (row["loss"] == "a")


def test_several_losses_are_corrected_by_holm():
    """A star needs an adjusted p-value below 5 %."""
    made = summarize(runs(("a", "b", "c"), seeds=1))
    for metric in set(summary.CELLS) - UNTESTED:
        cells = [cell(made, loss, summary.BEFORE, metric) for loss in "abc"]
        assert (cells[0].p, cells[0].p_holm) == (None, None)
        wanted = inference.holm([one.p for one in cells[1:]])
        np.testing.assert_allclose([one.p_holm for one in cells[1:]], wanted)
    first = cell(made, "b", summary.BEFORE, "ece")
    for p_holm, star in ((0.049, "*"), (0.051, "")):
        moved = [dataclasses.replace(c, p=0.03, p_holm=p_holm) if c is first else c
                 for c in made.cells]  # fmt: skip
        number = f"{first.value:.3f}".removeprefix("0")
        text = summary_text.text(dataclasses.replace(made, cells=moved))
        assert f"{number}{star} [" in text


@pytest.mark.slow
def test_weights_that_are_no_counts_leave_calibration_errors_without_a_test():
    weighted = [
        dataclasses.replace(run, test=(*run.test, np.full(200, 0.5, np.float32)))
        for run in runs(seeds=1)
    ]
    made = summarize(weighted)
    assert cell(made, "b", summary.BEFORE, "ece").p is None
    assert cell(made, "b", summary.BEFORE, "nll").p is not None
    ece = cell(made, "b", summary.BEFORE, "ece")
    assert (ece.difference_low, ece.difference_high, ece.difference_interval) == (
        None,
        None,
        "none",
    )
    assert f"{ece.difference:+.4f} " in summary_text.text(made)
    assert "calibration errors need weights that count examples" in summary_text.text(made)
    assert "No interval of the difference of ece, adaptive_ece" in summary_text.text(made)
    assert "Intervals of ece, adaptive_ece are bootstrap intervals: noise" in summary_text.text(
        made
    )


def test_one_seed_and_seeds_that_failed(tmp_path):
    fewer = [run for run in runs() if run.loss == "a" or run.seed == 0]
    made = summarize(fewer, criteria=[])
    assert "over 3 seeds (b: 1)" in summary_text.text(made)
    summary_text.save(made, tmp_path)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    written = json.loads((tmp_path / "sweep.json").read_text(), parse_constant=refuse)
    assert any(cell["sd"] is None for cell in written["cells"])


def pixels(loss, seed):
    """A run on 40 images of 5 x 5 pixels, of which each is wholly right or wholly wrong."""
    sets = []
    for part in (0, 1):
        labels = np.random.default_rng(part).integers(4, size=(40, 5, 5))
        right = np.random.default_rng([part, seed, ord(loss)]).random((40, 1, 1)) < 0.7
        logits = 2 * np.eye(4, dtype=np.float32)[np.where(right, labels, (labels + 1) % 4)]
        weights = np.ones(labels.shape, np.float32)
        weights[:, 0] = 0
        sets.append((logits, labels, weights))
    return summary.Run(loss, seed, *sets, [])


@pytest.mark.slow
def test_whole_images_are_drawn_where_pixels_have_labels():
    made = summarize([pixels("a", 1), pixels("b", 1)])
    one, other = (cell(made, loss, summary.BEFORE, "error") for loss in "ab")
    logits, labels, weights = pixels("a", 1).test
    images = np.broadcast_to(np.arange(40)[:, None, None], labels.shape)
    expected = inference.estimates(
        metrics.named("error"), logits, labels, weights, key=jax.random.key(0), num_resamples=200,
        clusters=images,
    )  # fmt: skip
    assert (one.value, one.low, one.high) == pytest.approx([float(x) for x in expected[:3]])
    assert one.high - one.low > 0.15  # of 40 images; of 800 pixels it would be .05
    assert other.difference_high - other.difference_low > 0.15
    bound = inference.noise_bound(
        metrics.ece.with_options(num_bins=NUM_BINS), logits, labels, weights,
        key=jax.random.key(0), clusters=images,
    )  # fmt: skip
    assert cell(made, "a", summary.BEFORE, "ece").high == pytest.approx(bound.high, abs=0.02)
    assert "40 examples of several labels: intervals and tests draw whole" in summary_text.text(
        made
    )


def test_one_loss_is_compared_with_nothing_and_each_step_is_said():
    lines = []
    alone = summarize(runs(("a",), 1), say=lines.append)
    for words in ("difference to", "p < .05", "No p-value"):
        assert words not in summary_text.text(alone)
    assert lines == ["1/1  a: fitting a temperature and drawing 200 resamples for each run"]
    summarize(runs(("a",), 1), criteria=[], say=lines.append)
    assert lines[1:] == ["1/1  a: drawing 200 resamples for each run"]


def test_a_value_outside_its_interval_is_marked(actual, tmp_path, monkeypatch):
    one = cell(actual, "b", summary.BEFORE, "ece")
    apart = dataclasses.replace(one, value=0.1, low=0.2, high=0.3)
    moved = dataclasses.replace(actual, cells=[apart if c is one else c for c in actual.cells])
    figure = summary_text.pictures(moved)["intervals"]
    monkeypatch.setattr(summary_text, "pictures", lambda _: {"intervals": figure})
    summary_text.save(moved, tmp_path)
    reason = "outside its own interval: the resamples are not centered on it"
    for text in (summary_text.text(moved), *((tmp_path / n).read_text() for n in FILES)):
        assert reason in text
    assert ".100*† ±" in summary_text.text(moved)
    assert reason in " ".join(figure.get_supxlabel().split())


def test_numbers_of_ten_and_above_keep_their_digits(actual):
    one = cell(actual, "b", summary.BEFORE, "nll")
    large = dataclasses.replace(one, value=20.5, sd=10.25, low=-0.5, high=30.02)
    moved = dataclasses.replace(actual, cells=[large if c is one else c for c in actual.cells])
    assert "±10.250 [-.500, 30.020]" in summary_text.text(moved)


@pytest.mark.slow
def test_metrics_without_a_value_and_runs_without_curves_are_saved(actual, tmp_path):
    """As of a class that is impossible and yet occurs: the NLL is infinite."""
    cells = [
        dataclasses.replace(c, value=np.inf, low=np.nan, high=np.nan) if c.metric == "nll" else c
        for c in actual.cells
    ]
    names = summary_text.save(dataclasses.replace(actual, cells=cells, curves={}), tmp_path)
    assert "intervals.png" in names
    assert "curves.png" not in names
    assert "(curves.png)" not in (tmp_path / "report.md").read_text()


def test_text_and_files_say_the_same(actual, saved):
    folder, names = saved
    assert sorted(names) == sorted(path.name for path in folder.iterdir())
    one = cell(actual, "b", summary.BEFORE, "nll")
    said = f"{one.value:.3f}*"
    assert said in summary_text.text(actual)
    assert said in (folder / "report.md").read_text()
    record = json.loads((folder / "sweep.json").read_text())
    assert len(record["cells"]) == 2 * 2 * len(summary.CELLS)
    for name in ("intervals", "reliability", "curves"):
        assert f"({name}.png)" in (folder / "report.md").read_text()


def test_the_sweep_of_the_readme_tests_calibration_errors_by_their_squares():
    record = json.loads((ROOT / "experiments" / "results" / "digits_sweep.json").read_text())
    tested = {cell["metric"] for cell in record["cells"] if cell["p"] is not None}
    assert tested == set(summary.CELLS) - {"classwise_ece"}
    assert any("of the difference of debiased squared errors" in note for note in record["notes"])
    for cell in record["cells"]:
        if cell["p"] is not None:
            assert cell["p_holm"] >= cell["p"]
        # An interval that excludes 0 stands beside a small p.
        if cell["metric"] in ("ece", "adaptive_ece") and cell["difference_low"] is not None:
            excludes = cell["difference_low"] > 0 or cell["difference_high"] < 0
            assert not excludes or cell["p"] < 0.1
