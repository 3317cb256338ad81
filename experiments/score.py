r"""Score saved predictions of any model: accuracy, calibration and their intervals.

    python -m experiments.score --predictions=run.npz
    python -m experiments.score --predictions=run.npz --calibrate=temperature --fit_on=val.npz
    python -m experiments.score --predictions=run.npz --calibrate=temperature --cross_fit=5
    python -m experiments.score --predictions=run.npz --calibrate=temperature --fit_on=val.npz \
        --criterion=nll,ece,adaptive_ece:0.01
    python -m experiments.score --predictions=run.npz --compare=other.npz --out=folder
    python -m experiments.score --predictions=a.npz --predictions=b.npz --average
    python -m experiments.score --predictions=forest.csv --probabilities --floor=1e-6

A file is .npz with arrays `logits` and `labels` (and optionally `groups`, `clusters` and
`weights`), a pair LOGITS.npy,LABELS.npy, or .csv with columns label, logit_0, logit_1, ... (and
group, cluster, weight).
Columns of a .csv may also be named by classes, as logit_cat or cat, if labels are these names.
Singular and plural names are equivalent. Other arrays and columns are not read, and the report
lists them. One column of logits is a binary model. Labels count from 0, or from --first_label.
Weight 0 leaves an example out. Clusters are the images of pixels or the documents of sentences:
with them, or with --clusters=NAME of another column, whole clusters are resampled. No model, config
or accelerator is needed. Every number has an interval.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import flags

from experiments import cli

if TYPE_CHECKING:  # at run time functions import them, so that --help starts fast
    from calib_jax import report
    from experiments import predictions

_PREDICTIONS = flags.DEFINE_multi_string("predictions", [], "File of predictions to score.")
_AVERAGE = flags.DEFINE_bool("average", False, "Average the probabilities of several files.")
_CALIBRATE = flags.DEFINE_string(
    "calibrate", None, "Calibrator: its name, such as temperature, or an import path MODULE:NAME."
)
_FIT_ON = flags.DEFINE_string("fit_on", None, "File of other predictions to fit it on.")
_CROSS_FIT = flags.DEFINE_integer("cross_fit", None, "Number of folds, instead of --fit_on.")
_CRITERION = flags.DEFINE_list(
    "criterion",
    ["nll"],
    "What a temperature minimizes: nll; METRIC on the papers' grid 0.1, 0.2, ..., 10; or"
    " METRIC:STEP on another one. Several, separated by commas, are shown side by side.",
)
_COMPARE = flags.DEFINE_string("compare", None, "File of other predictions of the same examples.")
_METRICS = flags.DEFINE_list(
    "metrics",
    None,
    "Names of metrics, separated by commas; by default accuracy, nll, brier, ece,"
    " adaptive_ece, classwise_ece, mce, signed_gap and aurc.",
)
_BINS = flags.DEFINE_integer("bins", 15, "Number of bins of every metric that has bins.")
_COSTS = flags.DEFINE_string(
    "costs", None, "CSV file: a row per class, a column per decision; adds the cost of decisions."
)
_ABSTAIN_COST = flags.DEFINE_float("abstain_cost", None, "Cost of an example left undecided.")
_PER_CLASS = flags.DEFINE_bool("per_class", False, "Add a table per class.")
_PER_GROUP = flags.DEFINE_bool("per_group", True, "Add a table per group if the file has groups.")
_CLUSTERS = flags.DEFINE_string(
    "clusters",
    None,
    "Column or array of clusters, which are resampled as a whole; by default the one called"
    " clusters, if there is one. Empty resamples examples.",
)
_LEVEL = flags.DEFINE_float("level", 0.9, "Nominal coverage of the intervals, a fraction.")
_INTERVAL = flags.DEFINE_string(
    "interval",
    "valid",
    "valid: noise bounds of binned calibration errors, percentiles of other metrics; percentile or"
    " basic: bootstrap intervals of all metrics.",
)
_RESAMPLES = flags.DEFINE_integer("resamples", 1000, "Number of bootstrap resamples.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of the bootstrap and of the folds.")
_PROBABILITIES = flags.DEFINE_bool("probabilities", False, "The files hold probabilities.")
_FLOOR = flags.DEFINE_float(
    "floor",
    None,
    "Smaller --probabilities are raised to this, so that the NLL is finite; by default 1e-38.",
)
_FIRST_LABEL = flags.DEFINE_integer(
    "first_label", 0, "The label of the first class; 1 if labels count from 1."
)
_NAME = flags.DEFINE_multi_string(
    "name", [], "Name of the predictions in the tables; a second one names those of --compare."
)
_OUT = flags.DEFINE_string("out", None, "Folder for report.json, .csv, .md and figures.")


def read(name: str) -> predictions.Predictions:
    """Read a file according to the flags."""
    from experiments import predictions

    return predictions.read(
        name,
        probabilities=_PROBABILITIES.value,
        first_label=_FIRST_LABEL.value,
        clusters=_CLUSTERS.value or None,
    )


def mean_of(models: Sequence[predictions.Predictions]) -> np.ndarray:
    """Average the probabilities of several models."""
    from calib_jax import report

    if _PROBABILITIES.value:
        rows = [report.probability_rows(model.logits, weights=model.weights) for model in models]
        if len({model.shape for model in rows}) == 1:
            return np.mean(rows, axis=0)
    # `report.average` raises an error for different shapes.
    logits = [
        report.as_logits(model.logits, probabilities=_PROBABILITIES.value, weights=model.weights)
        for model in models
    ]
    return np.asarray(report.average(logits))


def named() -> dict[str, str]:
    """Return the names of columns; a comparison without --name uses the names of the files."""
    names = list(_NAME.value)
    wanted = 2 if _COMPARE.value else 1
    if len(names) > wanted:
        raise ValueError(f"--name is given {len(names)} times, and there are {wanted} to name.")
    if _COMPARE.value and len(names) < wanted:
        files = [", ".join(_PREDICTIONS.value), _COMPARE.value]
        short = [pathlib.Path(file.split(",")[0]).name for file in files]
        if _AVERAGE.value:
            short[0] = f"mean of {len(_PREDICTIONS.value)}"
        file_names = short if short[0] != short[1] else files
        if file_names[0] == file_names[1]:
            file_names[1] += " (again)"
        names += file_names[len(names) :]
    return dict(zip(("name", "compare_name"), names, strict=False))


def costs_of(name: str | None) -> np.ndarray | None:
    """Read a matrix of costs."""
    if not name:
        return None
    try:
        return np.loadtxt(name, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"--costs={name} must hold numbers, a row per class, separated by commas.\n{error}"
        ) from None


def scored() -> report.Report:
    """Read the files that the flags name, and score them."""
    from calib_jax import report
    from experiments import imports

    names = _PREDICTIONS.value
    if not names:
        raise ValueError("there is nothing to score: give --predictions=FILE.")
    if len(names) > 1 and not _AVERAGE.value:
        raise ValueError(
            f"{len(names)} files of predictions were given: add --average to score their mean, or"
            " --compare=FILE to compare two."
        )
    models = [read(name) for name in names]
    for name, file in zip(names[1:], models[1:], strict=True):
        if not np.array_equal(file.labels, models[0].labels):
            raise ValueError(f"{name} has other labels than {names[0]}: not the same examples.")
    logits = models[0].logits if len(models) == 1 else mean_of(models)
    used = list(models)

    fit_on = None
    if _FIT_ON.value:
        others = read(_FIT_ON.value)
        held_out = (others.logits, others.labels, others.weights)
        for name, file in zip(names, models, strict=True):
            if report.same_examples(held_out, (file.logits, file.labels, file.weights)):
                raise ValueError(
                    f"--fit_on={_FIT_ON.value} holds the same examples as {name}, and a calibrator"
                    " is never fitted on what is scored.\nGive other examples, or --cross_fit=5."
                )
        fit_on = held_out
        used.append(others)

    compare = None
    if _COMPARE.value:
        other = read(_COMPARE.value)
        if not np.array_equal(other.labels, models[0].labels):
            raise ValueError(
                f"{_COMPARE.value} has other labels than the predictions: a paired comparison"
                " needs the same examples in the same order."
            )
        compare = other.logits
        used.append(other)

    groups = models[0].groups if _PER_GROUP.value else None
    clusters = None if _CLUSTERS.value == "" else models[0].clusters
    if _CLUSTERS.value and clusters is None:
        raise ValueError(
            f"{names[0]} has no column or array called {_CLUSTERS.value!r}: correct --clusters, or"
            " leave it out."
        )
    scores = report.score(
        logits,
        models[0].labels,
        weights=models[0].weights,
        groups=None if groups is None else groups.reshape(-1),
        clusters=clusters,
        calibrate=imports.calibrator(_CALIBRATE.value),
        fit_on=fit_on,
        cross_fit=_CROSS_FIT.value,
        criterion=_CRITERION.value,
        compare=compare,
        **named(),
        metrics=_METRICS.value or report.DEFAULT_METRICS,
        num_bins=_BINS.value,
        costs=costs_of(_COSTS.value),
        abstain_cost=_ABSTAIN_COST.value,
        per_class=_PER_CLASS.value,
        level=_LEVEL.value,
        method=_INTERVAL.value,
        num_resamples=_RESAMPLES.value,
        seed=_SEED.value,
        probabilities=_PROBABILITIES.value,
        floor=report.FLOOR if _FLOOR.value is None else _FLOOR.value,
    )
    settings = scores.settings | {
        "predictions": ", ".join(names),
        "command": " ".join(sys.argv[1:]),
    }
    notes = dict.fromkeys(note for file in used for note in file.notes)
    return dataclasses.replace(scores, settings=settings, notes=[*notes, *scores.notes])


def main() -> int:
    """Score, print the tables, write the files."""
    cli.use_compilation_cache()
    scores = cli.refusing(scored)
    print(scores)
    if _OUT.value:
        names = cli.refusing(scores.save, _OUT.value)
        print(f"\nwritten to {_OUT.value}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    cli.run(main)
