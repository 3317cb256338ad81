"""A report as files: its figures, its HTML page, and the folder of all forms."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from calib_jax import plots
from calib_jax.core.files import writing
from calib_jax.core.texts import one_line
from calib_jax.report import html_page, tables
from calib_jax.report.answers import answers
from calib_jax.report.records import Results, base_name

if TYPE_CHECKING:
    import matplotlib.figure

Triple = tuple[float, float, float]
_LONGEST = 150  # bytes of a name; a file system takes 255, with prefix, number and ending
_FACTS = {
    "predictions": "predictions",
    "examples": "examples (n)",
    "clusters": "clusters",
    "classes": "classes",
    "event": "event",
    "bins": "bins",
    "resamples": "resamples",
    "seed": "seed",
    "command": "command",
    "versions": "versions",
}


def save(report: Results, folder: Any) -> list[str]:
    """Save report.json, .csv, .md, .html and the figures; return the file names.

    report.json lists them, and only files that it lists are replaced by the next report.
    """
    figures = pictures(report)
    names = [f"report.{ending}" for ending in ("json", "csv", "md", "html")]
    names += [f"{name}.png" for name in figures]
    _refuse_others(pathlib.Path(folder), names)
    page = [tables.as_markdown(report), *(f"![{name}]({name}.png)" for name in figures)]
    texts = {
        "report.json": tables.as_json(report, files=names),
        "report.csv": tables.as_csv(report),
        "report.md": "\n\n".join(page) + "\n",
        "report.html": html_page.render(score_page(report, figures)),
    }
    return write(folder, texts, figures)


def _refuse_others(folder: pathlib.Path, names: list[str]) -> None:
    """Raise an error for a file in the way that no report of this folder lists."""
    listed = []
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        listed = json.loads((folder / "report.json").read_text(encoding="utf-8"))["files"]
    for name in names:
        if (folder / name).is_file() and name not in listed:
            raise ValueError(
                f"{one_line(str(folder / name))} is a file that no report wrote: give another"
                " folder, or remove it."
            )


def write(
    folder: Any, texts: Mapping[str, str], figures: Mapping[str, matplotlib.figure.Figure]
) -> list[str]:
    """Write texts by file name and figures by name as PNG, all or none; return the file names.

    The name of a figure may begin with a folder.
    """
    folder = pathlib.Path(folder)
    try:
        with writing.staged(folder) as new:
            for name, text in texts.items():
                (new / name).write_text(text, encoding="utf-8", errors="backslashreplace")
            for name, figure in figures.items():
                (new / name).parent.mkdir(exist_ok=True)
                plots.save(figure, new / f"{name}.png")
    except OSError as error:
        raise ValueError(str(error)) from error
    return [*texts, *(f"{name}.png" for name in figures)]


def score_page(report: Results, figures: Mapping[str, matplotlib.figure.Figure]) -> html_page.Page:
    """Collect the contents of the page: the tables and notes of report.md, and the figures."""
    settings = report.settings
    facts = {name: settings[key] for key, name in _FACTS.items() if settings.get(key) is not None}
    return html_page.Page(
        title="Calibration report",
        answers=[*report.headlines, *answers(report)],
        head=tables.headline(report),
        facts={"level of the intervals": f"{100 * settings['level']:g}%", **facts},
        sections=tables.titled(report),
        notes=tables.warnings(report),
        folded=tables.explanations(report),
        figures=figures,
        metrics=[
            *(base_name(row.metric) for row in report.rows),
            *(part.metric for part in report.classes),
        ],
        of_answers=settings["classes"] is None,
    )


def pictures(report: Results) -> dict[str, matplotlib.figure.Figure]:
    """Draw reliability diagrams of each model, and the intervals of all metrics.

    A model with a calibrator is shown before and after it; of two classes, the event is shown, and
    beside it the top label if there is no calibrator. A metric without a finite value is omitted
    and named below the figure.
    """
    figures = {}
    level, n = report.settings["level"], report.settings["examples"]
    event, calibrated = report.event, report.calibrated
    models = [name for name in report.reliability if name not in calibrated]
    of_calibrated = file_names(calibrated)
    label = "" if event is None else f", P({literal(event.name)})"
    for number, model in enumerate(models):
        after = [name for name, fit in calibrated.items() if _model_of(fit, models) == model]
        for name in after:
            before = _panel(report, model, f"{literal(model)}{label}")
            figures[f"reliability_{of_calibrated[name]}"] = _pair(
                before, _panel(report, name, f"{literal(name)}{label}"), level
            )
        # Names of models may be any text, so they are not used as file names.
        kind = "" if number == 0 else "_other" if len(models) == 2 else f"_other_{number}"
        title = literal(model) if len(models) > 1 else ""
        top = report.reliability[model], _ece(report, "ece", model), title, None
        if event is not None and (number == 0 or not after):
            titled = f"{title}, top label" if title else "top label"
            panel = _panel(report, model, f"{title}{label}".removeprefix(", "))
            figures[f"reliability{kind}"] = _pair(panel, (*top[:2], titled, None), level)
        elif not after:
            options = {"ece": top[1], "title": title or None, "level": level}
            figures[f"reliability{kind}"] = plots.reliability_diagram(top[0], **options)
    estimates = [
        (literal(row.predictions), report.label(row.metric), (row.value, row.low, row.high))
        for row in report.rows
    ]
    by_model, note = drawable(estimates)
    if by_model:
        figures["intervals"] = plots.intervals(by_model, note=note, level=level, n=n)
    return figures


def _model_of(fit: Mapping[str, Any], models: list[str]) -> str:
    """Return the model that a fit calibrates."""
    model = fit.get("predictions")
    return model if model in models else models[0]


def _ece(report: Results, metric: str, model: str) -> float | None:
    """Return the finite ECE of the caption, if the report has it."""
    for row in report.rows:
        if (row.metric, row.predictions) == (metric, model) and math.isfinite(row.value):
            return row.value
    return None


def _panel(report: Results, model: str, title: str) -> tuple[Any, float | None, str, str | None]:
    """Return the first reading of a model: its table, its ECE, its title and the event."""
    event = report.event
    if event is None:
        return report.reliability[model], _ece(report, "ece", model), title, None
    table = event.reliability[model]
    return table, _ece(report, event.of("ece"), model), title, literal(event.name)


def _pair(left: Any, right: Any, level: float) -> matplotlib.figure.Figure:
    """Draw two panels beside each other."""
    ece, titles, events = zip(left[1:], right[1:], strict=True)
    return plots.reliability_before_after(
        left[0], right[0], ece=ece, titles=titles, events=events, level=level
    )


def drawable(
    estimates: Iterable[tuple[str, str, Triple]],
) -> tuple[dict[str, dict[str, float | Triple]], str | None]:
    """Group (method, metric, (value, low, high)) for `plots.intervals`.

    Returns:
      The finite estimates by method and metric (only the value if the interval is not finite), and
      a note that names the omitted estimates; None if there are none.
    """
    by_method: dict[str, dict[str, float | Triple]] = {}
    left_out = []
    for method, metric, (value, low, high) in estimates:
        if not math.isfinite(value):
            left_out.append(f"{metric} ({method})")
            continue
        has_ends = math.isfinite(low) and math.isfinite(high)
        by_method.setdefault(method, {})[metric] = (value, low, high) if has_ends else value
    note = f"not drawn, since it has no finite value: {', '.join(left_out)}"
    return by_method, note if left_out else None


def file_name(text: str) -> str:
    """Replace characters that are not portable in file names.

    >>> file_name("T by adaptive_ece:0.01")
    'T_by_adaptive_ece_0.01'
    """
    return re.sub(r"[^\w.]+", "_", text)


def file_names(texts: Iterable[str]) -> dict[str, str]:
    """Name the figure of each text; texts may be long or differ in other characters alone.

    >>> file_names(["svhn", "a/b", "a b"])
    {'svhn': 'svhn', 'a/b': 'a_b', 'a b': 'a_b_2'}
    """
    names: dict[str, str] = {}
    taken: set[str] = set()  # in lower case: some file systems ignore the case
    for text in texts:
        chosen = first = file_name(text).encode()[:_LONGEST].decode(errors="ignore")
        number = 1
        while chosen.lower() in taken:
            number += 1
            chosen = f"{first}_{number}"
        taken.add(chosen.lower())
        names[text] = chosen
    return names


def literal(name: str) -> str:
    """Escape dollar signs, which Matplotlib renders as math, and what no font can draw."""
    return one_line(name).replace("$", r"\$")
