"""How binaries end."""

import os
import signal
import subprocess
import sys

import pytest

from tests.experiments.processes import ROOT


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
