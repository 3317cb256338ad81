"""Files are written whole or not at all, and what a killed process left is removed."""

import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from calib_jax import report
from calib_jax.core import compiled, writing

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
        "import pathlib, sys, time; from calib_jax.core import writing\n"
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


def test_a_truncated_program_is_compiled_again(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_LEAST_SECONDS", 0.0)
    settings = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in settings}
    program = (
        "import sys, jax; from calib_jax.core import compiled\n"
        "compiled._LEAST_SECONDS = 0.0; compiled.keep_programs(sys.argv[1])\n"
        "jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)\n"
        "print(jax.jit(lambda x: x * 3 + 1)(2.0))"
    )

    def run():
        command = [sys.executable, "-c", program, tmp_path]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    run()
    entries = list(tmp_path.glob("*-cache"))
    assert entries
    whole = {path.name: path.stat().st_size for path in entries}
    for path in entries:
        path.write_bytes(path.read_bytes()[: whole[path.name] // 2])
        os.utime(path, (time.time() + 1, time.time() + 1))
    done = run()
    assert done.stdout == "7.0\n"
    assert "Error reading persistent compilation cache" not in done.stderr
    assert {path.name: path.stat().st_size for path in tmp_path.glob("*-cache")} == whole
    assert {name: getattr(jax.config, name) for name in settings} == before
