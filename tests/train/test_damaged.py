"""Damaged files beside whole checkpoints: the run goes on, says what it mended, and loses nothing.

Every damage is done to every file in turn; the run must end as an undisturbed one.
"""

import json
import shutil

import pytest

from calib_jax import train
from calib_jax.train.folder import journal
from calib_jax.train.folder.changes import AnotherConfig
from calib_jax.train.folder.record import CHECKPOINTS
from tests.selection import first_case
from tests.train.test_loop import rows_in, run, same, stopping_after_chunks

CONFIG = {"rate": 0.1, "loss": {"name": "adafocal", "options": {}}}
SIDES = (
    *(journal.ROWS, journal.TABLE, journal.LOSS_STATE, journal.ENVIRONMENT, journal.CONFIG),
    journal.FORMAT_FILE,
    journal.SPOKEN,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three epochs, which is through, and its outcome."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(folder, config=CONFIG)


def garbage(path):
    path.write_bytes(b"\xff\xfe\x00 no JSON \x80\n" * 3)


def nuls(path):
    path.write_bytes(b"\0" * len(path.read_bytes()))


def nothing_of_a_kind(path):
    path.write_text("[]\n")


def null(path):
    path.write_text("null\n")


def nested(path):
    path.write_text("[" * 100_000 + "\n")


def folder_in_its_place(path):
    path.unlink()
    (path / "inside").mkdir(parents=True)


def loop_of_links(path):
    path.unlink()
    path.symlink_to(path.name)


def gone(path):
    path.unlink()


def cut(path):
    """Lose all but the first line, at the end of a line."""
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")


DAMAGES = (
    *(garbage, nuls, nothing_of_a_kind, null, nested),
    *(folder_in_its_place, loop_of_links, gone, cut),
)


@first_case
@pytest.mark.parametrize("name", SIDES)
def test_a_damaged_file_beside_whole_checkpoints_is_mended(finished, tmp_path, capsys, name):
    whole, outcome = finished
    for damage in DAMAGES:
        folder = tmp_path / damage.__name__
        shutil.copytree(whole, folder)
        damage(folder / name)
        before = {side: (folder / side).read_bytes() for side in SIDES if side != name}
        again = run(folder, config=CONFIG)
        assert again.already, damage
        assert same(again.state, outcome.state)
        assert rows_in(folder) == rows_in(whole), damage
        rows = journal.TABLE, journal.LOSS_STATE
        for side in (*rows, journal.CONFIG, journal.FORMAT_FILE):
            assert (folder / side).read_text() == (whole / side).read_text(), damage
        for side in set(before) - {journal.SPOKEN}:
            assert (folder / side).read_bytes() == before[side], (damage, side)
        log = (folder / journal.SPOKEN).read_text(errors="replace")
        warned = [line for line in log.splitlines() if line.startswith("warning: ")]
        assert len(warned) <= 1
        # A log or a list of starts may be gone or short: nobody can tell, and nothing needs them.
        quiet = name == journal.SPOKEN and damage not in (folder_in_its_place, loop_of_links)
        quiet |= name == journal.ENVIRONMENT and damage in (gone, cut)
        quiet |= name == journal.FORMAT_FILE and damage is gone
        assert len(warned) == (0 if quiet else 1), (damage, warned)
        if warned:
            assert f"{name}: " in warned[0]
        shutil.rmtree(folder)


def test_folders_of_every_format(finished, tmp_path):
    """A folder that has lost its number gets it again; one of a newer version is refused."""
    whole, outcome = finished
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    number = folder / journal.FORMAT_FILE
    assert json.loads(number.read_text()) == {"format": journal.FORMAT}
    number.unlink()
    with pytest.raises(AnotherConfig, match=r"another config \(rate: 0.1 before, 0.2 now\)"):
        run(folder, config={**CONFIG, "rate": 0.2})
    again = run(folder, config=CONFIG)
    assert again.already
    assert same(again.state, outcome.state)
    assert json.loads(number.read_text()) == {"format": journal.FORMAT}
    number.write_text(json.dumps({"format": journal.FORMAT + 1}))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(AnotherConfig) as caught:
        run(folder, config=CONFIG)
    assert str(caught.value) == (
        f"{folder} has the format {journal.FORMAT + 1}, and this version of calib_jax reads"
        f" formats up to {journal.FORMAT}: update calib_jax, or choose another folder."
    )
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_of_every_file_are_restored_with_one_warning(finished, tmp_path):
    whole, _ = finished
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / journal.TABLE).unlink()
    lines = (folder / journal.ROWS).read_bytes().split(b"\n")
    (folder / journal.ROWS).write_bytes(b"\n".join([lines[0], b"{damaged", *lines[2:]]))
    (folder / journal.LOSS_STATE).unlink()
    run(folder, config=CONFIG)
    (warned,) = [
        line
        for line in (folder / journal.SPOKEN).read_text().splitlines()
        if line.startswith("warning: ")
    ]
    why = "its rows differ from the rows of the checkpoint"
    assert f"metrics.jsonl: {why}, kept as metrics.jsonl.damaged, restored from" in warned
    for name in (journal.LOSS_STATE, journal.TABLE):
        assert f"{name}: {why}, restored from the checkpoint" in warned
    assert b"{damaged" in (folder / "metrics.jsonl.damaged").read_bytes()
    for name in (journal.ROWS, journal.TABLE, journal.LOSS_STATE):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_files_of_rows_of_another_program_are_kept(tmp_path):
    """Without a checkpoint, rows of a killed run are replaced, and other files are renamed."""
    (tmp_path / journal.ROWS).write_text('{"step": 4}\n{"step": 8, "cut o')
    (tmp_path / journal.TABLE).write_text("name,price\npear,2\n")
    (remark,) = journal.Journal(tmp_path).rewind()
    assert remark == "metrics.csv: it has no rows of a run, kept as metrics.csv.damaged"
    assert (tmp_path / "metrics.csv.damaged").read_text() == "name,price\npear,2\n"
    assert (tmp_path / journal.ROWS).read_text() == ""


def test_a_damaged_run_goes_on_to_the_end_of_an_undisturbed_one(finished, tmp_path, monkeypatch):
    """Stopped after an epoch; then every file beside the checkpoints is garbage."""
    whole, outcome = finished
    with monkeypatch.context() as patch:
        stopping_after_chunks(patch, 4)
        assert run(tmp_path, config=CONFIG).step == 4
    for name in SIDES:
        garbage(tmp_path / name)
    again = run(tmp_path, config=CONFIG)
    assert same(again.state, outcome.state)
    assert rows_in(tmp_path) == rows_in(whole)


def test_a_reader_of_rows_warns_of_lines_that_it_leaves_out(tmp_path):
    path = tmp_path / journal.ROWS
    path.write_bytes(b'{"step": 1}\n\0\0\0\n{"step": 3}\n{"step": 4, "cut o')
    with pytest.warns(UserWarning, match=r"metrics.jsonl: line 2 cannot be read"):
        assert [row["step"] for row in journal.read_rows(path)] == [1, 3]


def test_what_a_checkpoint_says_of_itself_has_a_checksum(finished, tmp_path):
    whole, _ = finished
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (about,) = (folder / CHECKPOINTS / "12" / "about").glob("metadata")
    text = about.read_text()
    changed = text.replace('"rate": 0.1', '"rate": 0.2')
    assert changed != text
    about.write_text(changed)
    checkpoints = train.Checkpoints(folder / CHECKPOINTS, read_only=True)
    try:
        with pytest.raises(
            LookupError, match=r"checkpoint 12 in .* is damaged: its JSON object is not what"
        ):
            checkpoints.variables(12)
        assert checkpoints.about()["ledger"]["row"]["step"] == 8
    finally:
        checkpoints.close()
