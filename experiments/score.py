"""Score anybody's saved predictions: how far can their confidence be believed?

    python -m experiments.score --predictions=run.npz
    python -m experiments.score --predictions=run.npz --calibrate=temperature --fit_on=val.npz
    python -m experiments.score --predictions=run.npz --calibrate=temperature --cross_fit=5
    python -m experiments.score --predictions=run.npz --compare=other.npz --out=folder
    python -m experiments.score --predictions=a.npz --predictions=b.npz --average

A file is .npz with arrays `logits` and `labels` (and `groups`, `weights`, if there), a pair
LOGITS.npy,LABELS.npy, or .csv with columns label, logit_0, logit_1, ... One column of logits is a
binary model. No model, no config and no accelerator is needed. Every number comes with a
bootstrap interval.
"""

import dataclasses
import sys
from typing import Any

import numpy as np
from absl import flags

from calib_jax import report
from experiments import cli, predictions

_PREDICTIONS = flags.DEFINE_multi_string("predictions", [], "File of predictions to score.")
_AVERAGE = flags.DEFINE_bool("average", False, "Average the probabilities of several files.")
_CALIBRATE = flags.DEFINE_string("calibrate", None, "Calibrator to apply, such as temperature.")
_FIT_ON = flags.DEFINE_string("fit_on", None, "File of other predictions to fit it on.")
_CROSS_FIT = flags.DEFINE_integer("cross_fit", None, "Folds, where there are no others.")
_OBJECTIVE = flags.DEFINE_string(
    "objective", "nll", "What a temperature is chosen by: nll, or a metric on the papers' grid."
)
_COMPARE = flags.DEFINE_string("compare", None, "File of other predictions of the same examples.")
_METRICS = flags.DEFINE_list("metrics", list(report.DEFAULT_METRICS), "Names of metrics.")
_BINS = flags.DEFINE_integer("bins", 15, "Bins of every metric that has them.")
_PER_CLASS = flags.DEFINE_bool("per_class", False, "Also a table per class.")
_PER_GROUP = flags.DEFINE_bool("per_group", True, "Also a table per group, if the file has groups.")
_LEVEL = flags.DEFINE_float("level", 0.9, "Nominal coverage of the intervals, a fraction.")
_INTERVAL = flags.DEFINE_string("interval", "percentile", "percentile or basic.")
_RESAMPLES = flags.DEFINE_integer("resamples", 1000, "Of the bootstrap.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the bootstrap and of the folds.")
_PROBABILITIES = flags.DEFINE_bool("probabilities", False, "The files hold probabilities.")
_OUT = flags.DEFINE_string("out", None, "Folder for report.json, .csv, .md and pictures.")


def read_all(names: list[str], *, averaged: bool, probabilities: bool) -> predictions.Predictions:
    """Read one file, or several of the same examples as an ensemble."""
    found = [predictions.read(name) for name in names]
    if not found:
        raise ValueError("there is nothing to score: give --predictions=FILE.")
    if len(found) == 1:
        return found[0]
    if not averaged:
        raise ValueError(
            f"{len(found)} files of predictions were given: add --average to score their mean, or"
            " --compare=FILE to compare two."
        )
    for name, one in zip(names[1:], found[1:], strict=True):
        if not np.array_equal(one.labels, found[0].labels):
            raise ValueError(f"{name} has other labels than {names[0]}: not the same examples.")
    models = [report.as_logits(one.logits, probabilities=probabilities) for one in found]
    mean = np.asarray(report.average(models))
    return found[0]._replace(logits=np.exp(mean) if probabilities else mean)


def scored() -> report.Report:
    """Read what the flags name, and score it."""
    probabilities = _PROBABILITIES.value
    own = read_all(_PREDICTIONS.value, averaged=_AVERAGE.value, probabilities=probabilities)
    fit_on = predictions.read(_FIT_ON.value) if _FIT_ON.value else None
    other: Any = None
    if _COMPARE.value:
        found = predictions.read(_COMPARE.value)
        if not np.array_equal(found.labels, own.labels):
            raise ValueError(
                f"{_COMPARE.value} has other labels than the predictions: a paired comparison"
                " needs the same examples in the same order."
            )
        other = found.logits
    return report.score(
        own.logits,
        own.labels,
        weights=own.weights,
        groups=own.groups if _PER_GROUP.value else None,
        calibrate=_CALIBRATE.value,
        fit_on=(fit_on.logits, fit_on.labels) if fit_on else None,
        cross_fit=_CROSS_FIT.value,
        objective=_OBJECTIVE.value,
        compare=other,
        metrics=_METRICS.value,
        num_bins=_BINS.value,
        per_class=_PER_CLASS.value,
        level=_LEVEL.value,
        method=_INTERVAL.value,
        num_resamples=_RESAMPLES.value,
        seed=_SEED.value,
        probabilities=probabilities,
    )


def main() -> int:
    """Score, print the tables, write the files."""
    found = cli.refusing(scored)
    files = {"predictions": ", ".join(_PREDICTIONS.value), "command": " ".join(sys.argv[1:])}
    found = dataclasses.replace(found, settings={**found.settings, **files})
    print(found)
    if _OUT.value:
        names = cli.refusing(found.save, _OUT.value)
        print(f"\nwritten to {_OUT.value}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    cli.run(main)
