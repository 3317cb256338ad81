"""Score saved predictions of any model: accuracy, calibration and their intervals.

    python -m experiments.score run.npz

The command calib-score of the installed package, with the same options; see
`calib_jax.report.command`.
"""

import shlex
import sys

from calib_jax.report import command
from experiments.running import cli

_OPTIONS = cli.define_options(command.run)


def main(files: list[str]) -> int:
    """Score, print the tables, write the files."""
    options = _OPTIONS()
    options["predictions"] = [*options["predictions"], *files]
    called = shlex.join(["python", "-m", "experiments.score", *sys.argv[1:]])
    cli.refusing(command.run, **options, command=called)
    return 0


if __name__ == "__main__":
    cli.run(main, positional=True)
