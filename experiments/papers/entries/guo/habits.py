"""Guo et al.: width, batch normalization and weight decay, each changed alone."""

import dataclasses

from experiments.papers.entries.trainings import CE, changed
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs, ce2, difference
from experiments.papers.judge.values import Value

BASE = dataclasses.replace(CE, seeds=1)
ONE_SEED = "One seed each: intervals are over test examples alone, and say nothing of other seeds."
WIDTH = "slope of CE2 on log width"
WIDTHS = {"width4": 4, "width8": 8, "base": 16, "width32": 32}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compute slopes on the logarithm of the width, and two differences."""
    by_width = {width: runs[name][0] for name, width in WIDTHS.items()}
    base = runs["base"]
    return {
        WIDTH: comparisons.slope_of_ce2(by_width),
        f"{WIDTH}, of networks that fit": comparisons.slope_of_ce2(comparisons.fitted(by_width)),
        "slope of the error on log width": comparisons.slope(by_width, estimates.error),
        "CE2(batch norm) - CE2(without)": ce2(base, runs["no_norm"]),
        "error(batch norm) - error(without)": difference(base, runs["no_norm"], estimates.error),
        "CE2(decay 0) - CE2(5e-4)": ce2(runs["decay_0"], base),
        "error(decay 0) - error(5e-4)": difference(runs["decay_0"], base, estimates.error),
        **{
            f"training error, {name}": comparisons.training_error(seeds)
            for name, seeds in runs.items()
        },
        **comparisons.eces(runs),
    }


ENTRY = Entry(
    claims={
        "guo-width-hurts-calibration": rules.above(WIDTH),
        "guo-batchnorm-hurts-calibration": rules.above("CE2(batch norm) - CE2(without)"),
        "guo-weight-decay-helps-calibration": rules.above(
            "CE2(decay 0) - CE2(5e-4)", "error(decay 0) - error(5e-4)"
        ),
    },
    runs={
        "base": BASE,
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
    note=ONE_SEED + " A network that does not fit its training set calibrates like one that is"
    " stopped early, whatever the reason: the training errors stand beside, and the slope of the"
    " networks that fit. Without batch normalization one learning rate was tried, that of the"
    " others, and a better one may fit.",
)
