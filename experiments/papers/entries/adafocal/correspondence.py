"""Ghosh et al.: the training and the validation confidence of a bin move together over training.

The levels are judged. Both rise with training, and any two rising series correlate, so the
correlation of their changes from epoch to epoch stands beside.
"""

import numpy as np

from experiments.papers.entries.trainings import CE, FL3, FL5, undiagnosed
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, paired, rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value

MEASURE = "mass_bins"
REGIONS = ("low", "middle", "high")


def statistic(runs: Runs) -> dict[str, Value]:
    """Correlate the two confidences over the epochs, by region; average over the gammas."""
    values = {}
    for of, step in (("changes", np.diff), ("levels", np.asarray)):
        for number, region in enumerate(REGIONS):
            by_gamma = [
                [
                    comparisons.rank_correlation(
                        *(step(run.measured[MEASURE][part][:, number]) for part in _PARTS)
                    )
                    for run in seeds
                ]
                for seeds in runs.values()
            ]
            values[_name(of, region)] = paired.over_seeds(
                np.mean(by_gamma, axis=0),
                note="gamma 0, 3, 5: " + ", ".join(f"{np.mean(seeds):.2f}" for seeds in by_gamma),
            )
    return values


def _name(of: str, region: str) -> str:
    return f"rank correlation of {of}, {region}"


_PARTS = ("training", "validation")


ENTRY = Entry(
    claims={
        "adafocal-train-val-confidence-correspond": rules.above(
            *(_name("levels", region) for region in REGIONS)
        )
    },
    runs={
        "gamma_0": undiagnosed(CE),
        "gamma_3": undiagnosed(FL3, keep="columns"),
        "gamma_5": undiagnosed(FL5, keep="columns"),
    },
    measures=(MEASURE,),
    statistic=statistic,
)
