"""Many runs in one table: every number against what one computes by hand, intervals over seeds."""

import csv
import dataclasses
import functools
import io
import json
import re

import jax
import numpy as np
import pytest
import scipy.stats

from calib_jax import inference, metrics
from calib_jax.inference.noise_bound import NoiseBound
from calib_jax.report import render
from experiments.evaluation import streamed_scores
from experiments.reports import comparison, run_report, seed_intervals, summary, summary_text

NUM_BINS = 10
summarize = functools.partial(summary.summarize, baseline="a", num_bins=NUM_BINS, num_resamples=200)
CALIBRATION = {"ece", "adaptive_ece", "classwise_ece"}


def runs(losses=("a", "b"), seeds=3):
    """Runs of two models, the second far too sure of itself."""
    actual = []
    labels = np.random.default_rng(0).integers(4, size=200)
    shared = np.random.default_rng(1).normal(size=(200, 4))  # of an example, whatever the seed
    for place, loss in enumerate(losses):
        for seed in range(seeds):
            random = np.random.default_rng([place, seed])

            def logits(labels, random=random, place=place):
                noise = 0.5 * random.normal(size=(len(labels), 4)) + shared
                return ((1 + 3 * place) * (noise + np.eye(4)[labels])).astype(np.float32)

            rows = [
                {"epoch": e, "step": e, "validation_error": e / 9, "validation_nll": seed}
                for e in (1.0, 2.0)
            ]
            sets = (logits(labels), labels), (logits(labels), labels)
            actual.append(summary.Run(loss, seed, *sets, rows))
    return actual


@pytest.fixture(scope="module")
def actual():
    return summarize(runs(), about={"what": "Two models.", "num_bins": NUM_BINS})


@pytest.fixture
def texts_only(monkeypatch):
    """Leave out the figures of `save`: drawing them takes most of its time."""
    monkeypatch.setattr(summary_text, "pictures", lambda _: {})


def cell(actual, loss, phase, metric):
    (one,) = (c for c in actual.cells if (c.loss, c.phase, c.metric) == (loss, phase, metric))
    return one


def errors(loss):
    """The errors of the test examples, by seed."""
    tests = [run.test for run in runs() if run.loss == loss]
    return np.array([logits.argmax(axis=1) != labels for logits, labels in tests])


def test_values_are_means_over_seeds(actual):
    for loss in ("a", "b"):
        values = errors(loss).mean(axis=1)
        one = cell(actual, loss, summary.BEFORE, "error")
        assert one.value == pytest.approx(np.mean(values), rel=1e-6)
        assert one.sd == pytest.approx(np.std(values, ddof=1), rel=1e-5)
        assert one.n == 3


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
    assert "b after temperature: the fit did not converge or is no optimum (no_optimum)" in written
    backwards = summarize(certain, baseline="b", about=about)
    assert {one.p for one in backwards.cells if one.phase == summary.AFTER} == {None}


def streamed(run):
    """The run as one whose logits were not kept."""
    scores = streamed_scores.score(
        lambda: [(*run.test, np.ones(len(run.test[1])))],
        summary.CELLS,
        num_bins=NUM_BINS,
        calibrate="temperature",
        fit_on=lambda: [(*run.validation, np.ones(len(run.validation[1])))],
    )
    return dataclasses.replace(run, validation=(), test=(), streamed=scores)


@pytest.mark.slow
def test_a_loss_without_rows_has_its_values_and_no_intervals(tmp_path):
    """Both as the baseline and against one."""
    of_a, of_b = runs(seeds=1)
    actual = summarize([of_a, of_b])
    of_both = {(one.loss, one.phase, one.metric): one for one in actual.cells}
    for mixed, alone in (([of_a, streamed(of_b)], "b"), ([streamed(of_a), of_b], "a")):
        made = summarize(mixed)
        assert made.streamed == [alone]
        for phase in (summary.BEFORE, summary.AFTER):
            assert list(made.reliability[phase]) == ["ab".replace(alone, "")]
        assert len(made.cells) == len(of_both) - 2  # of the squared error, which needs rows
        for one in made.cells:
            other = of_both[one.loss, one.phase, one.metric]
            assert one.value == pytest.approx(other.value, rel=2e-4, abs=2e-5)
            assert np.isnan([one.low, one.high]).all() == (one.loss == alone)
            if one.loss == "b" and one.metric != summary.SQUARED:
                assert one.difference == pytest.approx(other.difference, rel=2e-3, abs=5e-5)
            assert (one.p, one.difference_low, one.difference_high) == (None, None, None)
        line = f"The logits of {alone} were not kept: values from streamed statistics, without in"
        text = summary_text.text(made)
        assert line in text
        assert "nan" not in text
        assert "p < .05" not in text
        assert "No p-value for" not in text
        assert line in render.as_markdown(summary_text.page(made, {}))
    assert "reliability.png" in summary_text.save(made, tmp_path)
    assert line in json.loads((tmp_path / "sweep.json").read_text())["notes"][0]


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.usefixtures("texts_only")
def test_equal_resamples_are_no_interval(seeds, tmp_path):
    """No error on few examples is none in every resample, and certain all the same it is not."""
    perfect = []
    for run in runs(seeds=seeds):
        logits, labels = run.test
        sure = logits / 4 + 6 * np.eye(4, dtype=np.float32)[labels]
        perfect.append(dataclasses.replace(run, test=(sure, labels)))
    made = summarize(perfect, criteria=[])
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
    about = {"baseline": "a", "examples": 200, "classes": 4, "level": 0.9}
    about |= {"resamples": 200, "num_bins": NUM_BINS}
    compared = comparison.Comparison([], [part], [], [], about)
    table = comparison.text(compared)
    assert line in table
    assert "0.0000 [0.0000, 0.0000]" not in table.replace("+0.0000 [+0.0000", "")
    summary_text.save(made, tmp_path)
    first, *_ = csv.DictReader(io.StringIO((tmp_path / "sweep.csv").read_text()))
    assert first["note"].startswith(line)


def test_intervals_are_of_the_mean_over_seeds(actual):
    """All seeds are resampled together; what 200 resamples tell of a variance is 10 % off."""
    wrong = errors("a")
    one = cell(actual, "a", summary.BEFORE, "error")
    assert one.interval == "examples and seeds"
    resampled = [row[np.random.default_rng(0).integers(200, size=(200, 200))].mean(axis=1)
                 for row in wrong]  # fmt: skip
    by_hand = interval_of(wrong.mean(axis=1), np.array(resampled))
    assert (one.low, one.high) == pytest.approx(by_hand, abs=0.15 * (one.high - one.low))
    samples = np.random.default_rng(1).normal(0.5, [[0.1], [0.2], [0.3]], (3, 50))
    found = seed_intervals.of_samples([0.5, 0.6, 0.7], samples)
    assert found[:2] == pytest.approx(interval_of([0.5, 0.6, 0.7], samples))
    assert "90% interval of that mean over the seeds and the test examples" in summary_text.text(
        actual
    )


def interval_of(values, samples):
    """The interval of a mean over three seeds, by hand."""
    of_mean = np.var(np.mean(samples, axis=0))
    of_both = (np.mean(np.var(samples, axis=1)) - of_mean) / 2
    of_seeds = np.var(values, ddof=1) / 3
    of_examples = max(of_mean - min(of_both, of_seeds), 0)
    student, normal = scipy.stats.t(2).ppf(0.95), scipy.stats.norm.ppf(0.95)
    half = np.sqrt(student**2 * of_seeds + normal**2 * of_examples)
    return np.mean(values) - half, np.mean(values) + half


@pytest.mark.usefixtures("texts_only")
def test_intervals_of_calibration_errors_are_noise_bounds(actual, tmp_path):
    single = summarize(runs(seeds=1))
    kinds = {one.metric: one.interval for one in single.cells}
    assert kinds == {
        name: "noise bound" if name in CALIBRATION else "percentile" for name in summary.CELLS
    } | {summary.SQUARED: "normal"}
    logits, labels = runs(seeds=1)[0].test
    of_all = {name: metrics.named(name, num_bins=NUM_BINS) for name in sorted(CALIBRATION)}
    bounds = inference.noise_bound(of_all, logits, labels, key=jax.random.key(0), num_resamples=200)
    bound = bounds["ece"]
    one = cell(single, "a", summary.BEFORE, "ece")
    assert (one.low, one.high) == pytest.approx((bound.low, bound.high), abs=0.01)
    assert "interval of that mean over the test examples" in summary_text.text(single)
    of_seeds = cell(actual, "b", summary.BEFORE, "ece")
    assert of_seeds.interval == "noise bound and seeds"
    assert 0 < of_seeds.low < of_seeds.value < of_seeds.high
    summary_text.save(single, tmp_path)
    with (tmp_path / "sweep.csv").open(newline="") as file:
        kinds = {row["interval"] for row in csv.DictReader(file)}
    assert kinds == {"noise bound", "percentile", "normal"}
    written = json.loads((tmp_path / "sweep.json").read_text(), parse_constant=refuse)
    assert {cell["sd"] for cell in written["cells"]} == {None}  # of one seed


@pytest.mark.usefixtures("texts_only")
def test_an_interval_and_its_test_are_of_the_same_quantity(actual, tmp_path):
    """The interval of an ECE stands beside no p and no star; the squared error has both."""
    for one in actual.cells:
        if one.metric in CALIBRATION:
            assert one.p is one.p_holm is None
    sides = [[run.test[0] for run in runs() if run.loss == loss] for loss in "ab"]
    wanted = inference.compare_calibration(*sides, runs()[0].test[1], num_bins=NUM_BINS)
    squared = cell(actual, "b", summary.BEFORE, summary.SQUARED)
    numbers = (squared.difference, squared.difference_low, squared.difference_high, squared.p)
    assert numbers == pytest.approx((*wanted[:4],), rel=1e-5)
    assert squared.value == pytest.approx(wanted.error_b.value, rel=1e-5)
    summary_text.save(actual, tmp_path)
    ece = cell(actual, "b", summary.BEFORE, "ece")
    number = f"{ece.value:.3f}".removeprefix("0")
    change = f"{squared.difference:+.4f} [{squared.difference_low:+.4f}"
    for text in (summary_text.text(actual), (tmp_path / "report.md").read_text()):
        assert f"{number} ±" in text
        assert f"{number}*" not in text
        assert f"{change}, {squared.difference_high:+.4f}], p < .001*" in text


def test_a_star_needs_an_adjusted_p_below_5_percent(actual):
    first = cell(actual, "b", summary.BEFORE, "nll")
    for p_holm, star in ((0.049, "*"), (0.051, "")):
        moved = [dataclasses.replace(c, p=0.03, p_holm=p_holm) if c is first else c
                 for c in actual.cells]  # fmt: skip
        number = f"{first.value:.3f}".removeprefix("0")
        text = summary_text.text(dataclasses.replace(actual, cells=moved))
        assert f"{number}{star} ±" in text


def test_seeds_that_failed_are_counted(actual):
    cells = [dataclasses.replace(c, n=1) if c.loss == "b" else c for c in actual.cells]
    assert "over 3 seeds (b: 1)" in summary_text.text(dataclasses.replace(actual, cells=cells))


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


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


def bound(value, low, high, p_value=0.001):
    return NoiseBound(value, low, high, 0.0, p_value)


def test_one_run_has_the_interval_of_its_examples():
    interval = seed_intervals.of_samples([0.5], np.linspace(0, 1, 101)[None])
    assert interval == (pytest.approx(0.05), pytest.approx(0.95), "percentile")
    assert seed_intervals.of_bounds([bound(0.3, 0.1, 0.4)]) == (0.1, 0.4, "noise bound")


def test_no_interval_leaves_the_range_of_its_metric():
    samples = np.array([[0.1, 0.2], [0.7, 0.9]])
    assert seed_intervals.of_samples([0.15, 0.8], samples, most=1.0)[:2] == (0, 1)
    assert seed_intervals.of_samples([0.15, 0.8], samples).high > 1


def test_bounds_of_several_runs_are_widened_by_the_seeds():
    bounds = [bound(0.30, 0.22, 0.40), bound(0.34, 0.28, 0.42), bound(0.35, 0.28, 0.46)]
    low, high, kind = seed_intervals.of_bounds(bounds)
    of_seeds = np.var([0.30, 0.34, 0.35], ddof=1) / 3
    mean = 0.33
    for end, half in ((low, 0.07), (high, 0.4266667 - 0.33)):
        of_examples = (half / scipy.stats.norm.ppf(0.95)) ** 2
        squares = scipy.stats.t(2).ppf(0.95) ** 2 * of_seeds
        wanted = np.sqrt(squares + scipy.stats.norm.ppf(0.95) ** 2 * of_examples)
        assert abs(end - mean) == pytest.approx(wanted, rel=1e-5)
    assert kind == "noise bound and seeds"
    # Equal runs have the interval of one.
    assert seed_intervals.of_bounds(3 * bounds[:1])[:2] == pytest.approx((0.22, 0.40))


def test_the_lower_end_is_0_unless_the_runs_together_reject():
    rejecting, other = bound(0.3, 0.2, 0.4, 0.001), bound(0.3, 0.0, 0.4, 0.06)
    assert seed_intervals.of_bounds([rejecting, other]).low == 0  # 2 x mean p is .061
    assert seed_intervals.of_bounds([rejecting, rejecting, rejecting, other]).low > 0
    assert seed_intervals.of_bounds([bound(0.9, 0.5, 1.0), bound(0.8, 0.5, 1.0)]).high == 1


def leave(folder, **measured):
    """Write what a training of two epochs leaves."""
    folder.mkdir(parents=True)
    names = {"data": {"name": "digits"}, "model": {"name": "mlp"}}
    (folder / "config.json").write_text(json.dumps(names | {"num_bins": 15}))
    rows = [{"epoch": e, "step": 4 * e, "validation_error": 0.5 / e, **measured} for e in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_seeds_of_other_metrics_are_in_one_table_of_those_that_all_have(tmp_path):
    folders = {1: leave(tmp_path / "seed_1", test_error=0.3), 2: leave(tmp_path / "seed_2")}
    assert "pictures/curves.png" in run_report.write_seeds(tmp_path, folders, "Two seeds.")
    page = (tmp_path / "report.md").read_text()
    assert "| seed | epoch | validation error |" in page
    assert "| mean ± sd |  | 0.2500 ± 0.0000 |" in page


def answers():
    random = np.random.default_rng(0)
    z = 2 * random.normal(size=(1000, 10))
    return z, (z + random.gumbel(size=z.shape)).argmax(axis=1)


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (1.5, r"is 1.56: FL-4.9 would bring it to 1. FL-3 would .* 1.17, and be 3 points under"),
        (1.0, "is 1.04: .* FL-3 would .* points under"),
        (0.7, r"is 0.73: even inverse FL-2.0 would leave it at 0.98. FL-3 would .* points under"),
        (
            60.0,
            r"is 62.30: even FL-20.0 would leave it at .*, but .* learned nothing\. FL-3 .*ident",
        ),
    ],
)
def test_a_run_of_cross_entropy_names_the_focal_loss_that_would_calibrate_it(scale, said):
    z, labels = answers()
    note = run_report.focal_note(scale * z, labels)
    assert re.search(said, note), note
    unlabelled = np.r_[labels, np.full(500, 255)], np.r_[np.ones(1000), np.zeros(500)]
    assert run_report.focal_note(scale * np.r_[z, z[:500]], *unlabelled) == note


def test_a_run_at_chance_names_no_focal_loss():
    z, labels = answers()
    shuffled = np.random.default_rng(1).permutation(labels)
    assert "no better than chance" in run_report.focal_note(-z, shuffled)
