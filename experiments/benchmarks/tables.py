"""Run a benchmark, and write its results as Markdown tables and as JSON with provenance."""

import inspect
import json
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_args

from absl import flags

from calib_jax.core.inputs import checks
from calib_jax.report import tables as markdown
from experiments.benchmarks import reference
from experiments.running import cli, provenance

flags.disclaim_key_flags()  # the flags of `run` belong to its caller, for its --help

Row = dict[str, Any]
Cell = Callable[[Row], str]
Measures = Mapping[str, Callable[..., list[Row]]]

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
    """Format a value by `str`."""
    return lambda row: str(row.get(key, ""))


def number(key: str, form: str = "", scale: float = 1) -> Cell:
    """Format a number, by default with three significant digits."""

    def cell(row: Row) -> str:
        if row.get(key) is None:
            return ""
        value = scale * row[key]
        return format(value, form) if form else f"{float(f'{value:.3g}'):,g}"

    return cell


def ratio(row: Row) -> str:
    """Format the median and the middle half of a ratio."""
    return "{median:.3g} [{low:.3g}, {high:.3g}]".format(**row["ratio"]) if row.get("ratio") else ""


def verdict(row: Row) -> str:
    """Return whether a ratio meets its target, or "open" if this run cannot decide."""
    ratio, ((bound, target),) = row["ratio"], row["target"].items()
    if ratio["low"] < target < ratio["high"]:
        return OPEN
    kept = ratio["median"] <= target if bound == "at_most" else ratio["median"] >= target
    return KEPT if kept else MISSED


def target(row: Row) -> str:
    """Format a target and its verdict."""
    if not row.get("target"):
        return ""
    ((bound, value),) = row["target"].items()
    return f"{bound.replace('_', ' ')} {value:.3g}: {verdict(row)}"


SPEED: dict[str, Cell] = {
    **{"": text("name"), "ms": number("seconds", scale=1e3), "ratio": ratio},
    **{"to": text("against"), "target": target, "rounds": text("rounds")},
}


def table(columns: Mapping[str, Cell], rows: Sequence[Row]) -> str:
    """Format a Markdown table without the columns that are empty in every row."""
    filled = {title: cell for title, cell in columns.items() if any(map(cell, rows))}
    return markdown.in_markdown(
        [[*filled], *([cell(row) for cell in filled.values()] for row in rows)], is_markup=True
    )


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
    verdicts = [verdict(row) for row in report.results if row.get("target")]
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
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def check(flag: str, values: Sequence[str], known: Collection[str]) -> None:
    """Raise an error for unknown values of a flag."""
    for value in values:
        cli.refusing(checks.one_of, f"value of --{flag}", value, known)


def measured(
    measures: Measures, shapes: Sequence[str], parts: Sequence[str], **options: Any
) -> list[Row]:
    """Measure the chosen parts (all by default) at every shape, and add both to the rows."""
    check("parts", parts, measures)
    return [
        {"task": part, "shape": shape} | row
        for shape in shapes
        for part in parts or measures
        for row in measures[part](reference.shaped(shape), **options)
    ]


def _flags_of(function: Callable[..., Any]) -> dict[str, flags.FlagHolder[Any]]:
    """Define a flag for each parameter; a whole number is at least 1, or at least its default."""
    define: dict[Any, Callable[..., flags.FlagHolder[Any]]] = {
        **{bool: flags.DEFINE_bool, int: flags.DEFINE_integer, str: flags.DEFINE_string},
        Sequence[str]: flags.DEFINE_list,
    }
    holders = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, explanation = get_args(parameter.annotation)
        default = parameter.default
        if kind == Sequence[str]:
            default = list(default)
        bound = {"lower_bound": min(default, 1)} if kind is int else {}
        holders[name] = define[kind](name, default, explanation, **bound)
    return holders


def run(main: Callable[..., Report]) -> None:
    """Call a function with its parameters from the command line, and write its report.

    Args:
      main: its parameters become flags, with their default values and the help in `Annotated`.
        They are defined here, and not on import, so that several benchmarks can be imported.
    """
    holders = _flags_of(main)
    json_file = flags.DEFINE_string("out", "", "Write all numbers to this JSON file.")
    page_file = flags.DEFINE_string("page", "", "Write the tables to this Markdown file.")

    def publish() -> None:
        options = {name: holder.value for name, holder in holders.items()}
        report = cli.failing(main, **options)
        shown = {
            name: pathlib.Path(value).name if str(value).startswith("/") else value
            for name, value in options.items()
        }
        report = report._replace(setting=shown | dict(report.setting))
        origin = provenance.published()
        tables = page(report, origin)
        print(tables)
        numbers = {"provenance": origin, "setting": report.setting, "results": report.results}
        for path, content in (json_file, json.dumps(numbers, indent=1) + "\n"), (page_file, tables):
            if path.value:
                pathlib.Path(path.value).write_text(content, encoding="utf-8")

    cli.run(publish)
