"""Score saved predictions of any model: accuracy, calibration and their intervals.

    python -m experiments.score run.npz

The command calib-score of the installed package, with the same options; see
`calib_jax.report.command`.
"""

import sys

from calib_jax.report import command
from experiments import catch_interrupts

if __name__ == "__main__":
    catch_interrupts()
    sys.exit(command.main(program="python -m experiments.score"))
