"""Mukhoti et al., appendix A: cross-entropy pushes training examples into the top bin."""

import numpy as np

from experiments.papers.entries.trainings import CE
from experiments.papers.entry import Entry
from experiments.papers.judge import paired
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value

MEASURE = "top_bin"
FITTED = 0.01  # training error from which on the growth is measured


def statistic(runs: Runs) -> dict[str, Value]:
    """Measure the growth of the top bin after the training accuracy has passed 99 %."""
    growth, falls = [], []
    for run in runs["ce"]:
        share, error = (run.measured[MEASURE][name] for name in ("share", "error"))
        fitted = np.flatnonzero(error < FITTED)
        if len(fitted):
            growth.append(float(share[-1] - share[fitted[0]]))
            falls.append(float(error[fitted[0]] - error[-1]))
    count = len(growth)
    nothing = Value(0.0, note="fewer than two seeds reached a training accuracy of 99 %")
    return {
        "seeds with a training accuracy above 99 %": Value(count, note=f"of {len(runs['ce'])}"),
        "growth of the top of 25 bins": paired.over_seeds(growth) if count > 1 else nothing,
        "growth - fall of the training error": paired.over_seeds(
            [a - b for a, b in zip(growth, falls, strict=True)]
        )
        if count > 1
        else nothing,
    }


def _rule() -> Rule:
    names = (
        "seeds with a training accuracy above 99 %",
        "growth of the top of 25 bins",
        "growth - fall of the training error",
    )

    def judge(values: Values) -> Judgement:
        reached, growth, beyond = (values[name] for name in names)
        if reached.value < 2:
            return Judgement(UNDECIDED)
        p_values = growth.p_above(0.01), beyond.p_above()
        if max(p_values) < 0.05:
            return Judgement(HOLDS, max(p_values))
        none = growth.p_below()
        return Judgement(FAILS if none < 0.05 else UNDECIDED, min(max(p_values), none))

    words = (
        "holds if the share grows by at least a point, and by more than the training error falls"
        " (90 % intervals over seeds); does not hold if it falls; undecided otherwise, and if"
        " fewer than two seeds reach a training accuracy of 99 %"
    )
    return Rule(words, judge, names)


ENTRY = Entry(
    claims={"mukhoti-train-pushed-to-top-bin": _rule()},
    runs={"ce": CE},
    measures=(MEASURE,),
    statistic=statistic,
)
