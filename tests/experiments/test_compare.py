"""Runs and sweeps side by side: every number against a slow one, and what is refused."""

import csv
import json

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from calib_jax.report import render
from experiments.evaluation import evaluation_record, finished, streamed_scores
from experiments.reports import comparison, summary
from experiments.running import cli
from tests.experiments.processes import finish

# As in test_summary.py, which shares compiled programs.
EXAMPLES, CLASSES, BINS, RESAMPLES = 200, 4, 10, 200


def predictions(part, model, scale):
    """Make a test or validation set, and logits of it that are about right but for a scale.

    All models share the most of their logits: they err on the same examples.
    """
    random = np.random.default_rng(part)
    common = 0.8 * random.normal(size=(EXAMPLES, CLASSES))
    labels = (common + random.gumbel(size=common.shape)).argmax(1)
    own = 0.2 * np.random.default_rng([part, *model]).normal(size=common.shape)
    return (scale * (common + own)).astype(np.float32), labels


def leave(folder, *model, scale=1.0, epochs=(1.0, 2.0, 3.0), loss="cross_entropy", **options):
    """Write what training and evaluation leave of one run."""
    folder.mkdir(parents=True)
    for number, part in enumerate(("validation", "test")):
        logits, labels = predictions(number, model, scale)
        np.savez(folder / f"predictions_{part}.npz", logits=logits, labels=labels)
    config = {"num_bins": BINS, "seed": model[-1], "loss": {"name": loss, "options": options}}
    config["run"] = {"keep": len(folder.name)}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [
        {"epoch": e, "step": int(2 * e), "validation_error": e / 10, "validation_nll": scale}
        for e in epochs
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines)
    return folder


def leave_sweep(folder, kind, seeds):
    """Write what a sweep leaves: runs by loss and seed, and the file that says that it is done."""
    for loss, numbers in seeds.items():
        for seed in numbers:
            own = leave(folder / "runs" / loss / str(seed), kind, seed, loss=loss, kind=kind)
            config = json.loads((own / "config.json").read_text())
            (own / "result.json").write_text(json.dumps({"config": config, "seconds": 1.0}))
    (folder / "sweep.json").write_text("{}")
    return folder


def stored(folder, part="test"):
    with np.load(folder / f"predictions_{part}.npz") as arrays:
        return arrays["logits"].astype(np.float64), arrays["labels"]


def log_probs(logits):
    return logits - scipy.special.logsumexp(logits, axis=1, keepdims=True)


def per_example(metric, logits, labels):
    """The share of each example in a mean, by the definition."""
    p, rows = np.exp(log_probs(logits)), np.arange(len(labels))
    return {
        "error": lambda: (logits.argmax(1) != labels).astype(float),
        "nll": lambda: -log_probs(logits)[rows, labels],
        "brier": lambda: ((p - np.eye(CLASSES)[labels]) ** 2).sum(1),
    }[metric]()


def slow(metric, logits, labels):
    if metric != "ece":
        return per_example(metric, logits, labels).mean()
    p = np.exp(log_probs(logits))
    confidence, right = p.max(1), p.argmax(1) == labels
    place = np.ceil(confidence * BINS)
    parts = [(place == k, np.sum(place == k)) for k in range(1, BINS + 1)]
    gaps = [n * abs(confidence[k].mean() - right[k].mean()) for k, n in parts if n]
    return sum(gaps) / len(labels)


def slow_temperature(folder):
    logits, labels = stored(folder, "validation")
    return scipy.optimize.minimize_scalar(
        lambda t: slow("nll", logits / t, labels), bounds=(0.05, 20), method="bounded"
    ).x


def logits_in(folder, phase):
    """The test logits in a phase, and the labels."""
    logits, labels = stored(folder)
    return logits / (slow_temperature(folder) if phase == summary.AFTER else 1.0), labels


def record(actual, folder, metric, phase=summary.BEFORE, loss=finished.ALONE):
    wanted = (loss, folder, metric, phase)
    (one,) = (
        r
        for r in comparison.records(actual)
        if (r["loss"], r["folder"], r["metric"], r["phase"]) == wanted
    )
    return one


def compared(*folders):
    shared = finished.read([str(folder) for folder in folders])
    return comparison.compare(shared, num_resamples=RESAMPLES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A baseline, one that is far too unsure, and a twin of the first that nobody knows about."""
    above = tmp_path_factory.mktemp("runs")
    first = leave(above / "first", 1)
    shy = leave(above / "shy", 2, scale=0.1, epochs=(0.5, 2.5), loss="focal", gamma=3)
    twin = leave(above / "twin", 1)
    for name in ("config.json", "metrics.jsonl"):
        (twin / name).unlink()
    return first, shy, twin


@pytest.fixture(scope="module")
def actual(folders):
    return compared(*folders)


@pytest.mark.parametrize("metric", ["error", "nll", "brier", "ece"])
@pytest.mark.parametrize("phase", [summary.BEFORE, summary.AFTER])
def test_values_and_differences_are_those_of_the_definition(folders, actual, metric, phase):
    values = []
    for folder in folders[:2]:
        values.append(slow(metric, *logits_in(folder, phase)))
        assert record(actual, folder.name, metric, phase)["value"] == pytest.approx(
            values[-1], abs=2e-5
        )
        if phase == summary.AFTER:
            fitted = actual.parts[0].summary.temperatures[phase][folder.name]
            assert fitted == pytest.approx([slow_temperature(folder)], rel=1e-3)
    one = record(actual, "shy", metric, phase)
    assert one["difference"] == pytest.approx(values[1] - values[0], abs=3e-5)
    assert record(actual, "first", metric, phase)["difference"] is None


@pytest.mark.parametrize("metric", ["error", "nll"])
@pytest.mark.parametrize("phase", [summary.BEFORE, summary.AFTER])
def test_intervals_and_p_are_those_of_resampled_pairs(folders, actual, metric, phase):
    """A slow bootstrap draws other resamples: they agree but for what 200 of them can tell."""
    samples = [per_example(metric, *logits_in(folder, phase)) for folder in folders[:2]]
    drawn = np.random.default_rng(1).integers(EXAMPLES, size=(4000, EXAMPLES))
    differences = (samples[1] - samples[0])[drawn].mean(1)
    low, high = np.quantile(differences, [0.05, 0.95])
    one = record(actual, "shy", metric, phase)
    near = 0.15 * (high - low)
    assert one["difference_low"] == pytest.approx(low, abs=near)
    assert one["difference_high"] == pytest.approx(high, abs=near)
    p = 2 * min(np.mean(differences <= 0), np.mean(differences >= 0))
    assert one["p"] == pytest.approx(min(p, 1), abs=0.15)


def test_a_calibration_error_is_tested_by_its_square_alone(actual):
    for one in comparison.records(actual):
        untested = one["metric"] in ("ece", "adaptive_ece", "classwise_ece")
        compared = one["folder"] != "first"
        assert (one["difference"] is not None) == compared
        assert (one["p"] is not None) == (compared and not untested)
        assert (one["p_holm"] is not None) == (compared and not untested)
        assert ("No p-value for" in one["note"]) == (compared and untested)
    for name in ("error", "nll", "brier", summary.SQUARED):
        one, twin = record(actual, "shy", name), record(actual, "twin", name)
        assert (twin["p"], one["p_holm"]) == (1, pytest.approx(min(1, 2 * one["p"])))
    legend = "* p < .05 against first, after Holm's correction for all folders"
    for text in (comparison.text(actual), render.as_markdown(comparison.page(actual, {}))):
        assert "No p-value for ece, adaptive_ece:" in text
        assert legend in text
    nll = record(actual, "shy", "nll")
    assert f"{nll['difference']:+.4f} [" in comparison.text(actual)
    assert "p = .011*" in comparison.text(actual)  # 2 / 201, by Student's t of 200 rows


def test_settings_that_differ_are_listed_with_their_values(actual):
    listed = {one.key: one.values for one in actual.settings}
    assert listed == {
        "loss.name": {"first": "cross_entropy", "shy": "focal"},
        "loss.options.gamma": {"shy": 3},
        "seed": {"first": 1, "shy": 2},
    }
    assert actual.notes == ["twin has no config.json: its settings are not known."]
    assert "twin has no config.json" in comparison.text(actual)


def test_curves_share_an_axis_though_the_runs_do_not(actual):
    summarized = actual.parts[0].summary
    np.testing.assert_array_equal(summarized.epochs, [0.5, 1, 2, 2.5, 3])
    error = summarized.curves["error"]
    np.testing.assert_allclose(error["first"], [[np.nan, 0.1, 0.2, 0.25, 0.3]])
    np.testing.assert_allclose(error["shy"], [[0.05, 0.1, 0.2, 0.25, np.nan]])
    assert np.isnan(error["twin"]).all()
    assert set(summarized.curves) == {"error", "nll"}  # nobody logged an ECE
    # As in a sweep whose first loss has gone on after an evaluation at its first end.
    epochs = {"prolonged": (1.5, 2, 3, 4), "new": (1.5, 3, 4)}
    rows = {name: [{"epoch": e, "validation_nll": e} for e in at] for name, at in epochs.items()}
    curves, _ = summary._curves([summary.Run(*(k, 1, (), ()), of) for k, of in rows.items()], None)
    assert [of.tolist() for of in curves["nll"].values()] == [[[1.5, 2.0, 3.0, 4.0]]] * 2


@pytest.mark.slow
def test_sweeps_are_compared_over_the_seeds_that_both_have(tmp_path):
    one = leave_sweep(tmp_path / "one", 1, {"focal": range(5), "brier": [1, 2]})
    two = leave_sweep(tmp_path / "two", 2, {"focal": range(6), "brier": [2, 3], "mmce": [1]})
    (two / "runs" / "brier" / "3" / "result.json").unlink()  # begun, and not through
    actual = compared(one, two)
    assert [(part.loss, part.seeds) for part in actual.parts] == [
        ("brier", [2]),
        ("focal", [0, 1, 2, 3, 4]),
    ]
    assert actual.notes == [
        "Seeds left out of one, which not all have: brier 1.",
        "Seeds left out of two, which not all have: focal 5; mmce 1.",
    ]
    values = [
        [slow("nll", *stored(sweep / "runs" / "focal" / str(seed))) for seed in range(5)]
        for sweep in (one, two)
    ]
    of_two = record(actual, "two", "nll", loss="focal")
    assert of_two["value"] == pytest.approx(np.mean(values[1]), abs=1e-5)
    assert of_two["sd"] == pytest.approx(np.std(values[1], ddof=1), abs=1e-5)
    assert of_two["difference"] == pytest.approx(np.mean(values[1]) - np.mean(values[0]), abs=1e-5)
    assert of_two["p_seeds"] == pytest.approx(scipy.stats.ttest_rel(*values).pvalue, rel=1e-2)
    assert record(actual, "two", "nll", loss="brier")["p_seeds"] is None
    # The differences of each seed, resampled together.
    by_seed = [
        np.subtract(
            *(per_example("nll", *stored(sweep / "runs" / "focal" / str(seed)))
              for sweep in (two, one))
        )
        for seed in range(5)
    ]  # fmt: skip
    drawn = np.random.default_rng(1).integers(EXAMPLES, size=(4000, EXAMPLES))
    low, high = np.quantile(np.mean(by_seed, axis=0)[drawn].mean(1), [0.05, 0.95])
    assert of_two["difference_low"] == pytest.approx(low, abs=0.15 * (high - low))
    assert of_two["difference_high"] == pytest.approx(high, abs=0.15 * (high - low))
    # Both losses differ in the same key alike: one entry.
    (setting,) = actual.settings
    assert (setting.key, setting.losses) == ("loss.options.kind", ["brier", "focal"])
    assert setting.values == {"one": 1, "two": 2}


def test_weights_that_are_not_the_last_ones_are_named(tmp_path):
    folders = [leave(tmp_path / name, 1) for name in ("one", "two")]
    evaluation_record.write(folders[0], evaluation_record.Evaluated("latest", 6))
    evaluation_record.write(folders[1], evaluation_record.Evaluated("best_nll", 2))
    shared = finished.read([str(folder) for folder in folders])
    assert shared.notes == ["Checkpoints: one latest; two best_nll."]


def test_what_cannot_be_compared_is_refused_in_a_sentence(tmp_path):
    first = leave(tmp_path / "first", 1)

    def refused(other, said):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            finished.read([str(first), str(other)])

    relabelled = leave(tmp_path / "others", 1)
    logits, labels = stored(relabelled)
    labels = np.where(np.arange(EXAMPLES) == 7, (labels + 1) % CLASSES, labels)
    np.savez(relabelled / "predictions_test.npz", logits=logits, labels=labels)
    refused(relabelled, "differ in their test labels, first of example 7")
    trained = leave(tmp_path / "trained", 1)
    (trained / "predictions_test.npz").unlink()
    refused(trained, r"has no predictions_test.npz; python -m experiments.evaluate --workdir=\S*ed")
    prolonged = leave(tmp_path / "prolonged", 1)
    evaluation_record.write(prolonged, evaluation_record.Evaluated("latest", 6))
    assert finished.read([str(first), str(prolonged)]).notes == []
    with (prolonged / "metrics.jsonl").open("a") as log:
        log.write('{"epoch": 9, "step": 18}\n')
    refused(
        prolonged, "prolonged was trained further after .* step 6: .*evaluate --workdir=.*prolonged"
    )
    sweep = leave_sweep(tmp_path / "sweep", 1, {"focal": [1]})
    refused(sweep, "sweep is a sweep and .*first a run: .*sweep/runs/LOSS/SEED")
    streamed = leave(tmp_path / "streamed", 7)
    scores = streamed_scores.Scores(EXAMPLES, CLASSES, {}, {}, {}, [], BINS + 1)
    scores.save(streamed / "report")
    with pytest.raises(cli.Refused, match=r"streamed seed 7 has streamed values with 11 bins"):
        compared(first, streamed)


def test_from_two_folders_to_tables_and_pictures(folders, actual, tmp_path):
    out = tmp_path / "new" / "out"
    first, shy, _ = folders
    said = finish("compare", first, shy, f"--out={out}", f"--resamples={RESAMPLES}")
    one = record(actual, "shy", "nll")
    number = f"{one['difference']:+.4f} ["
    page = (out / "compare.md").read_text()
    assert number in said
    assert number in page
    for name in ("intervals", "reliability_as_trained", "reliability_after_temperature", "curves"):
        assert f"({name}.png)" in page
        assert (out / f"{name}.png").stat().st_size > 1000
    whole = json.loads((out / "compare.json").read_text())
    assert whole["folders"] == {"first": str(first), "shy": str(shy)}
    assert whole["seeds"] == {finished.ALONE: [1, 2]}
    (same,) = (
        r
        for r in whole["metrics"]
        if (r["folder"], r["metric"], r["phase"]) == ("shy", "nll", summary.BEFORE)
    )
    for key in ("value", "low", "difference_low", "difference_high", "p"):
        assert same[key] == pytest.approx(one[key], rel=1e-4)
    with (out / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * len(comparison.METRICS)
    assert rows[0]["folder"] == "first"
    assert rows[0]["difference"] == ""
