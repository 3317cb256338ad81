"""Reliability diagrams: accuracy against confidence in each bin."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calib_jax.core import texts
from calib_jax.plots import style
from calib_jax.plots.bins import FEW, CheckedBins, checked, note_on_narrow
from calib_jax.plots.style import count

_FAINT = 0.3


class _Words(NamedTuple):
    """Labels of the axes, of the bars and gaps, and of the means."""

    x: str = "confidence"
    y: str = "accuracy"
    share: str = "accuracy per bin"
    over: str = "gap: over-confident"
    under: str = "gap: under-confident"
    means: tuple[str, str] = ("accuracy", "confidence")


def _words_of(event: str | None) -> _Words:
    if event is None:
        return _Words()
    gaps = "gap: stated too high", "gap: stated too low"
    return _Words(f"P({event})", "observed", "observed per bin", *gaps, ("observed", "stated"))


@style.drawn
def reliability_diagram(
    table: Any,
    *,
    ece: Any = None,
    title: str | None = None,
    level: float | None = None,
    width: float = 4.5,
) -> style.Figure:
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
) -> style.Figure:
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
) -> style.Figure:
    """Draw a grid of the reliability diagrams of several models, without histograms.

    Args:
      tables: tables by name, each as in `reliability_diagram`.
      ece: ECEs for the captions, by the names of the tables; a table without one gets the ECE of
        its bins.
      columns: diagrams per row.
      title: title of the figure.
      level: nominal coverage of the tables' intervals, for the legend.
      width: width of the figure, in inches.
    """
    if not tables:
        raise ValueError("reliability_grid: there is no table to draw.")
    captions = ece or {}
    rows, columns = style.grid_of(len(tables), columns)
    room = (width - 0.6) / columns
    figure = style.canvas(width, rows * (room + 0.55) + 0.7)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    handles: list[Any] = []
    panels = {name: checked("reliability_grid", table) for name, table in tables.items()}
    for place, (name, bins) in zip(axes.flat, panels.items(), strict=False):
        handles += _diagram(place, bins, level, _Words())
        number = style.number("ece", captions.get(name, bins.ece))
        place.set_title(style.wrapped(f"{name}\nECE {number}, {bins.n}", room))
    style.label_grid(axes, len(tables), x="confidence", y="accuracy")
    axes[0, 0].set_xticks(np.linspace(0, 1, 3))
    if title:
        figure.suptitle(style.wrapped(title, width), x=0.01, ha="left", fontsize=10)
    notes = [_why_outside([captions.get(name) for name in tables]), note_on_narrow(panels)]
    style.legend_below(figure, handles, width, " ".join(filter(None, notes)))
    return figure


def _figure(
    panels: list[tuple[CheckedBins, Any, str | None]],
    level: float | None,
    width: float,
    events: Sequence[str | None] = (None,),
) -> style.Figure:
    room = (width - 0.6) / len(panels)
    # A nearly square diagram, a histogram of a third of its height, and text above and below.
    figure = style.canvas(width, room * 4 / 3 + 1.9)
    axes = figure.subplots(
        2, len(panels), sharex=True, sharey="row", squeeze=False, height_ratios=(3, 1)
    )
    handles: list[Any] = []
    for column, (bins, ece, title) in enumerate(panels):
        words = _words_of(events[column])
        handles += _diagram(axes[0, column], bins, level, words)
        handles += _histogram(axes[1, column], bins, words)
        if column == 0 or events[column] != events[0]:
            axes[0, column].set_ylabel(words.y)
        # Narrow diagrams get one fact per line.
        between = ", " if style.characters(room) > 36 else "\n"
        means = zip(words.means, (bins.accuracy, bins.confidence), strict=True)
        facts = between.join(f"{name} {bins.mean(values):.3f}" for name, values in means)
        number = style.number("ece", bins.ece if ece is None else ece)
        caption = f"ECE {number}\n{facts}\n{bins.n}{between}{bins.cut}"
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


def _diagram(axes: style.Axes, bins: CheckedBins, level: float | None, words: _Words) -> list[Any]:
    """Draw bars, gaps, intervals and the diagonal; return the legend's handles."""
    from matplotlib.patches import Patch

    filled, few = bins.filled, bins.few[bins.filled]
    left, width = bins.lower[filled], (bins.upper - bins.lower)[filled]
    confidence, accuracy = bins.confidence[filled], bins.accuracy[filled]
    gap = confidence - accuracy
    handles: list[Any] = []
    for side, height, bottom, label, look in (
        (np.ones_like(few), accuracy, np.zeros_like(gap), words.share, style.PLAIN),
        (gap > 0, gap, accuracy, words.over, style.HATCHED),
        (gap < 0, gap, accuracy, words.under, style.HATCHED_BACK),
    ):
        if np.any(side):
            where = (left[side], height[side], width[side], bottom[side])
            bars = axes.bar(*where, align="edge", label=label, **look)
            for bar in np.array(bars.patches)[few[side]]:
                bar.set_alpha(_FAINT)
            handles.append(Patch(label=label, **look))
    dashed: dict[str, Any] = {"color": style.GREY, "dashes": (4, 2), "linewidth": 1}
    handles += axes.plot([0, 1], [0, 1], label="calibrated", **dashed)
    ends = None
    if bins.low is not None and bins.high is not None:
        # Rounding may put the accuracy outside its interval by the last bit.
        ends = np.maximum([accuracy - bins.low[filled], bins.high[filled] - accuracy], 0)
    label = "bin mean" if ends is None else f"bin mean, {style.interval_label(level)}"
    dots: dict[str, Any] = {"fmt": "o", "color": style.BLACK, "markersize": 2.5, "linewidth": 0.9}
    for side, alpha in ((few, _FAINT), (~few, 1.0)):
        if np.any(side):
            error = None if ends is None else ends[:, side]
            dots |= {"alpha": alpha, "label": label, "clip_on": False, "zorder": 3, "capsize": 2}
            points = axes.errorbar(confidence[side], accuracy[side], error, **dots)
    handles.append(points)  # the strong points, if there are any
    if np.any(few):
        _write_few(axes, bins)
        handles.append(Patch(label=f"fewer than {FEW} examples", **style.PLAIN, alpha=_FAINT))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    bins.add_hover(axes)
    return handles


def _write_few(axes: style.Axes, bins: CheckedBins) -> None:
    """Write the number of examples into the bins that have few."""
    low = bins.accuracy if bins.low is None else bins.low
    high = bins.accuracy if bins.high is None else bins.high
    box = {"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.4}
    for number in np.flatnonzero(bins.few):
        center = (bins.lower[number] + bins.upper[number]) / 2
        # At the top, or at the bottom if the interval leaves more room there.
        top = 1 - high[number] >= min(low[number], bins.confidence[number])
        text = f"n = {count(bins.weight[number])}"
        look: dict[str, Any] = {"rotation": 90, "fontsize": 6, "ha": "center", "zorder": 4}
        y, va = (0.985, "top") if top else (0.015, "bottom")
        axes.text(center, y, text, va=va, bbox=box, **look)


def _histogram(axes: style.Axes, bins: CheckedBins, words: _Words) -> list[Any]:
    filled = bins.filled
    look: dict[str, Any] = {"facecolor": "#D9D9D9", "edgecolor": style.GREY, "linewidth": 0.6}
    width = bins.upper - bins.lower
    axes.bar(bins.lower[filled], bins.share[filled], width[filled], align="edge", **look)
    axes.set_xlabel(words.x)
    bins.add_hover(axes)
    means = (bins.accuracy, style.BLUE, "-"), (bins.confidence, style.VERMILLION, "--")
    return [
        axes.axvline(bins.mean(values), label=f"overall {name}", color=color, ls=dash, lw=1.3)
        for name, (values, color, dash) in zip(words.means, means, strict=True)
    ]
