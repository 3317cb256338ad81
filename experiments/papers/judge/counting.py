"""Counts over published rows: in how many of them a statement of a paper is true."""

from collections.abc import Callable, Iterable, Mapping

from experiments.papers import published
from experiments.papers.judge import rules
from experiments.papers.judge.rules import Rule, Values, decided
from experiments.papers.judge.values import Value

PHASES = {"pre": "before scaling", "post": "after scaling"}

Column = Mapping[str, float]


def columns(
    source: str, table: str, phase: str = "", metric: str | None = None, field: str = "value"
) -> dict[str, dict[str, float]]:
    """Read a published table as {method: {"data set, network": number}}.

    The field "temperature" has the temperatures printed beside the values after scaling.
    """
    chosen: dict[str, dict[str, float]] = {}
    for (dataset, model), numbers in published.table(source, table, phase, metric).items():
        for method, number in numbers.items():
            chosen.setdefault(method, {})[f"{dataset}, {model}"] = getattr(number, field)
    return chosen


def without(table: Mapping[str, Column], *methods: str) -> dict[str, Column]:
    """Return the other columns of a table."""
    return {name: column for name, column in table.items() if name not in methods}


def among(table: Mapping[str, Column], methods: Iterable[str]) -> dict[str, Column]:
    """Return the named columns of a table."""
    return {name: table[name] for name in methods}


def count(flags: Mapping[str, bool], why: Callable[[str], str] | None = None) -> Value:
    """Count the rows where a statement is true; the note lists the others.

    Args:
      flags: whether the statement is true, by row.
      why: describes a row where it is false, with its numbers; without it the note is empty.
    """
    exceptions = [row for row, flag in flags.items() if not flag]
    note = "; ".join(f"{row}: {why(row)}" for row in exceptions) if why else ""
    note = f"not {note}" if note else ""
    return Value(len(flags) - len(exceptions), rows=len(flags), note=note)


def below(column: Column, others: Mapping[str, Column]) -> Value:
    """Count the rows where a column is strictly below all others, as printed."""

    def least(row: str) -> tuple[float, str]:
        return min((other[row], name) for name, other in others.items())

    flags = {row: value < least(row)[0] for row, value in column.items()}
    return count(flags, lambda row: f"{column[row]:g}, {least(row)[1]} {least(row)[0]:g}")


def inside(column: Column, low: float, high: float) -> Value:
    """Count the rows whose value lies in [low, high]."""
    flags = {row: low <= value <= high for row, value in column.items()}
    return count(flags, lambda row: f"{column[row]:g}")


def brief(value: Value) -> Value:
    """Drop the list of exceptions of a count that no rule judges."""
    return value._replace(note="")


def each_count(*names: str, holds: float, fails: float) -> Rule:
    """Holds if all counts are at least `holds`; does not hold if one is at most `fails`."""
    many = len(names) > 1
    words = (
        f"holds if {listed(names)} {'are all' if many else 'is'} at least {holds:g}; does not hold"
        f" if {'one' if many else 'it'} is at most {fails:g}"
    )
    return _counted(words, names, min, holds, fails)


def total_count(name: str, parts: Iterable[str], holds: float, fails: float) -> Rule:
    """Holds if counts add up to at least `holds`; does not hold if to at most `fails`."""
    words = f"holds if {name} is at least {holds:g}; does not hold if it is at most {fails:g}"
    return _counted(words, tuple(parts), sum, holds, fails)


def _counted(
    words: str,
    names: tuple[str, ...],
    combined: Callable[[list[float]], float],
    holds: float,
    fails: float,
) -> Rule:
    def of(values: Values) -> float:
        return combined([values[name].value for name in names])

    words += "; undecided in between" * (holds - fails > 1)
    return decided(words, lambda v: of(v) >= holds, lambda v: of(v) <= fails, names)


def one_count(*names: str, holds: float) -> Rule:
    """Holds if a count is at least `holds`; does not hold if none is."""
    return decided(
        f"holds if one of {listed(names)} is at least {holds:g}; does not hold otherwise",
        lambda values: max(values[name].value for name in names) >= holds,
        names=names,
    )


def all_counts(*names: str, holds: float, fails: float) -> Rule:
    """Holds if all counts are at least `holds`; does not hold if all are at most `fails`."""
    return decided(
        f"holds if {listed(names)} are all at least {holds:g}; does not hold if all are at"
        f" most {fails:g}; undecided otherwise",
        lambda values: min(values[name].value for name in names) >= holds,
        lambda values: max(values[name].value for name in names) <= fails,
        names,
    )


def listed(names: Iterable[str]) -> str:
    """Write names as a list in quotation marks.

    >>> listed(["a", "b", "c"])
    "'a', 'b' and 'c'"
    """
    return rules.listed([f"'{name}'" for name in names])
