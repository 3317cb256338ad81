"""How binaries end."""

import errno
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from calib_jax import plots, report
from experiments.running import cli
from tests.experiments.processes import ROOT, finish


def test_a_ctrl_c_during_the_imports_is_one_line(tmp_path):
    """The binary imports a module that waits; the shell's own Ctrl-C reaches it there."""
    (tmp_path / "jax.py").write_text("import time\nprint('waits', flush=True)\ntime.sleep(60)\n")
    # A process in the background of a shell ignores SIGINT, and so do its children.
    as_in_a_shell = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "experiments.evaluate"])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", as_in_a_shell],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "error: interrupted.\n")


def test_a_value_without_its_flag_gets_the_name_of_the_flag(tmp_path):
    for argument, flag in ((tmp_path, "workdir"), ("configs/digits.py:focal", "config")):
        output = finish("sweep", argument, code=2)
        assert output == (f"error: '{argument}' is not a flag; did you mean --{flag}={argument}?\n")


@pytest.mark.parametrize(("owner", "method"), [(pathlib.Path, "write_text"), (plots, "save")])
def test_a_full_disk_fails_the_run_and_is_no_mistake_of_the_request(
    tmp_path, monkeypatch, owner, method
):
    logits = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    scored = report.score(logits, np.arange(20) % 3, metrics=["accuracy"], num_resamples=4)

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(owner, method, full)
    with pytest.raises(cli.Failed, match=r"cannot be written to .* No space left on device\.$"):
        cli.refusing(scored.save, tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is full")
def test_a_full_standard_output_is_one_sentence(tmp_path):
    arguments = ["--config=configs/digits.py", "--config.num_epochs=1", f"--workdir={tmp_path}"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "experiments.train", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    message = "error: standard output cannot be written to: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (1, message)
