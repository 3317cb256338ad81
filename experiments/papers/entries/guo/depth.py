"""Guo et al.: the calibration of ResNets of different depths."""

from experiments.papers.entries.guo.habits import BASE, ONE_SEED
from experiments.papers.entries.trainings import changed
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value

DEPTH = "slope of CE2 on log depth"
DEPTHS = {"resnet8": 8, "resnet20": 20, "resnet32": 32}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compute slopes on the logarithm of the depth."""
    by_depth = {depth: runs[name][0] for name, depth in DEPTHS.items()}
    return {
        DEPTH: comparisons.slope_of_ce2(by_depth),
        f"{DEPTH}, of networks that fit": comparisons.slope_of_ce2(comparisons.fitted(by_depth)),
        "slope of the error on log depth": comparisons.slope(by_depth, estimates.error),
        **{
            f"training error, {name}": comparisons.training_error(seeds)
            for name, seeds in runs.items()
        },
        **comparisons.eces(runs),
    }


ENTRY = Entry(
    claims={"guo-depth-hurts-calibration": rules.above(DEPTH)},
    runs={
        "resnet8": BASE,
        "resnet20": changed(model__name="resnet20"),
        "resnet32": changed(model__name="resnet32"),
    },
    statistic=statistic,
    note=ONE_SEED + " All networks are judged; the slope of those whose training error is at most"
    " 1 % stands beside. They end at 32 layers, which a laptop trains in some hours.",
)
