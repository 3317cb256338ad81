"""Files are written whole or not at all, and what a killed process left is removed."""

import concurrent.futures
import errno
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from calib_jax import calibrators, data, models, report
from calib_jax.core.files import writing

LOGITS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
LABELS = np.arange(60) % 3


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_are_replaced_together_and_others_stay(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    with writing.staged(tmp_path) as new:
        (new / "a.txt").write_text("new")
        (new / "inside").mkdir()
        (new / "inside" / "b.txt").write_text("new")
        assert (tmp_path / "a.txt").read_text() == "old"
        assert not (tmp_path / "inside").exists()
    assert names(tmp_path) == ["a.txt", "inside", "mine.txt"]
    assert (tmp_path / "a.txt").read_text() == "new"
    assert (tmp_path / "inside" / "b.txt").read_text() == "new"


def test_a_folder_in_place_of_a_file_leaves_all_files_as_they_were(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "b.txt").mkdir()

    def replace():
        with writing.staged(tmp_path) as new:
            for name in ("a.txt", "b.txt"):
                (new / name).write_text("new")

    with pytest.raises(OSError, match=r"b\.txt there is in the way"):
        replace()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("write", [writing.staged, writing.replacing])
def test_an_error_leaves_the_old_files(tmp_path, write):
    target = tmp_path if write is writing.staged else tmp_path / "a.txt"
    (tmp_path / "a.txt").write_text("old")

    def fail():
        with write(target) as new:
            (new / "a.txt" if write is writing.staged else new).write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_killed_process_leaves_what_the_next_one_removes(tmp_path):
    """And never what a living process is writing."""
    program = (
        "import pathlib, sys, time; from calib_jax.core.files import writing\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "with writing.staged(folder) as new, writing.replacing(folder / 'b.txt') as file:\n"
        "    (new / 'a.txt').write_text('half'); file.write_text('half')\n"
        "    print('ready', flush=True); time.sleep(100)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    living = names(tmp_path)
    assert len(living) == 2
    writing.remove_leftovers(tmp_path)
    assert names(tmp_path) == living
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert names(tmp_path) == living
    with writing.staged(tmp_path) as new:
        (new / "a.txt").write_text("whole")
    assert names(tmp_path) == ["a.txt"]


def test_a_report_is_never_half_written(tmp_path, monkeypatch):
    scored = report.score(LOGITS, LABELS, metrics=["ece"], num_resamples=20)
    scored.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    class Killed(BaseException):
        pass

    def killed(*args, **options):
        raise Killed

    monkeypatch.setattr("calib_jax.plots.save", killed)
    with pytest.raises(Killed):
        report.score(LOGITS[:30], LABELS[:30], metrics=["ece"], num_resamples=20).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_that_is_being_written_is_removed(tmp_path):
    """Four threads write one file and one folder, and look for leftovers before every write."""

    def write(number):
        for _ in range(50):
            with writing.replacing(tmp_path / "a.txt") as new:
                new.write_text(f"{number}" * 100)
            with writing.staged(tmp_path) as folder:
                (folder / "b.txt").write_text(f"{number}" * 100)
            for name in ("a.txt", "b.txt"):
                assert len(set((tmp_path / name).read_text())) == 1
            writing.remove_leftovers(tmp_path)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, number) for number in range(4)]:
            done.result()
    assert names(tmp_path) == ["a.txt", "b.txt"]


def test_the_next_write_of_a_file_removes_its_own_leftovers_only(tmp_path):
    for name in (
        ".a.txt.0123456789abcdef.partial",
        ".b.txt.0123456789abcdef.partial",
        "a.txt.partial",
    ):
        (tmp_path / name).write_text("half")
    with writing.replacing(tmp_path / "a.txt") as new:
        new.write_text("whole")
    assert names(tmp_path) == [".b.txt.0123456789abcdef.partial", "a.txt", "a.txt.partial"]


def save_calibrator(path, number):
    params = calibrators.temperature.fit(number * LOGITS, LABELS)
    calibrators.save(path, "temperature", params)


def save_weights(path, number):
    models.write_weights(path, {"a": np.full(100, number)})


def save_subwords(path, number):
    special = ("<padding>", "<begin>", "<end>", "<unknown>")
    data.Subwords((*special, f"piece{number}")).write(path)


@pytest.mark.parametrize("save", [save_calibrator, save_weights, save_subwords])
def test_every_file_is_written_beside_and_replaced(save, tmp_path, monkeypatch):
    """A kill before the end leaves the old file, and the next write leaves no other one."""
    path = tmp_path / "file.npz"
    save(path, 1)
    before = path.read_bytes()

    class Killed(BaseException):
        pass

    def killed(*args):
        raise Killed

    with monkeypatch.context() as context:
        context.setattr(pathlib.Path, "replace", killed)
        context.setattr(pathlib.Path, "unlink", lambda *args, **options: None)
        with pytest.raises(Killed):
            save(path, 2)
    assert path.read_bytes() == before
    assert len(names(tmp_path)) == 2
    save(path, 2)
    assert names(tmp_path) == ["file.npz"]
    assert path.read_bytes() != before


def test_a_full_disk_names_the_folder_and_the_reason(tmp_path):
    def fail():
        with writing.staged(tmp_path) as new:
            (new / "report.md").write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    message = f"^the report cannot be written to {tmp_path}: No space left on device.$"
    with pytest.raises(OSError, match=message):
        fail()
    assert names(tmp_path) == []


def test_a_replaced_file_keeps_its_mode_and_its_link(tmp_path):
    private, link = tmp_path / "private.txt", tmp_path / "link.txt"
    private.write_text("old")
    private.chmod(0o600)
    link.symlink_to(private)
    with writing.replacing(link) as path:
        path.write_text("new")
    assert link.is_symlink()
    assert private.read_text() == "new"
    assert private.stat().st_mode & 0o777 == 0o600
    with writing.replacing(tmp_path / ("a" * 250)) as path:
        path.write_text("long")
    assert (tmp_path / ("a" * 250)).read_text() == "long"
