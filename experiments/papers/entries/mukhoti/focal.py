"""Mukhoti et al., abstract and section 5: focal loss beside cross-entropy on CIFAR-10."""

import numpy as np

from experiments.papers.entries.trainings import CE, FL3, FLSD53
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs, ce2, difference, of_wrong
from experiments.papers.judge.estimates import Estimate, Predictions
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value

MARGIN = 0.005  # of the error, for "does not compromise accuracy"


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare calibration, error and the wrong predictions of FL-3 and FLSD-53 with those of CE."""
    ce, fl3, flsd = runs["ce"], runs["fl3"], runs["flsd"]
    return {
        "CE2(CE) - CE2(FL-3)": ce2(ce, fl3),
        "CE2(CE) - CE2(FLSD-53)": ce2(ce, flsd),
        "CE2(CE) - CE2(FL-3), after T": ce2(ce, fl3, comparisons.after),
        "CE2(CE) - CE2(FLSD-53), after T": ce2(ce, flsd, comparisons.after),
        "error(FLSD-53) - error(CE)": difference(flsd, ce, estimates.error),
        "error(FL-3) - error(CE)": difference(fl3, ce, estimates.error),
        "confidence on wrong(CE) - (FLSD-53)": difference(ce, flsd, of_wrong("confidence")),
        "top-3 accuracy(FLSD-53) - (CE)": difference(flsd, ce, _top_3),
        "p_y of wrong(FLSD-53) - (CE)": difference(flsd, ce, _probability_of_label),
    }


def _top_3(part: Predictions) -> Estimate:
    return estimates.top_k(part, 3)


def _probability_of_label(part: Predictions) -> Estimate:
    """Average the probability of the true class over the wrong predictions."""
    return estimates.mean_where(np.exp(-part.nll), ~part.right)


def _one_is_enough(*names: str) -> Rule:
    """Does not hold only if all intervals lie below 0."""
    strict = rules.above(*names)

    def judge(values: Values) -> Judgement:
        outcome = strict.judge(values)
        if outcome.state == HOLDS:
            return outcome
        p_below = [values[name].p_below() for name in names]
        if max(p_below) < rules.SIZE:
            return Judgement(FAILS, max(p_below))
        return Judgement(UNDECIDED, outcome.p)

    words = f"holds if the 90 % intervals of {' and '.join(names)} lie above 0"
    return Rule(words + "; does not hold if all lie below; undecided otherwise", judge, names)


ENTRY = Entry(
    claims={
        "mukhoti-focal-better-calibrated-than-ce": _one_is_enough(
            "CE2(CE) - CE2(FL-3)", "CE2(CE) - CE2(FLSD-53)"
        ),
        "mukhoti-accuracy-preserved-own": rules.below("error(FLSD-53) - error(CE)", margin=MARGIN),
        "mukhoti-focal-unsure-where-wrong": rules.above("confidence on wrong(CE) - (FLSD-53)"),
        "mukhoti-top5-own": rules.above(
            "top-3 accuracy(FLSD-53) - (CE)", "p_y of wrong(FLSD-53) - (CE)"
        ),
    },
    runs={"ce": CE, "fl3": FL3, "flsd": FLSD53},
    statistic=statistic,
)
