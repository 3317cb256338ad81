"""Ghosh et al.: inverse focal loss beside cross-entropy, by the confidence that they reach."""

import numpy as np

from experiments.papers.entries.trainings import on_lenet5
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Part, Runs, difference
from experiments.papers.judge.estimates import Estimate
from experiments.papers.judge.values import Value

GAMMAS = (1.0, 2.0)


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare mean confidences, and find where the gradient is larger than cross-entropy's."""
    values = {
        _name(gamma): difference(runs[f"gamma_{gamma:g}"], runs["ce"], confidence)
        for gamma in GAMMAS
    }
    for gamma in GAMMAS:
        values[f"confidence - accuracy, gamma {gamma:g}"] = comparisons.mean(
            runs[f"gamma_{gamma:g}"], lambda run: estimates.gap(run.test)
        )
        values[f"p above which the gradient is larger, gamma {gamma:g}"] = Value(
            larger_beyond(gamma)
        )
    values["confidence - accuracy, CE"] = comparisons.mean(
        runs["ce"], lambda run: estimates.gap(run.test)
    )
    return values


def confidence(part: Part) -> Estimate:
    """Average the top probability."""
    return estimates.mean(part.confidence)


def larger_beyond(gamma: float) -> float:
    r"""Find the p above which $(1 + p)^\gamma + \gamma p (1 + p)^{\gamma - 1} \log p$ exceeds 1.

    >>> round(larger_beyond(1.0), 3), round(larger_beyond(2.0), 3)
    (0.368, 0.427)
    """
    p = np.linspace(1e-6, 1, 200_001)
    scale = (1 + p) ** gamma + gamma * p * (1 + p) ** (gamma - 1) * np.log(p)
    return float(p[np.flatnonzero(scale <= 1)[-1]])


def _name(gamma: float) -> str:
    return f"confidence(inverse focal, gamma {gamma:g}) - confidence(CE)"


ENTRY = Entry(
    claims={"adafocal-inverse-focal-raises-confidence": rules.above(_name(2.0))},
    runs={
        "ce": on_lenet5("cross_entropy"),
        **{
            f"gamma_{gamma:g}": Training(
                "inverse_focal", {"gamma": gamma}, config="cifar10_lenet5", seeds=5, keep="columns"
            )
            for gamma in GAMMAS
        },
    },
    statistic=statistic,
    note="LeNet-5 with the recipe of its config. The gammas 1 and 2 are chosen here.",
)
