"""The fault table: its parts, one try in the default selection, and all families when slow."""

import json
import shutil
import types

import numpy as np
import pytest

from tests.faults import ends, kills, table
from tests.faults.families import FAMILIES
from tests.faults.kinds import ONE_SEED, Place


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("faults"))


def test_one_kill(place):
    row = kills.killed(place, ONE_SEED, 1)
    assert (row.counts, row.tracebacks) == ({"survived": 1}, 0), row.notes


def change_a_row(folder):
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[-1]["train_loss"] += 1e-9
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def remove_the_page(folder):
    (folder / "report.html").unlink()


def return_to_an_earlier_checkpoint(folder):
    shutil.rmtree(folder / "checkpoints" / "16")


def test_a_difference_is_named(place):
    """The comparison of the table finds a changed number, a missing file and another state."""
    whole = place.whole(ONE_SEED)
    assert any("slope" in name for name in whole.end)
    changes = {
        change_a_row: "metrics.jsonl",
        remove_the_page: "report.html",
        return_to_an_earlier_checkpoint: "checkpoints/STEP",
    }
    for change, name in changes.items():
        folder = place.new(ONE_SEED, copy_of=whole.folder)
        assert place.difference(ONE_SEED, folder) == ""
        change(folder)
        assert name in place.difference(ONE_SEED, folder)


def test_arrays_and_times(tmp_path):
    """Times do not count, and the bits of an array do."""
    folders = [tmp_path / name for name in "ab"]
    for folder, value, seconds in zip(folders, (0.0, -0.0), (1, 2), strict=True):
        folder.mkdir()
        np.savez(folder / "logits.npz", logits=np.float32(value))
        (folder / "times.json").write_text(json.dumps([{"seconds": seconds}]))
    assert ends.difference(*map(ends.end_of, folders)) == "logits.npz"


def printed(output, code):
    """Return a run that has ended."""
    process = types.SimpleNamespace(returncode=code)
    return types.SimpleNamespace(processes=[process], output=lambda: output)


def test_rows_of_the_table():
    row = table.Row("a fault")
    row.read(printed("no error here\n", 0))
    row.add("survived", tries=2)
    assert row.good
    assert row.sentence == ""
    assert table.shown("in /tmp/x/run_3/data.json, /t/disk_1/run_2") == "in RUN/data.json, RUN"
    row.read(printed("step 1\nerror: /tmp/x/run_3/metrics.csv cannot be read | so.\n", 1))
    assert row.tracebacks == 0
    row.read(printed("Traceback (most recent call last):\n  File\nerror: no\n", 1))
    row.read(printed("killed in C++\n", -6))
    row.read(printed("no reason\n", 1))
    row.add("refused")
    assert not row.good
    section = table.section([row, row], ["--out=/home/me/faults.md"], 3)
    sentence = "error: RUN/metrics.csv cannot be read \\| so."
    assert f"| a fault | 3 | 2 | 1 | 0 | 0 | 3 | {sentence} |" in section
    assert "`python -m tests.faults --out=faults.md`" in section
    text = table.page({"kills": section, "disks": section})
    assert "**12 tries: 8 survived, 4 refused, 0 lost, 0 silently wrong; 12 tracebacks.**" in text
    assert table.sections_in(text) == {"kills": section, "disks": section}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_lost_or_wrong(place, family):
    for row in FAMILIES[family].rows(place, 0.3):
        print(table.line_of([row.fault, dict(row.counts), row.sentence]))
        assert row.good, row.notes
