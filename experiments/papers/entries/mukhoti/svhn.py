"""Mukhoti et al., table 3: SVHN told apart from CIFAR-10 by entropy, focal loss beside CE."""

import numpy as np
import scipy.stats

from experiments.papers.entries.trainings import CE, FL3, FLSD53
from experiments.papers.entry import Entry
from experiments.papers.judge import paired, rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

MEASURE = "svhn"
PHASES = ("before", "after")


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the AUROC of the entropy, before and after the temperature."""
    names = {"flsd": "FLSD-53", "fl3": "FL-3"}
    return {
        f"AUROC({name}) - AUROC(CE), {phase}": _difference(runs, key, phase)
        for key, name in names.items()
        for phase in PHASES
    }


def auroc(inside: np.ndarray, outside: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Compute the AUROC of two sets of scores, and the influences of the rows of both sets.

    Args:
      inside: `[rows]`, scores of the test set.
      outside: `[other rows]`, scores of the other set, which shall be larger.
    """
    ranks = scipy.stats.rankdata(np.concatenate([inside, outside]))
    above = 1 - (ranks[: len(inside)] - scipy.stats.rankdata(inside)) / len(outside)
    below = (ranks[len(inside) :] - scipy.stats.rankdata(outside)) / len(inside)
    value = float(np.mean(below))
    return value, above - value, below - value


def _of_run(run: Trained, phase: str) -> tuple[float, np.ndarray, np.ndarray]:
    inside = run.logits if phase == "before" else run.scaled
    return auroc(inside.entropy, run.columns(MEASURE, phase).entropy)


def _difference(runs: Runs, key: str, phase: str) -> Value:
    """Average the difference over seeds; the rows of both sets are random."""
    values, influences = [], []
    for run, base in zip(runs[key], runs["ce"], strict=True):
        (a, *of_a), (b, *of_b) = _of_run(run, phase), _of_run(base, phase)
        values.append(a - b)
        influences.append([first - second for first, second in zip(of_a, of_b, strict=True)])
    mean = [np.mean(of_set, axis=0) for of_set in zip(*influences, strict=True)]
    return paired.nested(
        values, _variance(mean), list(map(_variance, influences)), rows=sum(map(len, mean))
    )


def _variance(influences: list[np.ndarray]) -> float:
    return sum(float(np.var(of_set)) / len(of_set) for of_set in influences)


ENTRY = Entry(
    claims={"mukhoti-ood-svhn": rules.above("AUROC(FLSD-53) - AUROC(CE), before")},
    runs={"ce": CE, "flsd": FLSD53, "fl3": FL3},
    measures=(MEASURE,),
    data=("svhn",),
    statistic=statistic,
    note="ResNet-8 in place of ResNet-110. SVHN is normalised as CIFAR-10 is.",
)
