"""Compare runs, or sweeps, on the same test examples, with intervals and p-values.

    python -m experiments.compare /tmp/cross_entropy /tmp/adafocal
    python -m experiments.compare /tmp/cross_entropy /tmp/focal /tmp/adafocal --out=/tmp/compared
    python -m experiments.compare /tmp/sweep /tmp/longer_sweep
    python -m experiments.compare /tmp/sweep/runs/brier /tmp/sweep/runs/focal
    python -m experiments.compare /tmp/focal /tmp/adafocal --criterion=nll,ece,adaptive_ece:0.01

The first folder is the baseline. The folder of a run must contain predictions or streamed values
written by experiments.evaluate; the folder of a sweep must be finished by experiments.sweep.
Sweeps are compared loss by loss, over the seeds that they share; SWEEP/runs/LOSS stands for all
seeds of one loss, also beside losses of other sweeps. Nothing is trained or evaluated.

Every metric is shown with its interval, its paired difference to the baseline with an interval, and
a p-value, as trained and after a temperature that each run fits on its validation predictions.
Noise alone raises ece and adaptive_ece, so they have no p-value: a difference in calibration is
tested by squared_calibration_error, the debiased squared error. The output also lists the keys in
which the configs differ, except those under run, which change no result. Values of an evaluation
with --logits=none have no intervals and no differences with p-values, because these need rows.

--out=DIR gets compare.md, compare.html, compare.csv, compare.json and figures: intervals,
reliability diagrams side by side, and the validation error, NLL and ECE over the epochs.
"""

import pathlib

from absl import flags

from experiments.evaluation import finished
from experiments.reports import comparison, summary
from experiments.running import cli

_OUT = flags.DEFINE_string("out", None, "Folder for compare.md, .html, .csv, .json and figures.")
_BINS = flags.DEFINE_integer(
    "bins",
    None,
    "Number of bins of every metric that has bins; by default as in the baseline's config.",
)
_RESAMPLES = cli.define_resamples()
_CRITERION = cli.define_criterion()
flags.register_validator(
    "bins", lambda bins: bins is None or bins > 0, message="must be at least 1"
)


def main(given: list[str]) -> int:
    """Compare, print the tables, write the files."""
    cli.use_compilation_cache()
    cli.refusing(summary.phases_of, _CRITERION.value)
    shared = cli.refusing(finished.read, given)
    out = pathlib.Path(_OUT.value) if _OUT.value else None
    if out:
        cli.refusing(out.mkdir, parents=True, exist_ok=True)
    options = {
        "num_bins": _BINS.value,
        "num_resamples": _RESAMPLES.value,
        "criteria": _CRITERION.value,
        "say": cli.say_step,
    }
    compared = cli.failing(comparison.compare, shared, **options)
    cli.say(comparison.text(compared))
    if out:
        cli.say_step("drawing the figures")
        names = cli.refusing(comparison.save, compared, out)
        cli.say(f"\nwritten to {out}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    cli.run(main, positional=True)
