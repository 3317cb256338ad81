"""Values with their intervals, compared across methods."""

from collections.abc import Mapping
from typing import Any

from calib_jax.core import texts
from calib_jax.core.checks import short
from calib_jax.plots import style


@style.drawn
def intervals(
    estimates: Mapping[str, Any],
    *,
    columns: int = 3,
    title: str | None = None,
    note: str | None = None,
    level: float | None = None,
    n: float | None = None,
    width: float | None = None,
) -> style.Figure:
    """Draw each value with its interval, one row per method and one panel per metric.

    The point is the value. A value can lie outside its interval, because resampling raises
    calibration errors. Its point is hollow and marked, its interval is not drawn, and a note below
    gives the reason.

    Args:
      estimates: methods by name, each with its metrics by name, each (value, low, high) or a
        number: `{"focal": inference.estimates(...), ...}`; or values by name, drawn in one panel.
      columns: panels per row.
      title: title of the figure.
      note: text below the figure, such as what it omits.
      level: nominal coverage of the intervals, for the text below the figure.
      n: number of examples, for the same text.
      width: width of the figure, in inches; if None, 4.5 for one panel and 7.5 for more.

    References:
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020, figure 4.
    """
    panels = _by_metric(estimates)
    methods = [str(name) for name in estimates]
    rows, columns = style.grid_of(len(panels), columns)
    if width is None:
        width = 4.5 if columns == 1 else 7.5
    # Names take at most two fifths of the figure.
    names = [style.wrapped(method, 0.4 * width) for method in methods]
    lines = sum(name.count("\n") + 1.5 for name in names)
    triples = [triple for panel in panels.values() for triple in panel.values()]
    reasons = [f"{reason} The interval is not drawn." for reason in texts.reasons(triples)]
    parts = [_legend(triples, level, n), *reasons, *([note] if note else [])]
    below = style.wrapped("\n".join(parts), width)
    height = rows * (0.17 * lines + 0.6) + 0.2
    longest = max(len(line) for name in names for line in name.splitlines())
    room = (width - longest / style.characters(1)) / columns
    labels = {metric: style.wrapped(metric, 0.95 * room) for metric in panels}
    height += 0.15 * rows * max(label.count("\n") for label in labels.values())
    figure = style.canvas(width, height + 0.15 * (below.count("\n") + 1))
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for spare in grid.flat[len(panels) :]:
        spare.remove()
    for axes, (metric, panel) in zip(grid.flat, panels.items(), strict=False):
        for row, method in enumerate(methods):
            if method not in panel:
                continue
            value, low, high = panel[method]
            is_outside = texts.is_outside(value, low, high)
            if low is not None and high is not None and not is_outside:
                axes.hlines(row, low, high, color=style.SKY, linewidth=6)
                caps = {"color": style.BLUE, "linewidth": 1}
                axes.vlines([low, high], row - 0.22, row + 0.22, **caps)
            (point,) = axes.plot(value, row, "o", color=style.BLACK, markersize=4)
            ends = "" if low is None or high is None else f" [{low:.4f}, {high:.4f}]"
            mark = texts.mark(value, low, high)
            text = f"{metric or 'value'} of {method}\n{value:.4f}{mark}{ends}"
            style.add_hover(axes, text, bottom=row - 0.5, top=row + 0.5)
            if is_outside:
                point.set_markerfacecolor("white")
                beside = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
                axes.annotate(texts.MARK, (value, row), **beside)
        axes.set(yticks=range(len(methods)), yticklabels=names)
        axes.set(ylim=(len(methods) - 0.4, -0.6), xlabel=labels[metric] or "value")
        axes.margins(x=0.08)
        axes.locator_params(axis="x", nbins=max(int(1.3 * width / columns), 3))
        axes.tick_params(axis="y", length=0)
    if title:
        figure.suptitle(style.wrapped(title, width), fontsize=9)
    figure.supxlabel(below, x=0.01, ha="left", fontsize=8)
    return figure


def _legend(triples: list[style.Triple], level: float | None, n: float | None) -> str:
    """Describe what points and bars show, with the level and the number of examples."""
    text = "Point: value"
    if any(low is not None for _, low, _ in triples):
        text += f"; bar: {style.interval_label(level)}"
    return text + ("" if n is None else f"; n = {style.count(n)}") + "."


def _by_metric(estimates: Mapping[str, Any]) -> dict[str, dict[str, style.Triple]]:
    """Regroup estimates by metric and then method, in order of first occurrence."""
    panels: dict[str, dict[str, style.Triple]] = {}
    for method, values in estimates.items() if isinstance(estimates, Mapping) else ():
        members = values if isinstance(values, Mapping) else {"": values}
        for metric, estimate in members.items():
            triple = style.triple(f"intervals: {metric} of {method!r}", estimate)
            panels.setdefault(str(metric), {})[str(method)] = triple
    if not panels:
        raise TypeError(f"intervals: estimates must map names to values, got {short(estimates)}.")
    return panels
