"""Mukhoti et al., appendix E: is the MMCE weight of their scripts, 2, the best one?"""

from experiments.papers import comparisons, rules
from experiments.papers.comparisons import Runs, ce2
from experiments.papers.entry import Entry, Training
from experiments.papers.values import Value

CHOSEN = 2.0
OTHERS = (0.5, 1.0, 4.0, 8.0)
PHASES = {"before": comparisons.before, "after": comparisons.after}


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the calibration errors of the chosen weight with those of the others."""
    return {
        _name(scale, phase): ce2(runs[_key(CHOSEN)], runs[_key(scale)], part)
        for phase, part in PHASES.items()
        for scale in OTHERS
    }


def _key(scale: float) -> str:
    return f"lambda_{scale:g}"


def _name(scale: float, phase: str) -> str:
    return f"CE2(lambda 2) - CE2(lambda {scale:g}), {phase}"


ENTRY = Entry(
    claims={
        "mukhoti-mmce-lambda-one-value": rules.none_above(
            *(_name(scale, phase) for phase in PHASES for scale in OTHERS)
        )
    },
    runs={
        _key(scale): Training("mmce_weighted", {"scale": scale}, config="cifar10_lenet5")
        for scale in (CHOSEN, *OTHERS)
    },
    statistic=statistic,
    note="LeNet-5 with the recipe of its config. The weight of the source is lost in our copy; its"
    " released scripts use 2.",
)
