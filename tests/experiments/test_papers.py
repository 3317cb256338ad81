"""The ledger of claims: entries, runs, records, verdicts and their page, on fabricated runs."""

import dataclasses
import json
import shutil
import subprocess

import numpy as np
import pytest

from experiments.papers import claims, entry, published
from experiments.papers.entries import trainings
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import estimates, paired, rules, verdicts
from experiments.papers.judge.values import Value
from experiments.papers.page import listing, trained_tables
from experiments.papers.page import verdicts_page as page
from experiments.papers.store import records, runs
from experiments.running import cli
from tests.experiments.processes import finish, refused
from tests.selection import some_of

pytestmark = pytest.mark.papers

CE = Training("cross_entropy", config="digits", seeds=2)
FOCAL = Training("focal", {"gamma": 1.0}, "digits", seeds=2)
COMMIT = {"commit": "abc", "date": "2026-01-02", "device": "cpu", "processor": "x"}
TIMES = {"seconds": 20.0, "evaluation_seconds": 10.0}  # of each of two epochs


def errors_of(trained):
    """Compare the error rates of both losses."""
    pairs = [
        estimates.error(a.test) - estimates.error(b.test)
        for a, b in zip(trained["ce"], trained["fl"], strict=True)
    ]
    last = [run.log[-1]["test_error"] for run in trained["ce"]]
    return {"ce - fl": paired.over_seeds_and_rows(pairs), "last": paired.over_seeds(last)}


ENTRY = Entry(
    claims={"guo-ts-lowers-ece": rules.above("ce - fl")},
    statistic=errors_of,
    runs={"ce": CE, "fl": FOCAL},
    name="guo_tried",
)


def of_seeds(count):
    """The entry with another number of seeds."""
    trainings = {name: dataclasses.replace(t, seeds=count) for name, t in ENTRY.runs.items()}
    return dataclasses.replace(ENTRY, runs=trainings)


def fabricate(runs_dir, training, seed, *, wrong=0.2, commit="abc", rows=200, folder=None, **keys):
    """Write the files of a finished run, with some share of wrong predictions."""
    sweep = runs_dir / (folder or runs.sweep_folder(training))
    path = sweep / "runs" / training.loss / str(seed)
    path.mkdir(parents=True)
    draws = np.random.default_rng(seed)
    for part in ("test", "validation"):
        labels = np.arange(rows) % 10
        logits = draws.normal(size=(rows, 10)).astype(np.float32)
        hit = draws.random(rows) > wrong
        logits[np.arange(rows), np.where(hit, labels, (labels + 1) % 10)] += 6
        np.savez(path / f"predictions_{part}.npz", logits=logits, labels=labels)
    # Two epochs, of which the first was trained before a resumption.
    rows = [{"step": step, "epoch": float(step), "test_error": wrong, **TIMES} for step in (1, 2)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    start = {"step": 0, **COMMIT, "commit": commit}
    (path / "environment.jsonl").write_text(json.dumps(start) + "\n")
    config = runs.config_of(training) | {"seed": seed} | keys
    result = {"config": config, "checkpoint": "latest"}
    (path / "result.json").write_text(json.dumps(result))
    return path


@pytest.fixture
def runs_dir(tmp_path):
    """Four runs: two losses, two seeds."""
    for seed in (1, 2):
        fabricate(tmp_path / "all", CE, seed, wrong=0.6)
        fabricate(tmp_path / "all", FOCAL, seed, wrong=0.1)
    return tmp_path / "all"


@pytest.fixture
def catalogue(monkeypatch):
    """The catalogue with the entry of this file alone."""
    monkeypatch.setattr(entry, "catalogue", lambda: {ENTRY.name: ENTRY})


# --------------------------------------------------------------------------------------------
# Claims, published numbers, entries.


def test_every_claim_has_a_source_a_kind_and_a_rule():
    known = claims.read()
    assert len(known) > 150
    assert claims.sources(known.values()) == ["guo", "mukhoti", "adafocal", "bsce-gra", "recall"]
    for claim in known.values():
        assert claim.id.startswith(claim.source.partition("-")[0])
        assert claim.scale in ("exact", "toy", "table", "cpu", "gpu")
        assert claim.rule
        assert claim.data


def test_no_rule_rests_on_a_bootstrapped_binned_error():
    for claim in claims.read().values():
        if claim.scale in ("cpu", "gpu"):
            assert "paired bootstrap over test examples" not in claim.test, claim.id


def test_every_entry_is_found_and_tests_known_claims():
    catalogue = entry.catalogue()
    assert "guo_forecast" in catalogue
    for tested_by in catalogue.values():
        assert tested_by.claims
        for training in tested_by.runs.values():
            assert runs.config_of(training)["loss"]["name"]


def test_an_unknown_id_names_the_near_ones():
    with pytest.raises(ValueError, match=r"did you mean guo-forecast-gap") as raised:
        entry.chosen(["guo-forcast-gap"])
    assert str(raised.value).count("guo-") <= 4


def test_a_claim_without_an_entry_shows_its_test(catalogue):
    with pytest.raises(LookupError, match=r"no entry tests recall-focal-can-cheat yet"):
        entry.chosen(["recall-focal-can-cheat"])


def test_an_unknown_published_table_names_the_near_ones():
    with pytest.raises(LookupError, match=r"no mukhoti T9 pre; near are"):
        published.table("mukhoti", "T9", "pre")


def test_a_table_has_its_rows_and_methods():
    table = published.table("mukhoti", "T1", "post")
    assert table["CIFAR-10", "ResNet-50"]["Cross-Entropy"] == (1.35, 2.5)
    assert len(table) == 11
    assert all(len(methods) == 6 for methods in table.values())


# --------------------------------------------------------------------------------------------
# Runs and records.


def test_runs_are_found_by_config_in_any_folder(tmp_path):
    fabricate(tmp_path, FOCAL, 1, folder="some_name")
    listed = runs.finished(tmp_path)
    assert runs.matching(FOCAL, 1, listed)[0].folder.parts[-4] == "some_name"
    assert runs.matching(FOCAL, 2, listed) == (None, [])
    assert runs.matching(Training("focal", {"gamma": 2.0}, "digits"), 1, listed)[0] is None


def test_another_network_has_its_own_options():
    """As the binaries give it: those of the config's network fall away."""
    training = Training("cross_entropy", changes={"model.name": "resnet32"})
    model = runs.config_of(training)["model"]
    assert model["name"] == "resnet32"
    assert {"init", "shortcut", "width"} <= model["options"].keys()


def test_a_run_of_another_config_is_named(tmp_path):
    fabricate(tmp_path, CE, 1, num_epochs=3)
    match, others = runs.matching(CE, 1, runs.finished(tmp_path))
    assert match is None
    assert "num_epochs: 3 before, 60 now" in others[0]


def test_a_run_without_the_log_serves_where_no_entry_reads_it(tmp_path):
    fabricate(tmp_path, CE, 1, diagnose=True)
    run = runs.finished(tmp_path)
    assert runs.matching(CE, 1, run)[0] is None
    training = dataclasses.replace(CE, diagnosed=False)
    assert runs.matching(training, 1, run)[0] is not None
    records.write(tmp_path / "results", training, run[0])
    assert records.read(tmp_path / "results", training, 1).seed == 1


def test_records_are_written_once_and_recomputed_without_runs(tmp_path, runs_dir):
    folder = tmp_path / "results"
    assert records.collect(folder, ENTRY, runs_dir, None) == {}
    first = verdicts.compute(ENTRY, folder, "cpu")
    part = first["claims"]["guo-ts-lowers-ece"]
    assert part["state"] == "holds"
    value = part["values"]["ce - fl"]
    assert value["seeds"] == 2
    assert value["rows"] == 200
    assert 0.2 < value["low"] < value["value"] < value["high"] < 0.8
    assert first["beside"]["last"]["value"] == 0.6
    # The runs are gone: the records suffice.
    assert records.collect(folder, ENTRY, tmp_path / "nowhere", None) == {}
    again = verdicts.compute(ENTRY, folder, "cpu")
    assert again["claims"] == first["claims"]
    record = records.path_of(folder, CE, 1)
    assert record.name == "1.npz"
    assert record.stat().st_size < 20_000


def test_a_record_has_the_labels_with_weight_alone(tmp_path):
    """Such as the roots of trees, whose other nodes are no test examples."""
    training = dataclasses.replace(CE, seeds=1)
    path = fabricate(tmp_path / "all", training, 1)
    draws = np.random.default_rng(0)
    logits, root = draws.normal(size=(50, 4, 10)), draws.integers(4, size=50)
    labels = draws.integers(10, size=(50, 4))
    weights = (np.arange(4) == root[:, None]).astype(np.float32)
    for part in ("test", "validation"):
        file = path / f"predictions_{part}.npz"
        np.savez(file, logits=logits.astype(np.float32), labels=labels, weights=weights)
    records.write(tmp_path, training, runs.finished(tmp_path / "all")[0])
    kept = records.read(tmp_path, training, 1).test
    rows = np.arange(50)
    np.testing.assert_array_equal(kept.labels, labels[rows, root])
    of_root = logits[rows, root] - logits[rows, root].max(axis=-1, keepdims=True)
    np.testing.assert_allclose(kept.logits, of_root, atol=0.01)
    np.savez(file, logits=logits.astype(np.float32), labels=labels, weights=weights / 2)
    with pytest.raises(
        ValueError, match=r"predictions_validation\.npz has labels of other weights"
    ):
        records.write(tmp_path, training, runs.finished(tmp_path / "all")[0])


def test_tables_show_what_is_trained_beside_the_published_numbers(tmp_path):
    folder, all_runs = tmp_path / "results", tmp_path / "all"
    errors = []
    for seed in (1, 2):
        path = fabricate(all_runs, trainings.CE, seed, wrong=0.3, diagnose=True)
        with np.load(path / "predictions_test.npz") as arrays:
            wrong = arrays["logits"].argmax(-1) != arrays["labels"]
        errors.append(100 * float(np.mean(wrong)))
    fabricate(all_runs, trainings.BSCE, 1)  # its record has columns alone
    missing = trained_tables.collect(folder, all_runs, None)
    assert missing[trainings.CE] == ["seed 3"]
    assert missing[trainings.FL1] == ["seed 1", "seed 2", "seed 3"]
    page = trained_tables.text(folder)
    assert page.count("\n## ") == 1
    rows = cells_of(page)
    assert rows[0] == ["method", "seeds", *trained_tables.LABELS]
    (cross_entropy,) = (row for row in rows if row[0] == "Cross-Entropy")
    spread = f"{np.mean(errors):.1f} ± {np.std(errors, ddof=1):.1f}"
    assert cross_entropy[1:3] == ["2", f"{spread} (4.95)"]
    assert cross_entropy[3].endswith(" (4.35)")
    assert cross_entropy[5].endswith(" (2.5)")
    (bsce,) = (row for row in rows if row[0] == "BSCE")
    assert bsce[2].replace(".", "").isdecimal()
    assert bsce[3].endswith(" (0.88)")
    assert len(bsce) < len(rows[0]) or not any(bsce[4:])


def cells_of(page):
    """The cells of the rows of all tables of a page."""
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]


def segments(draws):
    """Sums of six images of pixels in four classes, of which the last are rare; none is right."""
    bins = {"weight": draws.integers(1, 9, (6, 15)), "confidence": draws.random((6, 15))}
    bins["hit"] = np.zeros((6, 15))
    arrays = {"confusion": draws.integers(1, 50, (6, 4, 4)), "class_counts": np.array([4, 3, 2, 1])}
    arrays |= {f"{phase}_{key}": bins[key] for phase in ("before", "after") for key in bins}
    return arrays | {"temperature": 1.5}


def recalls_of(arrays):
    """The share of the pixels of each class, in percent, that are found."""
    total = arrays["confusion"].sum(axis=0)
    return 100 * np.diagonal(total) / total.sum(axis=1)


def test_tables_of_pixels_are_of_the_summed_images(tmp_path):
    table = trained_tables.TABLES[-1]
    training, folder = table.rows["Recall"], tmp_path / "results"
    fabricate(tmp_path / "all", training, 1)
    records.write(folder, training, runs.finished(tmp_path / "all")[0])
    assert "CamVid" not in trained_tables.text(folder)  # the measurement is not there yet
    arrays = segments(np.random.default_rng(0))
    records.save(records.path_of(folder, training, 1, "segments"), arrays)
    page = trained_tables.text(folder)
    (row,) = (row for row in cells_of(page) if row[:2] == ["Recall", "1"])
    told = dict(zip(table.columns, row[2:], strict=True))
    recalls = recalls_of(arrays)
    assert told["mean recall"] == f"{recalls.mean():.1f}"
    assert told["recall of the 3 rarest"] == f"{recalls[1:].mean():.1f}"
    ece = arrays["before_confidence"].sum() / arrays["before_weight"].sum()
    assert told["ECE"] == f"{100 * ece:.1f}"
    assert "6 test examples" in page


def test_losses_on_pixels_are_compared_over_seeds_and_images(tmp_path):
    table = trained_tables.TABLES[-1]
    folder, draws = tmp_path / "results", np.random.default_rng(0)
    recalls = {"Cross-Entropy": [], "Recall": []}
    for method in recalls:
        for seed in table.rows[method].of_seeds:
            fabricate(tmp_path / "all", table.rows[method], seed)
            arrays = segments(draws)
            records.save(records.path_of(folder, table.rows[method], seed, "segments"), arrays)
            recalls[method].append(recalls_of(arrays).mean())
    trained_tables.collect(folder, tmp_path / "all", None)
    rows = [row for row in cells_of(trained_tables.text(folder)) if row[0] == "Recall"]
    changes = next(row for row in rows if "[" in row[1])
    expected = np.mean(recalls["Recall"]) - np.mean(recalls["Cross-Entropy"])
    value, low, high = (float(x.strip("[],")) for x in changes[2].split())
    np.testing.assert_allclose(value, expected, atol=0.06)
    assert low < value < high


def test_every_table_finds_the_published_numbers_of_its_network():
    for table in trained_tables.TABLES:
        found = {
            column: sum(
                trained_tables.published_number(table, method, column) is not None
                for method in table.rows
            )
            for column in trained_tables.PLACES
        }
        if table.larger:
            assert found["AdaECE"] >= 3, (table.title, found)
        if "mukhoti" in table.larger:
            assert min(found.values()) >= 8, (table.title, found)


def test_missing_runs_are_listed_by_training(tmp_path, runs_dir):
    three = of_seeds(3)
    missing = records.collect(tmp_path / "results", three, runs_dir, None)
    assert missing == {training: ["seed 3"] for training in three.runs.values()}


def test_a_measurement_is_of_the_run_of_its_record(tmp_path, runs_dir, monkeypatch):
    """The folder of the recorded run is lost, and the same training has run again since."""
    monkeypatch.setattr(
        records.measures, "named", lambda name: lambda folder, data_dir: {"x": np.zeros(1)}
    )
    records.collect(tmp_path, ENTRY, runs_dir, None)
    measured = dataclasses.replace(ENTRY, measures=("noise",))
    assert records.collect(tmp_path, measured, runs_dir, None) == {}
    assert records.path_of(tmp_path, FOCAL, 1, "noise").is_file()
    records.path_of(tmp_path, FOCAL, 1, "noise").unlink()
    start = runs_dir / runs.sweep_folder(FOCAL) / "runs/focal/1/environment.jsonl"
    start.write_text(json.dumps({"step": 0, **COMMIT, "date": "2026-03-04"}) + "\n")
    with pytest.raises(ValueError, match=r"of a run of 2026-01-02, and .* of 2026-03-04"):
        records.collect(tmp_path, measured, runs_dir, None)
    records.path_of(tmp_path, FOCAL, 1).unlink()
    assert records.collect(tmp_path, measured, runs_dir, None) == {}


def test_only_the_named_runs_are_measured_further(tmp_path, runs_dir, monkeypatch):
    monkeypatch.setattr(
        records.measures, "named", lambda name: lambda folder, data_dir: {"x": np.zeros(1)}
    )
    named = dataclasses.replace(ENTRY, measures=("noise",), measured=("fl",))
    assert records.collect(tmp_path, named, runs_dir, None) == {}
    read = records.read_all(tmp_path, named)
    assert {name: sorted(runs[0].measured) for name, runs in read.items()} == {
        "ce": [],
        "fl": ["noise"],
    }


def test_a_record_of_another_config_is_refused(tmp_path, runs_dir):
    records.collect(tmp_path, ENTRY, runs_dir, None)
    other = dataclasses.replace(CE, changes={"num_epochs": 5}, alias="")
    path = records.path_of(tmp_path, other, 1)
    path.parent.mkdir(parents=True)
    records.path_of(tmp_path, CE, 1).rename(path)
    with pytest.raises(ValueError, match=r"another config \(num_epochs: 60 before, 5 now\)"):
        records.read(tmp_path, other, 1)


def test_a_half_written_record_or_verdict_is_one_sentence(tmp_path, runs_dir):
    records.collect(tmp_path, ENTRY, runs_dir, None)
    verdicts.write(tmp_path, verdicts.compute(ENTRY, tmp_path, "cpu"))
    path = records.path_of(tmp_path, CE, 1)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"1.npz cannot be read as a record of a run: .*remove it"):
        verdicts.compute(ENTRY, tmp_path, "cpu")
    path = verdicts.path_of(tmp_path, ENTRY.name)
    path.write_text(path.read_text()[:300])
    with pytest.raises(ValueError, match=r"guo_tried.json cannot be read as verdicts.*--run=guo"):
        verdicts.read(tmp_path, entry.of_claims())
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"it has no entry"):
        verdicts.read(tmp_path, entry.of_claims())


def test_a_statistic_without_a_needed_value_is_named(tmp_path, runs_dir):
    records.collect(tmp_path, ENTRY, runs_dir, None)
    wrong = dataclasses.replace(ENTRY, claims={"guo-ts-lowers-ece": rules.above("fl - ce")})
    with pytest.raises(LookupError, match=r"needs fl - ce; the values are ce - fl, last"):
        verdicts.compute(wrong, tmp_path, "cpu")


# --------------------------------------------------------------------------------------------
# Rules and verdicts.


def near(value, deviation=1.0):
    return Value(value, deviation)


@pytest.mark.parametrize(
    ("rule", "values", "state"),
    [
        (rules.above("a", "b"), {"a": near(2), "b": near(9)}, "holds"),
        (rules.above("a", "b"), {"a": near(1), "b": near(9)}, "undecided"),
        (rules.above("a", "b"), {"a": near(-2), "b": near(9)}, "does not hold"),
        (rules.above("a", margin=1), {"a": near(2)}, "undecided"),
        (rules.below("a"), {"a": near(-2)}, "holds"),
        (rules.below("a", margin=-3), {"a": near(-1)}, "does not hold"),
        (rules.true("a"), {"a": Value(1)}, "holds"),
        (rules.within("a", 1, 2), {"a": Value(3)}, "does not hold"),
        (rules.within("a", 1, 2), {"a": Value(1)}, "holds"),
        (rules.within("a", 1, 9), {"a": near(5)}, "holds"),
        (rules.within("a", 1, 9), {"a": near(2)}, "undecided"),
        (rules.within("a", 1, 9), {"a": near(12)}, "does not hold"),
        (rules.at_least("a", 0.9), {"a": Value(0)}, "undecided"),
        (rules.given(rules.true("a"), rules.above("b")), {"a": Value(0), "b": near(9)}, "undec"),
        (rules.given(rules.true("a"), rules.above("b")), {"a": Value(1), "b": near(-9)}, "does"),
        (rules.agreeing(rules.above("a"), rules.below("b")), {"a": near(9), "b": near(9)}, "undec"),
        (rules.agreeing(rules.above("a"), rules.below("b")), {"a": near(9), "b": near(-9)}, "hold"),
        (rules.at_least("a", 11, 5), {"a": Value(5)}, "does not hold"),
        (rules.every(rules.true("a"), rules.above("b")), {"a": Value(1), "b": near(2)}, "holds"),
        (rules.every(rules.true("a"), rules.above("b")), {"a": Value(1), "b": near(1)}, "undec"),
        (rules.every(rules.true("a"), rules.above("b")), {"a": Value(0), "b": near(2)}, "does"),
    ],
)
def test_rules(rule, values, state):
    assert rule.judge(values).state.startswith(state)


@pytest.mark.parametrize(("value", "p"), [(1.645, 0.05), (-1.645, 0.05), (0.0, 0.5)])
def test_the_p_value_is_one_sided(value, p):
    """0.05 is at the end of the 90 % interval, so a verdict and its p-value agree."""
    assert rules.above("a").judge({"a": near(value)}).p == pytest.approx(p, abs=1e-4)


def test_holm_makes_weak_verdicts_undecided(tmp_path, runs_dir, catalogue):
    records.collect(tmp_path, ENTRY, runs_dir, None)
    verdicts.write(tmp_path, verdicts.compute(ENTRY, tmp_path, "cpu"))
    (verdict,) = verdicts.read(tmp_path, entry.of_claims()).values()
    strong, weak, certain = "guo-ts-lowers-ece", "guo-resnet-overconfident", "guo-forecast-gap"
    several = {
        name: verdict._replace(p=p) for name, p in [(strong, 0.02), (weak, 0.03), (certain, None)]
    }
    parts = verdict.record["claims"]
    parts |= dict.fromkeys(several, parts[strong])
    adjusted = verdicts.adjusted(several)
    assert adjusted[strong] == ("holds", 0.02, 0.04, 0.03)
    assert adjusted[weak] == ("holds", 0.03, 0.04, 0.03)
    assert adjusted[certain] == ("holds", None, None, None)
    several[weak] = several[weak]._replace(p=0.06)
    assert verdicts.adjusted(several)[weak] == ("undecided", 0.06, 0.06, 0.06)
    several[weak] = several[weak]._replace(state="undecided")
    assert verdicts.adjusted(several)[strong].holm == 0.04


# --------------------------------------------------------------------------------------------
# The list and the page.


def test_the_list_and_the_page(tmp_path, runs_dir, catalogue):
    records.collect(tmp_path, ENTRY, runs_dir, None)
    before = {row.claim.id: row for row in listing.rows(tmp_path, {}, entry.of_claims())}
    assert before["guo-ts-lowers-ece"].missing == "not run"
    assert before["guo-lenet-resnet-errors"].missing == "data absent"
    assert before["guo-ts-lowers-ece"].standing.state == "not testable"
    verdicts.write(tmp_path, verdicts.compute(ENTRY, tmp_path, "cpu"))
    standing = verdicts.read(tmp_path, entry.of_claims())
    listed = listing.rows(tmp_path, standing, entry.of_claims())
    assert len(listed) == len(claims.read())
    row = next(row for row in listed if row.claim.id == "guo-ts-lowers-ece")
    assert (row.standing.state, row.minutes, row.entry) == ("holds", "0", "guo_tried")
    assert "guo-ts-lowers-ece" in listing.text(listed)
    path = page.write(tmp_path, listed, standing, entry.of_claims())
    first, written = path.read_text(), (tmp_path / "guo.md").read_text()
    assert "**guo-ts-lowers-ece: holds**" in written
    assert "4 runs, 4 minutes of training" in written
    assert "- last: 0.6" in written
    assert "| all | 1 | 0 | 0 | 0 | 0 |" in first
    assert "claims are about trained networks and their costs: 1 holds, " in first


@pytest.fixture
def judged(tmp_path, runs_dir, catalogue):
    """A folder with the verdict of the entry, which holds."""
    records.collect(tmp_path, ENTRY, runs_dir, None)
    verdicts.write(tmp_path, verdicts.compute(ENTRY, tmp_path, "cpu"))
    return tmp_path


def paged(folder):
    """Write the pages; return their text, and the part of the claim in the file of values."""
    by_claim = entry.of_claims()
    standing = verdicts.read(folder, by_claim)
    page.write(folder, listing.rows(folder, standing, by_claim), standing, by_claim)
    written = "".join(path.read_text() for path in sorted(folder.glob("*.md")))
    return written, json.loads(verdicts.path_of(folder, ENTRY.name).read_text())["claims"]


def change_entry(monkeypatch, **fields):
    """Replace the entry in the catalogue by one with other values of these fields."""
    changed = dataclasses.replace(ENTRY, **fields)
    monkeypatch.setattr(entry, "catalogue", lambda: {ENTRY.name: changed})


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        (rules.above("ce - fl", margin=0.1), "holds"),
        (rules.above("ce - fl", margin=0.9), "contradicted here"),
        (rules.below("last"), "contradicted here"),
        (rules.within("last", -1, -0.5), "contradicted here"),
    ],
)
def test_a_changed_rule_judges_the_same_values(judged, monkeypatch, rule, state):
    """The file of values, and every number in it, is older than the rule."""
    before = json.loads(verdicts.path_of(judged, ENTRY.name).read_text())
    change_entry(monkeypatch, claims={"guo-ts-lowers-ece": rule})
    written, claims_of_file = paged(judged)
    assert f"**guo-ts-lowers-ece: {state}**" in written
    assert f"Rule: {rule.words}." in written
    judged_as = "does not hold" if state == "contradicted here" else state
    assert claims_of_file["guo-ts-lowers-ece"]["state"] == judged_as
    again = verdicts.compute(entry.catalogue()[ENTRY.name], judged, "cpu")
    file = json.loads(verdicts.path_of(judged, ENTRY.name).read_text())
    for key in ("claims", "beside"):
        assert file[key] == json.loads(json.dumps(again[key]))
    assert file["provenance"] == before["provenance"]


def test_a_change_of_all_rules_changes_the_page(judged, monkeypatch):
    assert "**guo-ts-lowers-ece: holds**" in paged(judged)[0]
    monkeypatch.setattr(rules, "SIZE", 0.0)
    written, claims_of_file = paged(judged)
    assert "**guo-ts-lowers-ece: undecided**" in written
    assert claims_of_file["guo-ts-lowers-ece"]["state"] == "undecided"


def test_a_rule_of_a_value_that_was_not_computed_is_named(judged, monkeypatch):
    change_entry(monkeypatch, claims={"guo-ts-lowers-ece": rules.above("fl - ce")})
    with pytest.raises(
        ValueError, match=r"guo_tried\.json .* needs fl - ce; the values are ce - fl"
    ):
        verdicts.read(judged, entry.of_claims())


@pytest.mark.parametrize("runs_of", [of_seeds(3).runs, {"ce": CE, "fl": CE}])
def test_values_of_other_runs_give_no_verdict(judged, monkeypatch, runs_of):
    change_entry(monkeypatch, runs=runs_of)
    assert verdicts.read(judged, entry.of_claims()) == {}
    assert "| guo-ts-lowers-ece | not run |" in paged(judged)[0]


def test_absent_data_is_one_sentence(tmp_path, monkeypatch):
    on_cifar = dataclasses.replace(ENTRY, runs={"ce": Training("cross_entropy")})
    monkeypatch.setattr(entry, "catalogue", lambda: {ENTRY.name: on_cifar})
    listed = listing.rows(tmp_path, {}, entry.of_claims(), str(tmp_path), look_for_data=True)
    states = {row.claim.id: (row.missing, row.minutes) for row in listed}
    assert states["guo-ts-lowers-ece"] == ("data absent", "30")
    why = runs.missing_data("cifar10", str(tmp_path))
    assert why.startswith("the data set cifar10 is absent: --data_dir=DIR")
    assert runs.missing_data("digits", None) == ""


def test_a_training_that_fails_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(runs.sys, "executable", "false")
    with pytest.raises(cli.Failed, match=r"ended with code 1"):
        runs.train_missing([CE], tmp_path, None)


def test_a_training_may_need_another_checkpoint(tmp_path, monkeypatch):
    best = dataclasses.replace(CE, checkpoint="best_error")
    config = runs.config_of(CE)

    def finished(result):
        return [runs.Finished(tmp_path / "1", 1, config, result)]

    assert runs.matching(CE, 1, finished({}))[0]
    assert runs.matching(CE, 1, finished({"checkpoint": "best_error"}))[0]
    assert runs.matching(best, 1, finished({"checkpoint": "best_error"}))[0]
    assert runs.matching(best, 1, finished({}))[0] is None
    commands = []

    def note(command, **_):
        commands.append(command)
        return popen("true")

    popen = subprocess.Popen
    monkeypatch.setattr(runs.subprocess, "Popen", note)
    runs.train_missing([CE, best], tmp_path, None)
    wanted = ["--checkpoint=best_error" in command for command in commands]
    assert wanted == [False, True]


# --------------------------------------------------------------------------------------------
# The command.


@pytest.mark.parametrize(
    ("arguments", "message"),
    some_of(
        [
            (
                ["--run=guo-forcast-gap"],
                "no claim or entry 'guo-forcast-gap'; did you mean guo-forecast-gap",
            ),
            ([], "give --list, --run=CLAIM[,CLAIM], --tables or --page"),
            (["--run=guo_habits", "--recompute"], "there is no file"),
            (
                ["--run=guo_habits", "--data_dir=/nowhere"],
                "the data set cifar10 is absent: --data_dir",
            ),
        ],
        1,
    ),
)
def test_mistakes_are_one_sentence(tmp_path, arguments, message):
    folders = f"--results={tmp_path}", f"--runs_dir={tmp_path}"
    assert message in refused("papers", *arguments, *folders)


def only(*names):
    """Leave only these entries in the catalogue of a fork."""
    entries = {name: entry.catalogue()[name] for name in names}
    entry.catalogue = lambda: entries


def test_all_entries_are_recomputed_but_those_without_records(tmp_path):
    arguments = ("--run=all", "--recompute", f"--results={tmp_path}")
    before = [("tests.experiments.test_papers:only", "guo_habits", "guo_forecast")]
    printed = finish("papers", *arguments, before=before)
    assert "guo_habits: not run; there is no file" in printed
    assert (tmp_path / "guo_forecast.json").exists()


@pytest.mark.slow
def test_missing_runs_are_reported_without_training(tmp_path):
    arguments = ("--run=mukhoti_smoothing", "--notrain", f"--runs_dir={tmp_path}")
    printed = finish("papers", *arguments, f"--results={tmp_path}")
    assert "mukhoti_smoothing: not run;" in printed
    assert "lacks cifar10_resnet8 cross_entropy (seed 1, seed 2, seed 3)" in printed


@pytest.mark.slow
def test_large_networks_are_left_to_an_accelerator(tmp_path):
    folders = (f"--runs_dir={tmp_path}", f"--results={tmp_path}")
    printed = finish("papers", "--run=bsce_gra_architectures", *folders)
    assert "cifar10_densenet121, cifar10_wide_resnet26_10 need an accelerator" in printed


@pytest.mark.slow
def test_an_entry_is_trained_once_and_recomputed(tmp_path):
    folders = (f"--runs_dir={tmp_path / 'runs'}", f"--results={tmp_path / 'results'}")
    arguments = ("--run=mukhoti_shift", "--scale=toy", *folders)
    printed = finish("papers", *arguments)
    assert printed.count("training: ") == 1
    assert "mukhoti-ts-fails-under-shift: " in printed
    path = tmp_path / "results" / "toy" / "mukhoti_shift.json"
    first = json.loads(path.read_text())["claims"]
    # Another entry with the same runs trains none, and the records alone give the same verdict.
    printed = finish("papers", "--run=guo_confidence", "--scale=toy", *folders)
    assert "training: " not in printed
    shutil.rmtree(tmp_path / "runs")
    finish("papers", *arguments, "--recompute")
    assert json.loads(path.read_text())["claims"] == first
