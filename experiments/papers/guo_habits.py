"""Guo et al.: depth, width, batch normalization and weight decay, each changed alone."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from experiments.papers import estimates, paired, rules
from experiments.papers.comparisons import Runs, ce2, difference
from experiments.papers.entry import Entry
from experiments.papers.estimates import Estimate
from experiments.papers.records import Trained
from experiments.papers.trainings import CE, changed
from experiments.papers.values import Value

BASE = dataclasses.replace(CE, seeds=1)
DEPTHS = {"base": 8, "resnet20": 20, "resnet56": 56}
WIDTHS = {"width4": 4, "width8": 8, "base": 16, "width32": 32}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compute slopes on log depth and log width, and two differences."""
    single = {name: seeds[0] for name, seeds in runs.items()}
    base = runs["base"]
    return {
        "slope of CE2 on log depth": _slope_of_errors(single, DEPTHS),
        "slope of the error on log depth": _slope(single, DEPTHS),
        "slope of CE2 on log width": _slope_of_errors(single, WIDTHS),
        "slope of the error on log width": _slope(single, WIDTHS),
        "CE2(batch norm) - CE2(without)": ce2(base, runs["no_norm"]),
        "error(batch norm) - error(without)": difference(base, runs["no_norm"], estimates.error),
        "CE2(decay 0) - CE2(5e-4)": ce2(runs["decay_0"], base),
        "error(decay 0) - error(5e-4)": difference(runs["decay_0"], base, estimates.error),
        **{
            f"ECE, {name}": Value(
                estimates.ece(run.test), note=f"error {estimates.error(run.test).value:.4f}"
            )
            for name, run in single.items()
        },
    }


def _factors(sizes: Mapping[str, int]) -> np.ndarray:
    """Return the factors of the least-squares slope on the logarithm of a size."""
    logs = np.array([math.log(size) for size in sizes.values()])
    centered = logs - logs.mean()
    return centered / np.sum(np.square(centered))


def _slope(single: Mapping[str, Trained], sizes: Mapping[str, int]) -> Value:
    terms = [estimates.error(single[name].test) for name in sizes]
    factors = _factors(sizes)
    value = sum(factor * term.value for factor, term in zip(factors, terms, strict=True))
    influence = sum(factor * term.influence for factor, term in zip(factors, terms, strict=True))
    return paired.over_seeds_and_rows([Estimate(float(value), np.asarray(influence))])


def _slope_of_errors(single: Mapping[str, Trained], sizes: Mapping[str, int]) -> Value:
    models = [estimates.squared_error(single[name].test) for name in sizes]
    factors = [float(factor) for factor in _factors(sizes)]
    value = sum(factor * model.value for factor, model in zip(factors, models, strict=True))
    variance = paired.variance_of_errors(models, factors)
    return paired.nested([value], variance, [variance], rows=len(models[0].residual))


ENTRY = Entry(
    claims={
        "guo-depth-hurts-calibration": rules.above("slope of CE2 on log depth"),
        "guo-width-hurts-calibration": rules.above("slope of CE2 on log width"),
        "guo-batchnorm-hurts-calibration": rules.above("CE2(batch norm) - CE2(without)"),
        "guo-weight-decay-helps-calibration": rules.above(
            "CE2(decay 0) - CE2(5e-4)", "error(decay 0) - error(5e-4)"
        ),
    },
    runs={
        "base": BASE,
        "resnet20": changed(model__name="resnet20"),
        "resnet56": changed(model__name="resnet56"),
        "width4": changed(model__options__width=4),
        "width8": changed(model__options__width=8),
        "width32": changed(model__options__width=32),
        "no_norm": changed(model__options__norm="none"),
        "decay_0": changed(optimizer__weight_decay=0.0),
        "decay_1e-5": changed(optimizer__weight_decay=1e-5),
        "decay_1e-4": changed(optimizer__weight_decay=1e-4),
        "decay_1e-3": changed(optimizer__weight_decay=1e-3),
    },
    statistic=statistic,
    note="One seed each: intervals are over test examples alone, and say nothing of other seeds.",
)
