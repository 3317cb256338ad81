"""The page on data, networks and losses of the user's own: its shell commands run, in order.

Its Python blocks run in `test_site.py`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.processes import environment

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "experiments" / "documentation" / "own.md"
COMMAND = """#!/bin/sh
exec "{python}" -c 'import sys; from calib_jax.report.command import main; sys.exit(main())' "$@"
"""


def shell_blocks():
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.S)


@pytest.mark.slow
def test_every_shell_block_runs(tmp_path):
    """In an empty folder with the configs of the checkout, and the commands of an installation."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("calib-score", COMMAND), ("python", '#!/bin/sh\nexec "{python}" "$@"\n')):
        (programs / name).write_text(text.format(python=sys.executable))
        (programs / name).chmod(0o755)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    variables = environment() | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        # The commands share their compiled programs.
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    outputs = [
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for block in shell_blocks()
    ]
    assert len(outputs) == 7
    _, _, trained, compared, scored, _, texts = outputs
    assert trained.count("epoch 3/3") == 2
    assert "small_logits" in compared
    assert "9 examples in 3 classes" in scored
    assert "pets.csv: the classes are cat = 0, dog = 1, newt = 2." in scored
    assert "| accuracy | 0.7500 " in scored
    assert "44 to train, 8 to validate, 8 to test, in 2 classes" in texts
