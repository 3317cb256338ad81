"""Damaged and mixed files of the ledger of claims: one sentence names the file and the way out."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from experiments.papers import claims, published
from experiments.papers.judge import verdicts
from experiments.papers.store import records, runs
from tests.experiments.test_papers import CE, ENTRY, FOCAL, fabricate

pytestmark = pytest.mark.papers


@pytest.fixture
def folder(tmp_path):
    """Records of two losses and two seeds, with a measurement of each."""
    results = tmp_path / "results"
    for seed in (1, 2):
        fabricate(tmp_path / "all", CE, seed, wrong=0.6)
        fabricate(tmp_path / "all", FOCAL, seed, wrong=0.1)
    records.collect(results, ENTRY, tmp_path / "all", None)
    return results


def changed(path, **arrays):
    """Write arrays of a file again; None removes one."""
    with np.load(path) as file:
        kept = dict(file)
    kept |= {name: array for name, array in arrays.items() if array is not None}
    records.save(path, {name: kept[name] for name in kept if arrays.get(name, 0) is not None})


def as_bytes(value):
    """Write a value as records hold it."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def about(path, **keys):
    """Change what a record says about its run; None removes a key."""
    values = records.about(path) | keys
    changed(path, about=as_bytes({key: values[key] for key in values if values[key] is not None}))


def refused(folder, message, entry=ENTRY):
    """Check the sentence with which the records of an entry are refused."""
    with pytest.raises((ValueError, LookupError), match=message) as raised:
        verdicts.compute(entry, folder, "cpu")
    assert re.search(r"1\.npz|2\.npz|_noise\.npz", str(raised.value))
    assert "remove it" in str(raised.value)


def test_a_record_of_another_seed_is_refused(folder):
    path = records.path_of(folder, CE, 2)
    shutil.copy(records.path_of(folder, CE, 1), path)
    refused(folder, r"2\.npz is of seed 1, and not of seed 2")
    about(path, config=records.about(path)["config"] | {"seed": 2})
    refused(folder, r"2\.npz and .*1\.npz have the same predictions")


@pytest.mark.parametrize("key", ["seconds", "processor"])
def test_a_record_without_a_fact_of_its_run_is_named(folder, key):
    about(records.path_of(folder, CE, 1), **{key: None})
    refused(folder, rf"cannot be read as a record of a run: 'about' has no {key}")


def test_a_record_with_text_for_seconds_is_named(folder):
    about(records.path_of(folder, CE, 1), seconds="ten")
    refused(folder, "the seconds in 'about' is 'ten'")


def test_a_record_without_its_predictions_is_named(folder):
    names = [f"{part}_{name}" for part in records.PARTS for name in ("logits", "labels")]
    changed(records.path_of(folder, CE, 1), **dict.fromkeys(names))
    refused(folder, "it has no array 'test_logits'; it has log, about")
    # A training whose entries read measurements alone keeps no predictions.
    without = dataclasses.replace(CE, keep="none")
    assert len(records.read(folder, without, 1).test.right) == 0


def test_half_of_the_rows_are_named(folder):
    path = records.path_of(folder, CE, 2)
    run = records.read(folder, CE, 2).test
    changed(path, test_labels=run.labels[:100])
    refused(folder, r"test_logits has shape \(200, 10\), and test_labels \(100,\)")
    changed(path, test_logits=run.logits[:100].astype(np.float16))
    refused(folder, r"2\.npz has 100 test examples, and .*1\.npz has 200")


def test_a_label_that_is_no_class_is_named(folder):
    changed(records.path_of(folder, CE, 1), test_labels=np.full(200, 10, np.uint8))
    refused(folder, "test_labels are not all in 0 to 9")


def test_a_log_that_is_no_list_is_named(folder):
    changed(records.path_of(folder, CE, 1), log=as_bytes({"epoch": 1}))
    refused(folder, "its log is no list of rows")


def test_a_missing_record_names_the_command_that_makes_it(folder):
    for seed in (1, 2):
        records.path_of(folder, CE, seed).unlink()
    command = r"python -m experiments\.papers --run=guo_tried --data_dir=DIR"
    with pytest.raises(FileNotFoundError, match=rf"1\.npz \(and 1 more are absent\): {command}"):
        verdicts.compute(ENTRY, folder, "cpu")


@pytest.fixture
def measured(folder, tmp_path, monkeypatch):
    """The entry with a measurement of every run."""
    monkeypatch.setattr(
        records.measures, "named", lambda name: lambda folder, data_dir: {"x": np.zeros(1)}
    )
    entry = dataclasses.replace(ENTRY, measures=("noise",))
    assert records.collect(folder, entry, tmp_path / "all", None) == {}
    return entry


def test_a_measurement_of_another_run_is_refused(folder, measured):
    first, second = (records.path_of(folder, CE, seed, "noise") for seed in (1, 2))
    assert list(records.read_all(folder, measured)["ce"][0].measured["noise"]) == ["x"]
    shutil.copy(first, second)
    refused(folder, r"2_noise\.npz is of a run of seed 1, and .* of seed 2", measured)
    changed(second, about=None)  # older measurements do not name their run
    assert records.read_all(folder, measured)
    date = {"seed": 2, "commit": "abc", "date": "2026-03-04"}
    changed(second, about=as_bytes(date))
    refused(folder, r"2_noise\.npz is of a run of date 2026-03-04, and .* 2026-01-02", measured)


def test_a_measurement_without_an_array_is_named(folder, measured):
    run = records.read_all(folder, measured)["ce"][0]
    with pytest.raises(LookupError, match=r"1_noise\.npz has no array 'share': remove it"):
        run.measured["noise"]["share"]
    with pytest.raises(LookupError, match=r"1_noise\.npz has no array 'before_doubt': remove it"):
        run.columns("noise", "before")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("guo,T1,a,b,c,ECE,pre,abc,", r"line 3 of .*t\.csv has 'abc' where a number"),
        ("guo,T1,a,b,c,ECE,pre,1.0,hot", r"line 3 of .*t\.csv has 'hot' where a number"),
        ("guo,T1,a,b,c,ECE,pre,1.0", r"line 3 of .*t\.csv has not 9 cells"),
        ("guo,T1,a,b,c,ECE,pre,1.0,,5", r"line 3 of .*t\.csv has not 9 cells"),
    ],
)
def test_a_wrong_published_row_is_named(tmp_path, line, message):
    path = tmp_path / "t.csv"
    path.write_text(f"{','.join(published.COLUMNS)}\nguo,T1,a,b,d,ECE,pre,1.5,2.0\n{line}\n")
    with pytest.raises(ValueError, match=message):
        published.read(path)


@pytest.mark.parametrize(("read", "name"), [(published.read, "phase"), (claims.read, "test")])
def test_a_table_without_a_column_is_named(tmp_path, read, name):
    columns = published.COLUMNS if read is published.read else claims.Claim._fields
    path = tmp_path / "t.csv"
    path.write_text(",".join(column for column in columns if column != name) + "\n")
    with pytest.raises(ValueError, match=rf"t\.csv must have the columns .*{name}"):
        read(path)


def test_a_claim_without_its_last_cells_is_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{','.join(claims.Claim._fields)}\nguo-a,guo,here\n")
    with pytest.raises(ValueError, match=r"line 2 of .*t\.csv has not 12 cells"):
        claims.read(path)


@pytest.mark.parametrize("cell", ['"x', '"x"y'])
def test_quotes_that_do_not_match_are_named(tmp_path, cell):
    # Without strict quotes the first cell would hold the next line too.
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n1,{cell}\n2,y\n")
    with pytest.raises(ValueError, match=r"quotes of .*t\.csv do not match from line 2 on"):
        claims.table(path, ["a", "b"])


def test_runs_of_another_config_stay_in_their_folder(folder):
    """The config of a record has the seed of its file."""
    for seed in (1, 2):
        assert records.about(records.path_of(folder, CE, seed))["config"]["seed"] == seed
    assert runs.config_of(CE)["seed"] == 1


@pytest.mark.parametrize(
    ("rule", "original", "changed", "why", "said"),
    [
        ("", "holds if a", "", "", "has no rule"),
        ("holds if a", "", "", "", "has no rule"),
        ("holds if b", "holds if a", "", "better", "needs the time in changed"),
        ("holds if b", "holds if a", "2026-11-25", "", "needs the time in changed"),
        ("holds if a", "holds if a", "2026-11-25", "better", "only such a one"),
    ],
)
def test_a_rule_without_its_history_is_refused(tmp_path, rule, original, changed, why, said):
    row = dict.fromkeys(claims.Claim._fields, "x") | {"id": "guo-x", "rule": rule}
    row |= {"rule_original": original, "changed": changed, "why": why}
    path = tmp_path / "claims.csv"
    path.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    with pytest.raises(ValueError, match=said):
        claims.read(path)
