"""How binaries end."""

import subprocess
import sys

from tests.experiments.processes import ROOT


def test_a_ctrl_c_that_nobody_waits_for_is_one_line():
    """While a config is being built, or the second one while training ends."""
    program = (
        "from experiments import cli\ndef main():\n    raise KeyboardInterrupt\ncli.run(main)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130
    assert ended.stdout + ended.stderr == "error: interrupted.\n"
