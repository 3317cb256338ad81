"""The list and the page of verdicts: evidence, costs and places; and files of verdicts as read."""

import dataclasses
import functools
import json
import operator
import re

import numpy as np
import pytest

from calib_jax import inference
from experiments.papers import claims, entry
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import estimates, rules, states, verdicts
from experiments.papers.judge.values import Value
from experiments.papers.page import findings, listing, procedure_page, repetitions
from experiments.papers.page import verdicts_page as page
from experiments.papers.store import records, runs
from tests.experiments.processes import ROOT, finish, refused
from tests.experiments.test_papers import CE, ENTRY, FOCAL, fabricate

pytestmark = pytest.mark.papers

RESULTS = ROOT / "experiments" / "results" / "papers"
CLAIM = "guo-ts-lowers-ece"
OTHER = dataclasses.replace(
    ENTRY,
    claims={"guo-ts-keeps-accuracy": rules.true("yes")},
    statistic=lambda trained: {"yes": Value(1.0)},
    runs={"ce": CE},
    name="guo_other",
)
PROOF = Entry(
    {"guo-forecast-gap": rules.true("yes")}, lambda: {"yes": Value(1.0)}, name="guo_proof"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Verdicts of three entries; two share the runs of cross-entropy, on two processors."""
    entries = {tested.name: tested for tested in (ENTRY, OTHER, PROOF)}
    monkeypatch.setattr(entry, "catalogue", lambda: entries)
    for training in (CE, FOCAL):
        for seed in (1, 2):
            path = fabricate(tmp_path / "all", training, seed, wrong=0.6 if training is CE else 0.1)
            if training is FOCAL:
                start = json.loads((path / "environment.jsonl").read_text())
                (path / "environment.jsonl").write_text(
                    json.dumps(start | {"processor": "y"}) + "\n"
                )
    results = tmp_path / "results"
    for tested in entries.values():
        records.collect(results, tested, tmp_path / "all", None)
        verdicts.write(results, verdicts.compute(tested, results, "cpu"))
    return results


def read(folder):
    """The verdicts in a folder, and the states of all claims."""
    standing = verdicts.read(folder, entry.of_claims())
    return standing, listing.rows(folder, standing, entry.of_claims())


def written(folder):
    """The pages of a folder."""
    standing, listed = read(folder)
    return page.texts(listed, standing, entry.of_claims(), [])


def sections(texts):
    """The text under every heading of all pages."""
    parts = [part for text in texts.values() for part in text.split("\n## ")[1:]]
    return {part.partition("\n")[0]: part for part in parts}


def check_links(texts):
    """Check that the links between pages lead to a heading of a page."""
    links = [link for text in texts.values() for link in re.findall(r"\]\((\w+\.md)#(\w+)\)", text)]
    assert links
    for name, heading in links:
        assert f"\n## {heading}\n" in texts[name]


def test_the_page_says_on_what_a_verdict_rests(folder):
    texts = written(folder)
    assert texts.keys() == {"README.md", "guo.md", "appendix.md"}
    check_links(texts)
    parts = sections(texts)
    networks = "Trained: mlp on 500 digits, 60 epochs, seeds 1 to 2"
    assert f"{networks} (cross_entropy, focal gamma 1)." in parts["guo_tried"]
    assert f"{networks} (cross_entropy)." in parts["guo_other"]
    assert "Trained: no network." in parts["guo_proof"]
    place = "Source: guo, Calibration Methods"
    assert place in parts["guo_tried"]
    assert "| [guo](guo.md) | 1 |" in parts["Claims"]
    assert "| [appendix](appendix.md) | 2 |" in parts["Claims"]
    assert "identity" not in parts["Counts"].partition("| all |")[0]
    index = texts["guo.md"]
    assert re.search(rf"\| {CLAIM} \| holds \| \S+ \| \S+ \| \S+ \| trained network", index)
    assert "guo-forecast-gap" not in index
    row = "| guo-forecast-gap | holds |  |  |  | identity or unit test | [guo_proof](#guo_proof) |"
    assert row in texts["appendix.md"]
    assert "| identity or unit test | 2 |" in texts["appendix.md"]


def test_a_long_page_is_split(folder, monkeypatch):
    monkeypatch.setattr(page, "LIMIT", 40)
    texts = written(folder)
    assert texts.keys() == {"README.md", "guo.md", "appendix.md", "appendix_2.md"}
    check_links(texts)
    title = "# Appendix: formulas and published tables, page 2\n"
    assert texts["appendix_2.md"].startswith(title)


@pytest.mark.parametrize(
    ("training", "line"),
    [
        (
            Training("focal", {"gamma": 3.0}),
            "ResNet-8 on 10,000 images of CIFAR-10, 40 epochs, seeds 1 to 3 (focal gamma 3)",
        ),
        (
            Training("flsd53", config="cifar10_lenet5", seeds=1, changes={"batch_size": 4}),
            "LeNet-5 on 45,000 images of CIFAR-10, 20 epochs, seed 1 (flsd53 with batch_size 4)",
        ),
        (
            Training("recall", config="cifar10_lt_resnet8"),
            "ResNet-8 on 11,101 images of CIFAR-10, long-tailed by a factor of 100, 40 epochs,"
            " seeds 1 to 3 (recall alpha 1)",
        ),
        (
            Training("brier", changes={"diagnose": False}, alias="undiagnosed"),
            "ResNet-8 on 10,000 images of CIFAR-10, 40 epochs, seeds 1 to 3 (brier)",
        ),
    ],
)
def test_a_training_in_words(training, line):
    tested = Entry({}, {}, runs={"a": training, "b": dataclasses.replace(training)})
    assert page.evidence(tested, []) == f"Trained: {line}."


def test_a_shared_run_is_counted_once(folder):
    parts = sections(written(folder))
    assert "All verdicts rest on 4 runs, which took 4 minutes of training" in parts["Cost"]
    cost = "Cost: 4 runs, 4 minutes of training, shared with 1 other entry (x, y; commit abc); "
    assert cost in parts["guo_tried"]
    assert (
        "Cost: 2 runs, 2 minutes of training, shared with 1 other entry (x; " in parts["guo_other"]
    )
    again = "Compute again: `--run=guo_tried --recompute`; train again: `--run=guo_tried --data_dir"
    assert again in parts["guo_tried"]
    assert "train again" not in parts["guo_proof"]


def test_only_claims_about_trained_networks_are_counted(folder):
    _, listed = read(folder)
    totals = {row[0]: int(row[-1]) for row in listing.counts(listed)[1:]}
    everything = totals.pop("all")
    assert sum(totals.values()) == everything
    scales = [row.claim.scale for row in listed if row.claim.id not in states.CHECKS]
    assert everything == scales.count("cpu") + scales.count("gpu")
    assert set(states.CHECKS) <= {row.claim.id for row in listed}


def row_of(listed, claim=CLAIM):
    """The row of a claim."""
    return next(row for row in listed if row.claim.id == claim)


def test_a_finished_claim_has_its_cost(folder):
    row = row_of(read(folder)[1])
    assert (row.standing.state, row.minutes, row.spent) == ("holds", "0", "4")


def test_missing_runs_cost_what_recorded_ones_took(folder, monkeypatch):
    def minutes(**trainings):
        tested = dataclasses.replace(ENTRY, runs=trainings)
        listed = listing.rows(folder, {}, {CLAIM: tested})
        return row_of(listed).minutes

    slow = records.path_of(folder, FOCAL, 2)
    about = records.about(slow)
    assert about["seconds"] == 60.0
    monkeypatch.setattr(
        records, "about", lambda path: about | {"seconds": 240.0 if path == slow else 60.0}
    )
    # As other seeds of the same training, or else as all runs of the config.
    assert minutes(fl=dataclasses.replace(FOCAL, seeds=4)) == "5"
    assert minutes(brier=Training("brier", config="digits", seeds=4)) == "7"
    assert minutes(ce=Training("cross_entropy", config="cifar10_lenet5", seeds=2)) == "8"
    assert minutes(ce=Training("cross_entropy", config="cifar100_resnet110", seeds=2)) == "?"


@pytest.mark.parametrize(
    ("training", "device"),
    [
        (Training("cross_entropy", config="cifar10_densenet121"), "gpu"),
        (Training("cross_entropy", config="cifar10_resnet50", changes={"num_epochs": 30}), "gpu"),
        (Training("cross_entropy"), "cpu"),
    ],
)
def test_the_device_is_that_of_the_trainings(tmp_path, training, device):
    by_claim = {CLAIM: dataclasses.replace(ENTRY, runs={"ce": training})}
    text = listing.text(listing.rows(tmp_path, {}, by_claim))
    (line,) = (line for line in text.splitlines() if line.startswith(f"{CLAIM} "))
    assert f"  {device}  " in line


def test_the_list_fits_and_says_how_to_get_data(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "missing_data", lambda name, data_dir: name == "cifar10")
    absent = tmp_path, {}, entry.of_claims()
    text = listing.text(listing.rows(*absent, look_for_data=True))
    claims, notes = text.split("\n\nMinutes to do")
    assert max(map(len, claims.splitlines())) <= 126
    assert "Data absent: cifar10. Give --data_dir=DIR, the folder that has them;" in notes
    given = listing.text(listing.rows(*absent, "/here", look_for_data=True), "/here")
    assert "Data absent in /here: cifar10." in given


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (["note"], None, "it has no note"),
        (["runs", 0, "minutes"], None, "run 1 has no minutes"),
        (["runs", 3, "minutes"], "ten", "the minutes in run 4 is 'ten'"),
        (["runs"], "x", "the runs in it is 'x'"),
        (["claims", CLAIM, "values"], None, f"{CLAIM} has no values"),
        (["claims", CLAIM, "values", "ce - fl"], 3, "the value 'ce - fl' has no value"),
        (["beside", "last", "freedom"], None, "the value 'last' has no freedom"),
        (["provenance", "versions", "jax"], None, "its versions has no jax"),
        (["entry"], "guo_other", "it holds the verdicts of guo_other"),
    ],
)
def test_verdicts_without_what_is_printed_are_named(folder, place, value, message):
    """A value of a file is removed, or replaced by another."""
    path = verdicts.path_of(folder, ENTRY.name)
    record = json.loads(path.read_text())
    *above, last = place
    parent = functools.reduce(operator.getitem, above, record)
    if value is None:
        del parent[last]
    else:
        parent[last] = value
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"guo_tried\.json cannot be read as verdicts") as raised:
        read(folder)
    assert message in str(raised.value)
    assert "--run=guo_tried writes it again" in str(raised.value)


@pytest.fixture(scope="module")
def found():
    """The findings of the committed verdicts."""
    return findings.compute(RESULTS, read(RESULTS)[0], entry.of_claims())


def test_the_committed_pages_are_those_of_today_s_rules(found):
    """After a change of a rule or of a claim, `python -m experiments.papers --page` mends them."""
    standing, listed = read(RESULTS)
    expected = page.texts(listed, standing, entry.of_claims(), found)
    committed = {path.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")}
    del committed["tables.md"]
    assert committed == expected
    assert max(text.count("\n") for text in expected.values()) <= page.LIMIT
    check_links(expected)
    toctree = (ROOT / "experiments" / "documentation" / "index.md").read_text()
    text = procedure_page.text(RESULTS, listed, standing)
    assert (RESULTS / procedure_page.FILE).read_text(encoding="utf-8") == text
    for name in expected:
        assert f"/experiments/results/papers/{name.removesuffix('.md')}\n" in toctree


def test_the_counts_in_readmes_are_those_of_the_page():
    """After a change, the sentence of results/papers/README.md is the one to copy."""
    sentence = listing.headline(read(RESULTS)[1])
    for name in ("CHANGELOG.md", "experiments/papers/README.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert sentence in text, f"{name} lacks: {sentence}"


def test_every_claim_about_trained_networks_has_a_p_value_or_says_why():
    _, listed = read(RESULTS)
    trained = [row for row in listing.of_kind(listed, states.TRAINED) if not row.missing]
    without = {row.claim.id for row in trained if row.standing.p is None}
    assert without == states.WITHOUT_P.keys()
    assert all(row.standing.p is not None for row in listing.of_kind(listed, states.TOY))


def predictions_of(path):
    """The predictions of a record for the test set."""
    with np.load(path) as arrays:
        if "test_logits" in arrays:
            logits = arrays["test_logits"].astype(np.float32)
            return estimates.Predictions(logits, arrays["test_labels"])
        return estimates.Columns(1 - arrays["test_doubt"].astype(float), arrays["test_right"])


def test_a_repeated_seed_differs_as_much_as_another_seed():
    """The page of the procedure prints both differences of root-CE2."""
    config = RESULTS / "runs" / "cifar10_resnet8"
    pairs = {
        "cross_entropy": "cross_entropy-undiagnosed",
        "adafocal": "adafocal-undiagnosed",
        "flsd53": "flsd53-undiagnosed",
        "mmce": "mmce-undiagnosed",
        "focal-gamma=3.0": "focal-undiagnosed-gamma=3.0",
        "focal-gamma=5.0": "focal-undiagnosed-gamma=5.0",
    }
    same, other = [], []
    for labels in pairs.items():
        roots = np.zeros((2, 3))
        for place, label in enumerate(labels):
            for seed in (1, 2, 3):
                part = predictions_of(config / label / f"{seed}.npz")
                roots[place, seed - 1] = 100 * estimates.squared_error(part).value ** 0.5
        same += list(roots[0] - roots[1])
        other += [row[a] - row[b] for row in roots for a, b in ((0, 1), (0, 2), (1, 2))]
    means = (np.sqrt(np.mean(np.square(of))) for of in (same, other))
    sentence = (
        "by {:.2f} points (root mean square of 18 pairs), that of two seeds of a loss by {:.2f}"
    )
    assert sentence.format(*means) in " ".join((RESULTS / procedure_page.FILE).read_text().split())


def test_other_seeds_stand_beside_those_of_the_verdicts(tmp_path):
    """Cross-entropy errs most in both blocks; a loss without records of all seeds is left out."""
    for name, training in repetitions.COMPARED.items():
        for seed in range(1, 6 if name == "Brier" else 7):
            wrong = 0.6 if name == repetitions.BASELINE else 0.1
            fabricate(tmp_path / "all", training, seed, wrong=wrong)
    repetitions.collect(tmp_path, tmp_path / "all", None)
    *_, table = repetitions.text(tmp_path)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    assert rows[0][1:3] == ["root-CE2, seeds 1 to 3", "root-CE2, seeds 4 to 6"]
    assert [row[0] for row in rows[2:]] == ["FLSD-53", "label smoothing", "BSCE-GRA", "AdaFocal"]
    for column, place in (("root-CE2", 1), ("error", 5)):
        for k, seeds in enumerate(repetitions.BLOCKS.values()):
            both = []
            for loss in ("flsd53", "cross_entropy"):
                folder = tmp_path / "runs" / "cifar10_resnet8" / loss
                parts = [predictions_of(folder / f"{seed}.npz") for seed in seeds]
                wrong = [np.mean(part.logits.argmax(-1) != part.labels) for part in parts]
                squares = [estimates.squared_error(part).value for part in parts]
                both.append(np.mean(wrong) if column == "error" else np.sqrt(np.mean(squares)))
            middle = float(rows[2][place + k].partition(" ")[0])
            assert middle == pytest.approx(100 * (both[0] - both[1]), abs=0.051)


def test_effects_are_differences_of_calibration_errors(found):
    """The effect of a few losses is the difference of the roots of the public function's errors."""
    assert [finding.row for finding in found] == findings.read()
    by_value = {finding.row.value: finding for finding in found}
    config = RESULTS / "runs" / "cifar10_resnet8"

    def root(label):
        parts = [predictions_of(config / label / f"{seed}.npz") for seed in (1, 2, 3)]
        errors = [inference.debiased_squared_error(p.logits, p.labels).value for p in parts]
        return 100 * np.mean(errors) ** 0.5

    for value, label in (
        ("CE2(CE) - CE2(FL-3)", "focal-gamma=3.0"),
        ("CE2(CE) - CE2(LS-0.05)", "label_smoothing"),
        ("CE2(CE) - CE2(BSCE-GRA)", "bsce_gra"),
    ):
        estimate, low, high = by_value[value].effect
        assert estimate == pytest.approx(root("cross_entropy") - root(label), abs=0.01)
        assert low < estimate < high


def test_a_row_as_stated_under_a_claim_that_does_not_hold_names_the_reason(found):
    rows = (RESULTS / "README.md").read_text(encoding="utf-8").splitlines()
    for finding in found:
        if finding.effect and finding.effect[1] > 0:
            (line,) = (row for row in rows if row.startswith(f"| {finding.row.finding} |"))
            assert re.search(r"\[holds\]|by another part: \S|, after Holm 0\.\d", line), line


def test_counts_of_published_rows(found):
    """The slides of AdaFocal print 14 of 15 and 12 of 15."""
    counted = {finding.row.claim: finding.counted for finding in found if finding.counted}
    assert counted["adafocal-best-14-of-15-pre"] == (14, 15)
    assert counted["adafocal-best-12-of-15-post"] == (12, 15)
    assert all(0 < count <= rows for count, rows in counted.values())


def test_published_effects_are_those_of_the_claim(found):
    """Both numbers stand in the claim, or in the recount of the same table."""
    for finding in found:
        row = finding.row
        names = row.claim, row.claim.replace("-own", "-table")
        texts = "".join(claims.read()[name].published for name in names if name in claims.read())
        for number in filter(None, (row.published_first, row.published_second)):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", texts), row


def test_the_forest_plot_has_the_published_effect_beside_the_own(found):
    some = [
        f for f in found if f.row.value in ("CE2(CE) - CE2(FL-3)", "CE2(LS-0.1) - CE2(LS-0.05)")
    ]
    own, published = findings.figure(some).axes
    points = [
        [float(x) for line in axes.lines for x in np.asarray(line.get_xdata())]
        for axes in (own, published)
    ]
    assert points[0][:2] == pytest.approx([finding.effect[0] for finding in some])
    assert points[1][0] == pytest.approx(2.87)
    assert own.get_xlim() == published.get_xlim()


def test_the_committed_files_have_the_verdicts_of_today_s_rules():
    """The last digits of intervals depend on the version of SciPy."""
    for verdict in read(RESULTS)[0].values():
        file = json.loads(verdicts.path_of(RESULTS, verdict.entry).read_text())
        part, today = file["claims"][verdict.claim], verdict.record["claims"][verdict.claim]
        assert part["values"].keys() == today["values"].keys()
        assert (part["p"] is None) == (today["p"] is None)
        assert (part["p"] or 0.0) == pytest.approx(today["p"] or 0.0, rel=1e-6)
        for key in today.keys() - {"p", "values"}:
            assert part[key] == today[key], (verdict.claim, key)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--list"],
        pytest.param(["--page"], marks=pytest.mark.slow),
        pytest.param(["--tables"], marks=pytest.mark.slow),
        pytest.param(["--tables", "--recompute"], marks=pytest.mark.slow),
        pytest.param(["--run=guo_forecast", "--recompute"], marks=pytest.mark.slow),
    ],
)
def test_a_folder_that_does_not_exist_is_refused(tmp_path, arguments):
    assert refused("papers", *arguments, f"--results={tmp_path / 'none'}") == (
        f"error: the folder {tmp_path / 'none'} does not exist: --results=DIR is the folder of"
        " verdicts and records, and --run=ENTRY creates it.\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "flag", ["--out=x", "--recompute", "--notrain", "--tiny", "--precision=float32"]
)
def test_a_flag_without_effect_is_refused(flag):
    printed = refused("papers", "--list", flag)
    assert printed.startswith(f"error: {flag.partition('=')[0]} needs --")


@pytest.mark.slow
def test_a_run_creates_the_folder(tmp_path):
    finish("papers", "--run=guo_forecast", f"--results={tmp_path / 'new'}")
    assert (tmp_path / "new" / "guo_forecast.json").is_file()
