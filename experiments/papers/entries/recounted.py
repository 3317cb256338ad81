"""Claims that are recounts of published tables: in how many rows is a column below others?

A column is written as TABLE:METHOD, such as "T1:FLSD-53"; with "+TS" behind it, the column after
scaling, whatever the phase. "T1:*" are all columns of a table, and "CE=T1:Cross-Entropy" names one
anew for the notes.
"""

from collections.abc import Callable
from typing import NamedTuple

from experiments.papers.judge import counting
from experiments.papers.judge.counting import PHASES, Column
from experiments.papers.judge.values import Value

SCALED = "+TS"


class Below(NamedTuple):
    """A count of the rows where a column is strictly below all others.

    Attributes:
      name: the name of the value; {when} stands for "before scaling" or "after scaling".
      column: the column.
      others: the columns that it is compared with.
      brief: whether the note omits the other rows, as for counts that no rule judges.
    """

    name: str
    column: str
    others: tuple[str, ...]
    brief: bool = False


Count = Below | Callable[[str], dict[str, Value]]


def statistic(
    source: str, *counts: Count, phases: tuple[str, ...] = tuple(PHASES)
) -> Callable[[], dict[str, Value]]:
    """Return the statistic that has some counts in some phases.

    Args:
      source: mukhoti, adafocal or bsce-gra.
      *counts: comparisons of columns, or functions of the phase that return values.
      phases: pre and post, or "" for tables without phases.
    """

    def compute() -> dict[str, Value]:
        values: dict[str, Value] = {}
        for phase in phases:
            for count in counts:
                values |= below(source, count, phase) if isinstance(count, Below) else count(phase)
        return values

    return compute


def below(source: str, count: Below, phase: str) -> dict[str, Value]:
    """Count the rows where a column is below the others."""
    ((method, column),) = columns(source, count.column, phase).items()
    others: dict[str, Column] = {}
    for place in count.others:
        others |= columns(source, place, phase)
    value = counting.below(column, counting.without(others, method))
    name = count.name.format(when=PHASES.get(phase, ""))
    return {name: counting.brief(value) if count.brief else value}


def columns(source: str, place: str, phase: str = "") -> dict[str, Column]:
    """Read columns of a published table by method."""
    label, _, place = place.rpartition("=")
    table, _, method = place.partition(":")
    scaled, method = method.endswith(SCALED), method.removesuffix(SCALED)
    known = counting.columns(source, table, "post" if scaled else phase)
    chosen = known if method == "*" else {method: known[method]}
    return {label or name + SCALED * scaled: column for name, column in chosen.items()}
