"""Mukhoti et al., section 4: focal loss with gamma 1, 2, 3 beside cross-entropy, at the end."""

from collections.abc import Mapping, Sequence

from experiments.papers import estimates, paired, rules
from experiments.papers.entry import Entry, Training
from experiments.papers.records import Trained
from experiments.papers.values import Value

RUNS = {
    "fl1": Training("focal", {"gamma": 1.0}),
    "fl2": Training("focal", {"gamma": 2.0}),
    "fl3": Training("focal", {"gamma": 3.0}),
}


def statistic(runs: Mapping[str, Sequence[Trained]]) -> dict[str, Value]:
    """Compare the squared calibration errors of neighbouring gammas before scaling."""
    errors = {
        name: [estimates.squared_error(run.test) for run in seeds] for name, seeds in runs.items()
    }
    return {
        "error(1) - error(2)": paired.difference_of_errors(errors["fl1"], errors["fl2"]),
        "error(2) - error(3)": paired.difference_of_errors(errors["fl2"], errors["fl3"]),
    }


ENTRY = Entry(
    claims={
        "mukhoti-gamma-order-3-2-1-own": rules.above("error(1) - error(2)", "error(2) - error(3)")
    },
    runs=RUNS,
    statistic=statistic,
)
