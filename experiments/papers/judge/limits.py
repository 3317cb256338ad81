"""Rules about the size of deviations, for identities and bounds."""

from collections.abc import Callable

from experiments.papers.judge.counting import listed
from experiments.papers.judge.rules import Rule, decided


def at_most(limit: float, *names: str) -> Rule:
    """Holds if all values are at most a limit; does not hold on one counterexample."""
    return _every(names, f"at most {limit:g}", lambda value: value <= limit)


def above(limit: float, *names: str) -> Rule:
    """Holds if all values are above a limit; does not hold on one counterexample."""
    return _every(names, f"above {limit:g}", lambda value: value > limit)


def _every(names: tuple[str, ...], what: str, is_met: Callable[[float], bool]) -> Rule:
    are = "are" if len(names) > 1 else "is"
    return decided(
        f"holds if {listed(names)} {are} {what}; does not hold otherwise",
        lambda values: all(is_met(values[name].value) for name in names),
        names=names,
    )
