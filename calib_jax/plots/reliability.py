"""Reliability diagrams: accuracy against confidence in each bin."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calib_jax.core import checks, texts
from calib_jax.plots import style
from calib_jax.plots.bins import FEW, CheckedBins, checked, note_on_narrow
from calib_jax.plots.style import count

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure


_FAINT = 0.3


@style.drawn
def reliability_diagram(
    table: Any,
    *,
    ece: Any = None,
    title: str | None = None,
    level: float | None = None,
    width: float = 4.5,
) -> "matplotlib.figure.Figure":
    """Draw accuracy against confidence, bin by bin, above a histogram of the confidences.

    A bar shows the accuracy of a bin between the bin's edges. A hatched box shows the gap between
    the accuracy and the bin's mean confidence, which is the position of the point; where the model
    is under-confident, the box lies inside the bar, which shows through it. Empty bins have
    neither. The line through the point is the interval of the accuracy. Bins with fewer than ten
    examples are faint and show their number.

    Args:
      table: an object with the fields of `BinTable`: the result of `metrics.reliability` or
        `metrics.adaptive_reliability`, or a `Bins`.
      ece: ECE for the caption, a number or (value, low, high); if None, the ECE of the table.
      title: a line above the caption.
      level: nominal coverage of the table's intervals, for the legend.
      width: width of the figure, in inches.

    References:
      Guo et al., On calibration of modern neural networks, ICML 2017.

    >>> from calib_jax import plots
    >>> table = plots.Bins([0, 0.5], [0.5, 1], [2, 8], [0.4, 0.9], [0.5, 0.75])
    >>> figure = plots.reliability_diagram(table)
    >>> print(figure.axes[0].get_title(loc="left"))
    ECE 0.140
    accuracy 0.700, confidence 0.800
    n = 10, 2 bins of equal width
    """
    return _figure([(checked("reliability_diagram", table), ece, title)], level, width)


@style.drawn
def reliability_before_after(
    before: Any,
    after: Any,
    *,
    ece: tuple[Any, Any] = (None, None),
    titles: tuple[str, str] = ("before", "after"),
    events: tuple[str | None, str | None] = (None, None),
    level: float | None = None,
    width: float = 7.5,
) -> "matplotlib.figure.Figure":
    """Draw two reliability diagrams side by side, on the same axes.

    Args:
      before: an object with the fields of `BinTable`, such as the table of the trained model.
      after: another such object, such as the table of the calibrated model.
      ece: ECEs for the captions, as in `reliability_diagram`.
      titles: titles of the two diagrams.
      events: for a diagram of the probability of an event, the name of the event; None for a
        diagram of the confidence of the top label.
      level: nominal coverage of the tables' intervals, for the legend.
      width: width of the figure, in inches.
    """
    if len(ece) != 2 or len(titles) != 2:
        raise ValueError(f"ece and titles must be pairs, got {ece!r} and {titles!r}.")
    tables = [checked("reliability_before_after", table) for table in (before, after)]
    return _figure(list(zip(tables, ece, titles, strict=True)), level, width, events)


@style.drawn
def reliability_grid(
    tables: Mapping[str, Any],
    *,
    ece: Mapping[str, Any] | None = None,
    columns: int = 5,
    title: str | None = None,
    level: float | None = None,
    width: float = 9.0,
) -> "matplotlib.figure.Figure":
    """Draw a grid of the reliability diagrams of several models, without histograms.

    Args:
      tables: tables by name, each as in `reliability_diagram`.
      ece: ECEs for the captions, by the names of the tables; other names are ignored. If None, the
        ECEs of the tables.
      columns: diagrams per row.
      title: title of the figure.
      level: nominal coverage of the tables' intervals, for the legend.
      width: width of the figure, in inches.
    """
    if not tables:
        raise ValueError("reliability_grid: there is no table to draw.")
    captions = dict.fromkeys(tables) if ece is None else ece
    if missing := [name for name in tables if name not in captions]:
        raise ValueError(
            f"ece needs an entry for each table, and has none for {', '.join(map(repr, missing))}:"
            " give a number, or None for the ECE of the table."
        )
    checks.at_least("columns", columns, 1)
    columns = min(columns, len(tables))
    rows = -(-len(tables) // columns)
    room = (width - 0.6) / columns
    figure = style.canvas(width, rows * (room + 0.55) + 0.7)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    handles: list[Any] = []
    panels = {name: checked("reliability_grid", table) for name, table in tables.items()}
    for place, (name, bins) in zip(axes.flat, panels.items(), strict=False):
        handles += _diagram(place, bins, level)
        number = style.number("ece", bins.ece if captions[name] is None else captions[name])
        place.set_title(style.wrapped(f"{name}\nECE {number}, {bins.n}", room))
    style.label_grid(axes, len(tables), x="confidence", y="accuracy")
    axes[0, 0].set_xticks(np.linspace(0, 1, 3))
    if title:
        figure.suptitle(style.wrapped(title, width), x=0.01, ha="left", fontsize=10)
    notes = [_why_outside([captions[name] for name in tables]), note_on_narrow(panels)]
    style.legend_below(figure, handles, width, " ".join(filter(None, notes)))
    return figure


def _figure(
    panels: list[tuple[CheckedBins, Any, str | None]],
    level: float | None,
    width: float,
    events: Sequence[str | None] = (None,),
) -> "matplotlib.figure.Figure":
    room = (width - 0.6) / len(panels)
    # A nearly square diagram, a histogram of a third of its height, and text above and below.
    figure = style.canvas(width, room * 4 / 3 + 1.9)
    axes = figure.subplots(
        2, len(panels), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1)
    )
    handles: list[Any] = []
    for column, (bins, ece, title) in enumerate(panels):
        event = events[column]
        x, y = ("confidence", "accuracy") if event is None else (f"P({event})", "observed")
        handles += _diagram(axes[0, column], bins, level, event is not None)
        handles += _histogram(axes[1, column], bins, event is not None)
        axes[1, column].set_xlabel(x)
        if column == 0 or events[column] != events[0]:
            axes[0, column].set_ylabel(y)
        # Narrow diagrams get one fact per line.
        between = ", " if style.characters(room) > 36 else "\n"
        names = ("accuracy", "confidence") if event is None else ("observed", "stated")
        means = f"{names[0]} {bins.mean(bins.accuracy):.3f}"
        means += f"{between}{names[1]} {bins.mean(bins.confidence):.3f}"
        number = style.number("ece", bins.ece if ece is None else ece)
        caption = f"ECE {number}\n{means}\n{bins.n}{between}{bins.cut}"
        caption = f"{title}\n{caption}" if title else caption
        axes[0, column].set_title(style.wrapped(caption, room))
    axes[0, 0].set(xticks=np.linspace(0, 1, 6 if room > 2.5 else 3))
    axes[1, 0].set_ylabel("examples, %")
    figure.align_ylabels()
    several = len(panels) > 1
    narrow = note_on_narrow({title or "" if several else "": bins for bins, _, title in panels})
    notes = [_why_outside([ece for _, ece, _ in panels]), narrow]
    style.legend_below(figure, handles, width, " ".join(filter(None, notes)))
    return figure


def _why_outside(captions: list[Any]) -> str:
    """Return why a captioned ECE lies outside its interval, if one does."""
    triples = [style.triple("ece", ece) for ece in captions if ece is not None]
    return " ".join(texts.reasons(triples))


def _diagram(
    axes: "matplotlib.axes.Axes", bins: CheckedBins, level: float | None, of_event: bool = False
) -> list[Any]:
    """Draw bars, gaps, intervals and the diagonal; return the legend's handles."""
    share, over, under = (
        ("observed per bin", "gap: stated too high", "gap: stated too low")
        if of_event
        else ("accuracy per bin", "gap: over-confident", "gap: under-confident")
    )
    filled = bins.filled
    left, width = bins.lower[filled], (bins.upper - bins.lower)[filled]
    confidence, accuracy = bins.confidence[filled], bins.accuracy[filled]
    few = bins.few[filled]
    gap = confidence - accuracy
    handles: list[Any] = []
    for side, height, bottom, label, look in (
        (np.ones_like(few), accuracy, np.zeros_like(gap), share, style.PLAIN),
        (gap > 0, gap, accuracy, over, style.HATCHED),
        (gap < 0, gap, accuracy, under, style.HATCHED_BACK),
    ):
        if np.any(side):
            where = (left[side], height[side], width[side], bottom[side])
            bars = axes.bar(*where, align="edge", label=label, **look)
            for bar in np.array(bars.patches)[few[side]]:
                bar.set_alpha(_FAINT)
            handles.append(_strong(bars, label, look))
    (diagonal,) = axes.plot([0, 1], [0, 1], color=style.GREY, dashes=(4, 2), linewidth=1)
    diagonal.set_label("calibrated")
    handles.append(diagonal)
    ends = None
    if bins.low is not None and bins.high is not None:
        # Rounding may put the accuracy outside its interval by the last bit.
        ends = np.maximum([accuracy - bins.low[filled], bins.high[filled] - accuracy], 0)
    label = "bin mean" if ends is None else f"bin mean, {style.interval_label(level)}"
    for side, alpha in ((few, _FAINT), (~few, 1.0)):
        if np.any(side):
            points = axes.errorbar(
                confidence[side],
                accuracy[side],
                yerr=None if ends is None else ends[:, side],
                fmt="o",
                color=style.BLACK,
                markersize=2.5,
                linewidth=0.9,
                capsize=2,
                clip_on=False,
                zorder=3,
                alpha=alpha,
                label=label,
            )
    handles.append(points)  # the strong points, if there are any
    if np.any(few):
        handles.append(_write_few(axes, bins))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    bins.add_hover(axes)
    return handles


def _strong(bars: Any, label: str, look: Mapping[str, Any]) -> Any:
    """Return a legend handle in full strength, even if the first bar is faint."""
    from matplotlib.patches import Patch

    return bars if bars.patches[0].get_alpha() is None else Patch(label=label, **look)


def _write_few(axes: "matplotlib.axes.Axes", bins: CheckedBins) -> Any:
    """Write the number of examples into the bins that have few; return the legend's handle."""
    from matplotlib.patches import Patch

    low = bins.accuracy if bins.low is None else bins.low
    high = bins.accuracy if bins.high is None else bins.high
    for number in np.flatnonzero(bins.few):
        center = (bins.lower[number] + bins.upper[number]) / 2
        # At the top, or at the bottom if the interval leaves more room there.
        top = 1 - high[number] >= min(low[number], bins.confidence[number])
        axes.text(
            center,
            0.985 if top else 0.015,
            f"n = {count(bins.weight[number])}",
            rotation=90,
            fontsize=6,
            ha="center",
            va="top" if top else "bottom",
            bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.4},
            zorder=4,
        )
    return Patch(label=f"fewer than {FEW} examples", **style.PLAIN, alpha=_FAINT)


def _histogram(
    axes: "matplotlib.axes.Axes", bins: CheckedBins, of_event: bool = False
) -> list[Any]:
    right, stated = ("observed", "stated") if of_event else ("accuracy", "confidence")
    filled = bins.filled
    axes.bar(
        bins.lower[filled],
        bins.share[filled],
        (bins.upper - bins.lower)[filled],
        align="edge",
        facecolor="#D9D9D9",
        edgecolor=style.GREY,
        linewidth=0.6,
    )
    axes.set_xlabel("confidence")
    bins.add_hover(axes)
    return [
        axes.axvline(bins.mean(values), label=label, color=color, linestyle=dash, linewidth=1.3)
        for values, label, color, dash in (
            (bins.accuracy, f"overall {right}", style.BLUE, "-"),
            (bins.confidence, f"overall {stated}", style.VERMILLION, "--"),
        )
    ]
