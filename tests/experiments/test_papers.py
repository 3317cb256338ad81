"""Claims of the papers: verdicts against records, judgements against NumPy, refusals."""

import json
import subprocess

import numpy as np
import pytest
import scipy.stats
from flax import traverse_util

from experiments.papers import estimates, judge, page, records, verdicts
from experiments.papers.estimates import Columns, Predictions
from experiments.papers.records import Trained
from experiments.papers.rows import ROWS, Comparison
from experiments.papers.trainings import TRAININGS, Training
from experiments.running import cli

DIGITS = Training("digits", "focal", {"gamma": 2.0}, {"num_epochs": 1}, seeds=1)


def trained(gap, seeds=3, rows=400, error=0.3, seed=0):
    """Fabricate seeds whose confidence is too large by a gap."""
    random = np.random.default_rng(seed)
    runs = []
    for _ in range(seeds):
        right = random.random(rows) >= error
        confidence = np.clip(1 - error + gap + 0.01 * random.normal(size=rows), 0, 1)
        runs.append(Trained(Columns(confidence, right), Columns(confidence, right), {}))
    return runs


# ------------------------------------------------------------------------------ verdicts and page


def test_every_row_has_a_verdict_and_trainings():
    known = verdicts.read()
    assert len(known) == 153
    assert set(ROWS) <= set(known)
    assert all(finding.state == known[finding.claim].state for finding in verdicts.findings())
    assert {v.state for v in known.values()} <= {*verdicts.STATES, "mostly"}
    for comparisons in ROWS.values():
        assert set(judge.trainings_of(comparisons)) <= set(TRAININGS)
    for verdict in known.values():
        if verdict.kind == verdicts.TRAINED and verdict.low:
            low, effect, high = map(float, (verdict.low, verdict.effect, verdict.high))
            assert low <= effect <= high, verdict.id
            if verdict.state in ("holds", "does not hold"):
                assert float(verdict.p_holm) <= 0.05, verdict.id
            if verdict.seeds in ("1", "2"):
                assert verdict.state == "one seed", verdict.id


@pytest.mark.parametrize(
    "name",
    [
        "guo-resnet-overconfident",
        "guo-ts-lowers-ece",
        "mukhoti-gamma-order-3-2-1-own",
        "mukhoti-focal-unsure-where-wrong",
        "adafocal-beats-ce-flsd-cifar10",
        "bsce-gra-standard-hyperparameters-suffice",
    ],
)
def test_the_effect_of_a_verdict_is_that_of_its_records(name):
    verdict = verdicts.read()[name]
    trainings = judge.trainings_of(ROWS[name])
    found = judge.judge(ROWS[name], judge.read(verdicts.FOLDER, trainings, verdict.commits))
    effects = [effect for effect, *_ in found.points.values()]
    effects += [100 * value.value for value in found.values.values()]
    sign = -1 if "minus the margin" in verdict.measured else 1
    # Records in float16, of which some hold the confidence alone, move an effect by .01 points.
    stated = pytest.approx(float(verdict.effect), rel=1e-3, abs=0.02)
    assert any(sign * effect == stated for effect in effects)
    assert found.state == verdict.state or verdict.state == "undecided"


def test_the_page_is_that_of_the_data():
    written = page.text(verdicts.findings(), list(verdicts.read().values()))
    assert (verdicts.FOLDER / "README.md").read_text(encoding="utf-8") == written


# ------------------------------------------------------------------------------------ judgements


def test_a_difference_of_errors_has_the_interval_of_seeds_and_rows():
    by_name = {"CE": trained(0.0, seed=1), "FL-3": trained(0.0, error=0.2, seed=2)}
    found = judge.judge([Comparison("error", "CE", "FL-3")], by_name)
    table = np.array(
        [
            1.0 * ~a.test.right - ~b.test.right
            for a, b in zip(by_name["CE"], by_name["FL-3"], strict=True)
        ]
    )
    (value,) = found.values.values()
    assert value.value == pytest.approx(table.mean())
    over_seeds = scipy.stats.ttest_1samp(table.mean(axis=1), 0).confidence_interval(0.9)
    assert value.high - value.low >= 0.5 * (over_seeds.high - over_seeds.low)
    assert found.state == "holds"


@pytest.mark.parametrize(
    ("gaps", "state"),
    [((0.2, 0.0), "holds"), ((0.0, 0.2), "does not hold"), ((0.2, 0.2), "undecided")],
)
def test_the_state_follows_the_sign_of_the_intervals(gaps, state):
    by_name = {name: trained(g, seed=k) for k, (name, g) in enumerate(zip("ab", gaps, strict=True))}
    assert judge.judge([Comparison("ce2", "a", "b")], by_name).state == state


def test_fewer_than_three_seeds_are_no_verdict():
    for seeds, state in ((1, "one seed"), (2, "2 seeds")):
        by_name = {"a": trained(0.3, seeds), "b": trained(0.0, seeds, seed=1)}
        assert judge.judge([Comparison("ce2", "a", "b")], by_name).state == state


def test_a_dead_network_leaves_the_comparison():
    by_name = {"a": trained(0.3), "b": trained(0.0, error=0.95), "c": trained(0.0)}
    both = [Comparison("ce2", "a", "b"), Comparison("ce2", "a", "c")]
    found = judge.judge(both, by_name)
    assert (found.dropped, list(found.values)) == (both[:1], both[1:])
    assert judge.judge(both[:1], by_name).state == "undecided"


def test_a_margin_of_the_root_is_added_to_the_first():
    by_name = {"a": trained(0.10), "b": trained(0.14, seed=1)}
    plain, wide = (judge.value_of(Comparison("ce2", "a", "b", margin=m), by_name) for m in (0, 0.1))
    (error,) = judge._errors(Comparison("ce2", "a"), by_name)
    assert wide.value - plain.value == pytest.approx((error + 0.1) ** 2 - error**2)


def test_the_papers_temperature_is_the_least_ece_of_the_grid():
    random = np.random.default_rng(0)
    logits = 2 * random.normal(size=(300, 4))
    labels = np.array(
        [random.choice(4, p=p) for p in np.exp(logits) / np.exp(logits).sum(1)[:, None]]
    )
    part = Predictions((3 * logits).astype(np.float32), labels)
    eces = [estimates.ece(part.scaled(t)) for t in estimates.GRID]
    (fitted,) = estimates.temperatures(part, np.ones((1, 300), np.float32))
    assert fitted == estimates.GRID[np.argmin(eces)]
    twice, once = np.zeros((2, 300), np.float32)
    twice[:100], once[:100] = 2, 2
    assert len(set(estimates.temperatures(part, np.stack([twice, once])))) == 1


def test_influences_are_derivatives_by_the_weight_of_an_example():
    random = np.random.default_rng(2)
    part = Predictions(random.normal(size=(50, 6)), np.arange(50) % 6)
    for name, statistic in estimates.STATISTICS.items():
        estimate = statistic(part)
        again = np.concatenate([np.repeat(np.arange(50), 200), [7]])
        more = statistic(Predictions(part.logits[again], part.labels[again])).value
        assert (more - estimate.value) * 10_000 == pytest.approx(estimate.influence[7], abs=2e-3), (
            name
        )


# --------------------------------------------------------------------------------------- records


def write(folder, training, seed, /, commit="abc", **changed):
    """Fabricate a record."""
    flat = {"seed": seed} | records._identity(training) | changed
    config = traverse_util.unflatten_dict(flat, sep=".")
    about = np.frombuffer(json.dumps({"config": config, "commit": commit}).encode(), np.uint8)
    random = np.random.default_rng(seed)
    arrays = {}
    for part in records.PARTS:
        arrays[f"{part}_logits"] = random.normal(size=(40, 10)).astype(np.float16)
        arrays[f"{part}_labels"] = random.integers(0, 10, 40)
    path = records.path_of(folder, training, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, about=about, **arrays)
    return path


def test_a_record_is_read_with_its_identity(tmp_path):
    write(tmp_path, DIGITS, 1)
    run = records.read(tmp_path, DIGITS, 1)
    assert run.test.logits.shape == (40, 10)
    assert run.about["commit"] == "abc"


def test_a_record_of_another_row_or_seed_and_a_damaged_one_are_refused_by_name(tmp_path):
    for changed, message in (
        ({"loss.options.gamma": 3.0}, r"1\.npz is a record of another row: its loss.options"),
        ({"data.name": "cifar10"}, "its data.name is 'cifar10', and .* has 'digits'"),
        ({"num_epochs": 9}, "its num_epochs is 9"),
        ({"seed": 2}, "another row: its seed is 2"),
    ):
        path = write(tmp_path, DIGITS, 1, **changed)
        with pytest.raises(ValueError, match=message):
            records.read(tmp_path, DIGITS, 1)
    path.write_bytes(b"PK half")
    with pytest.raises(ValueError, match=r"1\.npz is no record of a run .* remove it"):
        records.read(tmp_path, DIGITS, 1)


def test_records_of_another_commit_are_refused_by_name(tmp_path):
    two = DIGITS._replace(seeds=2)
    write(tmp_path, two, 1, commit="abc")
    write(tmp_path, two, 2, commit="def")
    with pytest.raises(ValueError, match=r"2\.npz is a record of commit def, and .* of abc"):
        judge.read(tmp_path, {"x": two}, frozenset({"abc"}))
    assert len(judge.read(tmp_path, {"x": two}, frozenset({"abc", "def"}))["x"]) == 2


def test_an_unknown_row_names_the_rows():
    with pytest.raises(LookupError, match=r"no row 'nonsense'.* The rows are guo-resnet-over"):
        verdicts.chosen("nonsense", list(ROWS))
    with pytest.raises(LookupError, match="Did you mean guo-ts-lowers-ece"):
        verdicts.chosen("guo-ts-lower-ece", list(ROWS))
    with pytest.raises(LookupError, match=r"its software at commit e194caf4.* The rows are"):
        verdicts.chosen("guo-depth-hurts-calibration", list(ROWS))


@pytest.mark.slow
def test_a_missing_record_is_trained_and_kept(tmp_path):
    results = tmp_path / "results"
    records.train(results, DIGITS, tmp_path / "work", None)
    run = records.read(results, DIGITS, 1)
    assert 0 < np.mean(run.test.right) <= 1
    assert run.about["commit"]
    before = records.path_of(results, DIGITS, 1).stat().st_mtime_ns
    records.train(results, DIGITS, tmp_path / "work", None)  # nothing is missing
    assert records.path_of(results, DIGITS, 1).stat().st_mtime_ns == before


def test_a_sweep_that_fails_is_no_record(tmp_path, monkeypatch):
    ended = subprocess.CompletedProcess([], returncode=2)
    monkeypatch.setattr(subprocess, "run", lambda command, **options: ended)
    with pytest.raises(cli.Failed, match="ended with code 2: its message stands above"):
        records.train(tmp_path, DIGITS, tmp_path / "work", None)
    assert not list(tmp_path.rglob("*.npz"))
