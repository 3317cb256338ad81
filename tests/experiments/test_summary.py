"""Many runs in one table: every number against what one computes by hand."""

import json

import jax
import numpy as np
import pytest
import scipy.stats

from calib_jax import calibrators, metrics
from experiments import summary

NUM_BINS = 10


def runs(losses=("a", "b"), seeds=3, examples=200):
    """Runs of two models, the second far too sure of itself."""
    found = []
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
            found.append(summary.Run(loss, seed, *sets, rows))
    return found


@pytest.fixture(scope="module")
def found():
    about = {"what": "Two models.", "num_bins": NUM_BINS}
    return summary.summarise(
        runs(), baseline="a", num_bins=NUM_BINS, num_resamples=200, about=about
    )


def cell(found, loss, phase, metric):
    (one,) = (c for c in found.cells if (c.loss, c.phase, c.metric) == (loss, phase, metric))
    return one


@pytest.mark.parametrize("metric", ["error", "ece"])
def test_values_are_means_over_seeds(found, metric):
    options = {"num_bins": NUM_BINS} if metric == "ece" else {}
    for loss in ("a", "b"):
        values = [
            float(metrics.named(metric, **options)(*run.test)) for run in runs() if run.loss == loss
        ]
        one = cell(found, loss, summary.BEFORE, metric)
        assert one.value == pytest.approx(np.mean(values), rel=1e-6)
        assert one.sd == pytest.approx(np.std(values, ddof=1), rel=1e-5)
        assert one.n == 3


def test_after_is_with_a_temperature_of_the_validation_set(found):
    run = runs()[3]
    fit = calibrators.temperature.fit(*run.validation)
    assert found.temperatures["b"][0] == pytest.approx(float(fit.temperature), rel=1e-6)
    own = [run for run in runs() if run.loss == "b"]
    values = [
        metrics.nll(
            calibrators.temperature.apply(calibrators.temperature.fit(*r.validation), r.test[0]),
            r.test[1],
        )
        for r in own
    ]
    assert cell(found, "b", summary.AFTER, "nll").value == pytest.approx(np.mean(values), rel=1e-5)
    before, after = (cell(found, "b", p, "nll").value for p in (summary.BEFORE, summary.AFTER))
    assert after < before


def test_intervals_are_of_the_mean_over_seeds(found):
    samples = [
        metrics.bootstrap(metrics.error, *run.test, key=jax.random.key(0), num_resamples=200)
        for run in runs()
        if run.loss == "a"
    ]
    low, high = np.quantile(np.mean(samples, axis=0), [0.05, 0.95])
    one = cell(found, "a", summary.BEFORE, "error")
    assert (one.low, one.high) == pytest.approx((low, high), abs=1e-6)
    assert one.low <= one.value <= one.high


def test_a_difference_that_is_there_is_found_and_one_that_is_not_is_not(found):
    assert cell(found, "a", summary.BEFORE, "nll").p is None  # the baseline
    assert cell(found, "b", summary.BEFORE, "nll").p < 0.02
    twin = [*runs(("a",)), *(run.__class__("b", *_rest(run)) for run in runs(("a",)))]
    same = summary.summarise(twin, baseline="a", num_bins=NUM_BINS, num_resamples=200)
    assert cell(same, "b", summary.BEFORE, "nll").p == 1.0


def _rest(run):
    return run.seed, run.validation, run.test, run.rows


def test_over_seeds_from_five_on(found):
    assert cell(found, "b", summary.BEFORE, "error").p_seeds is None
    five = runs(seeds=5)
    one = cell(
        summary.summarise(five, baseline="a", num_bins=NUM_BINS, num_resamples=200),
        "b",
        summary.BEFORE,
        "error",
    )
    values = [[float(metrics.error(*r.test)) for r in five if r.loss == name] for name in "ab"]
    assert one.p_seeds == pytest.approx(scipy.stats.ttest_rel(*values).pvalue, rel=1e-4)


def test_p_values_have_a_floor_and_two_sides():
    assert summary.p_value(np.ones(99)) == pytest.approx(2 / 100)
    assert summary.p_value(-np.ones(99)) == pytest.approx(2 / 100)
    assert summary.p_value(np.zeros(99)) == 1.0
    assert summary.p_value(np.r_[np.ones(95), -np.ones(4)]) == pytest.approx(10 / 100)


def test_text_and_files_say_the_same(found, tmp_path):
    names = summary.save(found, tmp_path)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    one = cell(found, "b", summary.BEFORE, "nll")
    said = f"{one.value:.3f}*"
    assert said in summary.text(found)
    assert said in (tmp_path / "report.md").read_text()
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert len(record["cells"]) == 2 * 2 * len(summary.CELLS)
    for name in ("intervals", "reliability", "curves"):
        assert f"({name}.png)" in (tmp_path / "report.md").read_text()
