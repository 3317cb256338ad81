"""Run a benchmark, and write its results as Markdown tables and as JSON with provenance."""

import inspect
import json
import pathlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from absl import app, flags

from experiments import provenance

Row = dict[str, Any]
Cell = Callable[[Row], str]

# Flags that several benchmarks have: a type, and the help.
Shapes = Annotated[Sequence[str], "Examples x classes, one or more."]
Rounds = Annotated[int, "How often each call is timed."]
Peers = Annotated[bool, "Also time other libraries that are installed."]

KEPT, MISSED, OPEN = "kept", "**missed**", "open"
LEGEND = "A ratio is a median over rounds, with its middle half; a target inside that half is open."


class Section(NamedTuple):
    """A kind of table: its title, its columns, and a note above it."""

    title: str
    columns: Mapping[str, Cell]
    note: str = ""


class Report(NamedTuple):
    """Rows, each with a `task` that names its section, and the sections and setting."""

    title: str
    results: list[Row]
    sections: Mapping[str, Section]
    by: Sequence[str] = ("task",)  # A table is made for each combination of these values.
    setting: Mapping[str, Any] = {}


def text(key: str) -> Cell:
    """Format a value as it is."""
    return lambda row: str(row.get(key, ""))


def number(key: str, form: str = "", scale: float = 1) -> Cell:
    """Format a number, by default with three significant digits."""

    def cell(row: Row) -> str:
        value = scale * row[key] if row.get(key) is not None else None
        return (
            "" if value is None else format(value if form else float(f"{value:.3g}"), form or ",g")
        )

    return cell


def ratio(row: Row, key: str = "ratio") -> str:
    """Format the median and the middle half of a ratio."""
    if not (found := row.get(key)):
        return ""
    middle, low, high = (f"{found[name]:.3g}" for name in ("median", "low", "high"))
    return f"{middle} [{low}, {high}]"


def verdict(row: Row) -> str:
    """Return whether a ratio meets its target, or "open" if this run cannot decide.

    >>> ratio = {"median": 1.01, "low": 1.00, "high": 1.03}
    >>> [verdict({"ratio": ratio, "target": {"at_most": most}}) for most in (1.05, 1.02, 0.9)]
    ['kept', 'open', '**missed**']
    """
    if not row.get("target"):
        return ""
    found = row["ratio"]
    ((bound, target),) = row["target"].items()
    if found["low"] < target < found["high"]:
        return OPEN
    kept = found["median"] <= target if bound == "at_most" else found["median"] >= target
    return KEPT if kept else MISSED


def target(row: Row) -> str:
    """Format a target and its verdict."""
    shown = [f"{bound} {value:.3g}" for bound, value in (row.get("target") or {}).items()]
    return f"{shown[0].replace('_', ' ')}: {verdict(row)}" if shown else ""


SPEED: dict[str, Cell] = {
    **{"": text("name"), "ms": number("ms"), "ratio": ratio, "to": text("against")},
    **{"target": target, "rounds": text("rounds")},
}


def table(columns: Mapping[str, Cell], rows: Sequence[Row]) -> str:
    """Format a Markdown table without the columns that are empty in every row."""
    shown: list[list[str]] = []
    for title, cell in columns.items():
        cells = [cell(row) for row in rows]
        if any(cells):
            width = max(map(len, [title, *cells]))
            place = str.rjust if shown else str.ljust
            rule = "-" * (width - 1) + ":" if shown else "-" * width
            shown.append([place(title, width), rule, *(place(value, width) for value in cells)])
    return "\n".join("| " + " | ".join(line) + " |" for line in zip(*shown, strict=True))


def page(report: Report, origin: Row) -> str:
    """Format a report and its provenance as Markdown."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in report.results:
        groups.setdefault(tuple(str(row.get(key, "")) for key in report.by), []).append(row)
    about = {
        "machine": f"{origin['processor']}, {origin['cores']} cores, {origin['system']}",
        "device": origin["device"],
        "versions": f"python {origin['python']}, {_words(origin['versions'])}",
        "commit": f"{origin['commit']}, {origin['date']}",
        "command": f"`{origin['command']}`",
        **report.setting,
    }
    lines = [f"- {key.replace('_', ' ')}: {_words(value)}" for key, value in about.items() if value]
    verdicts = [found for row in report.results if (found := verdict(row))]
    summary = f"{LEGEND} Missed: {verdicts.count(MISSED)} of {len(verdicts)}." if verdicts else ""
    parts = [f"# {report.title}", "\n".join(lines), summary]
    for (task, *more), rows in groups.items():
        section = report.sections[task]
        heading = " ".join(filter(None, [section.title, *more]))
        parts += [f"## {heading}", section.note, table(section.columns, rows)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_words(inner)}" for key, inner in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def check(flag: str, values: Sequence[str], known: Collection[str]) -> None:
    """Raise an error for unknown values of a flag."""
    for value in values:
        if value not in known:
            raise app.UsageError(f"--{flag}={value} is none of {', '.join(known)}.")


def run(main: Callable[..., Report]) -> None:
    """Call a function with its parameters from the command line, and write what it returns.

    Args:
      main: its parameters become flags, with their default values and the help in `Annotated`.
        They are defined here, and not on import, so that several benchmarks can be imported.
    """
    defines: dict[type, Callable[..., Any]] = {
        **{bool: flags.DEFINE_bool, int: flags.DEFINE_integer},
        **{str: flags.DEFINE_string, list: flags.DEFINE_list},
    }
    found = {}
    for name, flag in inspect.signature(main).parameters.items():
        default = list(flag.default) if isinstance(flag.default, tuple) else flag.default
        found[name] = defines[type(default)](name, default, flag.annotation.__metadata__[0])
    out = flags.DEFINE_string("out", "", "Write all numbers, with their provenance, to this JSON.")
    goal = flags.DEFINE_string("page", "", "Write the tables to this Markdown file.")

    def publish(_: list[str]) -> None:
        report = main(**{name: flag.value for name, flag in found.items()})
        origin = provenance.describe()
        origin["command"] = re.sub(r"=/\S*/", "=", origin["command"])  # Folders of this machine.
        written = page(report, origin)
        print(written)
        numbers = {"provenance": origin, "setting": report.setting, "results": report.results}
        for path, content in ((out, json.dumps(numbers, indent=1) + "\n"), (goal, written)):
            if path.value:
                pathlib.Path(path.value).write_text(content, encoding="utf-8")

    app.run(publish)
