"""Score saved predictions of any model: accuracy, calibration and their intervals.

    python -m experiments.score run.npz

The command calib-score of the installed package, with the same options; see
`calib_jax.report.command`.
"""

import signal
import sys

from calib_jax.report import command
from experiments import leave

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(command.main(program="python -m experiments.score"))
