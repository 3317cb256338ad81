"""Mukhoti et al., section 4: for very large gamma the gradients vanish and training fails."""

import dataclasses

import numpy as np
import scipy.optimize

from experiments.papers.entries.mukhoti.gradient_scale import scale
from experiments.papers.entries.trainings import on_lenet5
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import estimates
from experiments.papers.judge.comparisons import Runs, difference
from experiments.papers.judge.rules import FAILS, HOLDS, SIZE, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value

LARGE = (10.0, 20.0, 50.0)
LARGEST = (20.0, 50.0)  # of which one must fail
DEAD = 0.01  # of the gradient's scale
CLEAR, CLOSE = 0.05, 0.01  # of the error


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the errors with that of gamma 3, and find where the gradient's scale is small."""
    values = {
        _name(gamma): difference(runs[f"gamma_{gamma:g}"], runs["gamma_3"], estimates.error)
        for gamma in LARGE
    }
    for gamma in (3.0, 5.0, *LARGE):
        values[f"p beyond which g is below {DEAD:g}, gamma {gamma:g}"] = Value(dead_beyond(gamma))
    return values


def dead_beyond(gamma: float) -> float:
    """Find the p beyond which the scale of the gradient stays below 0.01.

    >>> round(dead_beyond(3.0), 3), round(dead_beyond(50.0), 3)
    (0.862, 0.138)
    """
    grid = np.linspace(1e-3, 1 - 1e-3, 10_000)
    last = grid[np.flatnonzero(scale(grid, gamma) > DEAD)[-1]]
    return float(scipy.optimize.brentq(lambda p: scale(p, gamma) - DEAD, last, last + 1e-3))


def _name(gamma: float) -> str:
    return f"error(gamma {gamma:g}) - error(gamma 3)"


def _judge(values: Values) -> Judgement:
    p_values = [values[_name(gamma)].p_above(CLEAR) for gamma in LARGEST]
    if min(p_values) < SIZE:
        return Judgement(HOLDS, min(1.0, min(p_values) * len(p_values)))
    close = all(abs(values[_name(gamma)].value) <= CLOSE for gamma in LARGE)
    return Judgement(FAILS if close else UNDECIDED)


WORSE = Rule(
    "holds if the 90 % interval of a gamma of 20 or 50 lies above 0.05; does not hold if all gammas"
    " are within 0.01; undecided otherwise",
    _judge,
    tuple(map(_name, LARGE)),
)
ENTRY = Entry(
    claims={"mukhoti-large-gamma-gradients-die": WORSE},
    runs={
        "gamma_3": dataclasses.replace(on_lenet5("focal"), seeds=3),
        **{
            f"gamma_{gamma:g}": Training(
                "focal", {"gamma": gamma}, config="cifar10_lenet5", keep="columns"
            )
            for gamma in LARGE
        },
    },
    statistic=statistic,
    note="LeNet-5 on all 45,000 training images, with the recipe of its config for every gamma.",
)
