"""Mukhoti et al., appendix J: early stopping by validation NLL, ECE and error."""

from collections.abc import Callable

from experiments.papers.entries.trainings import CE, FLSD53
from experiments.papers.entry import Entry
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Part, Runs, ce2, difference
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value
from experiments.papers.store.measures import all_columns
from experiments.papers.store.records import Trained

MEASURE = "early_stops"
CRITERIA = ("ece", "nll", "error")


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare both losses at the epoch that each criterion chooses, and with the last epoch."""
    ce, flsd = runs["ce"], runs["flsd"]
    values = {}
    for criterion in CRITERIA:
        part = _stopped(criterion)
        values[f"CE2(CE) - CE2(FLSD-53), stop by {criterion}"] = ce2(ce, flsd, part)
        values[f"error(CE) - error(FLSD-53), stop by {criterion}"] = difference(
            ce, flsd, estimates.error, part
        )
    stopped = _stopped("ece")
    values["CE2(CE, last) - CE2(CE, stop by ece)"] = ce2(ce, ce, comparisons.before, stopped)
    values["error(CE, stop by ece) - error(CE, last)"] = comparisons.mean(
        ce, lambda run: estimates.error(stopped(run)) - estimates.error(all_columns(run.logits))
    )
    return values


def _stopped(criterion: str) -> Callable[[Trained], Part]:
    return lambda run: run.columns(MEASURE, criterion)


def _wins() -> Rule:
    errors = tuple(f"CE2(CE) - CE2(FLSD-53), stop by {criterion}" for criterion in CRITERIA)
    rates = tuple(f"error(CE) - error(FLSD-53), stop by {criterion}" for criterion in CRITERIA)
    strict = rules.above(*errors)

    def judge(values: Values) -> Judgement:
        outcome = strict.judge(values)
        if outcome.state == HOLDS and min(values[name].p_below() for name in rates) < rules.SIZE:
            return Judgement(UNDECIDED, outcome.p)
        return outcome

    words = (
        "holds if the 90 % intervals of all CE2 differences lie above 0 and that of no error"
        f" difference below 0; {FAILS} if one of CE2 lies below 0; undecided otherwise"
    )
    return Rule(words, judge, (*errors, *rates))


ENTRY = Entry(
    claims={
        "mukhoti-early-stop-focal-wins-own": _wins(),
        "mukhoti-early-stop-ce-costs-error": rules.above(
            "CE2(CE, last) - CE2(CE, stop by ece)", "error(CE, stop by ece) - error(CE, last)"
        ),
    },
    runs={"ce": CE, "flsd": FLSD53},
    measures=(MEASURE,),
    statistic=statistic,
    note="Each run stops at the epoch of its own least validation value.",
)
