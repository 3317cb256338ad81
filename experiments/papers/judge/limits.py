"""Rules about the size of deviations, for identities and bounds."""

from experiments.papers.judge.counting import listed
from experiments.papers.judge.rules import FAILS, HOLDS, Judgement, Rule, Values


def at_most(limit: float, *names: str) -> Rule:
    """Holds if all values are at most a limit; does not hold on one counterexample."""

    def judge(values: Values) -> Judgement:
        return Judgement(HOLDS if all(values[name].value <= limit for name in names) else FAILS)

    are = "are" if len(names) > 1 else "is"
    words = f"holds if {listed(names)} {are} at most {limit:g}; does not hold otherwise"
    return Rule(words, judge, names)


def above(limit: float, *names: str) -> Rule:
    """Holds if all values are above a limit; does not hold on one counterexample."""

    def judge(values: Values) -> Judgement:
        return Judgement(HOLDS if all(values[name].value > limit for name in names) else FAILS)

    are = "are" if len(names) > 1 else "is"
    words = f"holds if {listed(names)} {are} above {limit:g}; does not hold otherwise"
    return Rule(words, judge, names)
