"""Training curves: metrics over epochs, for several methods and seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core.arrays import as_array
from calib_jax.plots import style

# The first fifth of at least five epochs may leave the panel if it would fill two thirds of it.
_FIRST, _LEAST_EPOCHS, _SPIKE = 0.2, 5, 3.0
_MOST_HOVER_BOXES = 100  # per panel


@style.drawn
def training_curves(
    curves: Mapping[str, Mapping[str, Any]],
    epochs: Any,
    *,
    columns: int = 3,
    axis: str = "epoch",
    title: str | None = None,
    width: float = 9.0,
) -> style.Figure:
    """Draw one panel per metric, with each method's mean over runs and its range.

    Large values of the first fifth of the epochs do not stretch a panel; a note is added if a curve
    leaves its panel.

    Args:
      curves: metrics by name, each with its methods by name, each `[runs, epochs]` or
        `[epochs]`. A method looks the same in all panels, and may be missing in some.
      epochs: `[epochs]`, ascending; or the values of another axis.
      columns: panels per row.
      axis: the label of the horizontal axis, such as "temperature".
      title: title of the figure.
      width: width of the figure, in inches.
    """
    if not curves:
        raise ValueError("training_curves: there is nothing to draw.")
    epochs = style.vector("epochs", epochs, "one value an evaluation")
    if not epochs.size or not np.all(np.diff(epochs) >= 0):
        raise ValueError(f"training_curves: epochs must ascend, got {epochs.tolist()}.")
    panels = {metric: _runs(metric, methods, epochs) for metric, methods in curves.items()}
    rows, columns = style.grid_of(len(panels), columns)
    figure = style.canvas(width, 2.4 * rows + 1.0)
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False)
    names = list(dict.fromkeys(name for methods in panels.values() for name in methods))
    lines: dict[str, Any] = {}
    leaves_panel = False
    for place, (metric, methods) in zip(axes.flat, panels.items(), strict=False):
        lines = _panel(place, methods, epochs, names) | lines
        height = 0.8 * 2.4
        place.set_ylabel(style.wrapped(metric, height))
        limits = _without_spike(list(methods.values()))
        if limits:
            place.set_ylim(*limits)
            leaves_panel = True
        if len(epochs) == 1:
            place.set_xticks(epochs)
        _add_hover(place, metric, methods, epochs, axis)
    style.label_grid(axes, len(panels), x=axis)
    if title:
        figure.suptitle(style.wrapped(title, width), x=0.01, ha="left", fontsize=10)
    handles = [lines[name] for name in names]
    style.legend_below(figure, handles, width, _note(panels, leaves_panel))
    return figure


def _runs(metric: str, methods: Mapping[str, Any], epochs: np.ndarray) -> dict[str, np.ndarray]:
    """Convert the values of every method to `[runs, epochs]`."""
    runs = {}
    for name, given in methods.items():
        runs[name] = np.atleast_2d(np.asarray(as_array(given), np.float64))
        if runs[name].shape[1:] != epochs.shape or not len(runs[name]):
            raise ValueError(
                f"training_curves: {metric} of {name!r} must be [runs, {len(epochs)}], got"
                f" {list(runs[name].shape)}."
            )
    if not runs:
        raise ValueError(f"training_curves: {metric} has no method to draw.")
    return runs


def _panel(
    axes: style.Axes, methods: Mapping[str, np.ndarray], epochs: np.ndarray, names: Sequence[str]
) -> dict[str, Any]:
    """Draw the curves of one metric; a method looks the same in all panels."""
    lines: dict[str, Any] = {}
    for name, values in methods.items():
        number = names.index(name)
        look = style.curve_look(number)
        marks = style.curve_marks(number, len(epochs))
        mean = values.mean(axis=0)
        (lines[name],) = axes.plot(epochs, mean, label=name, linewidth=1.2, **look, **marks)
        if len(values) > 1:
            low, high = values.min(axis=0), values.max(axis=0)
            axes.fill_between(epochs, low, high, color=look["color"], alpha=0.12, linewidth=0)
    return lines


def _without_spike(methods: list[np.ndarray]) -> tuple[float, float] | None:
    """Return limits of a panel that exclude a spike in the first epochs; None without a spike."""
    values = np.concatenate(methods)
    num_epochs = values.shape[1]
    late = values[:, math.ceil(_FIRST * num_epochs) :]
    if num_epochs < _LEAST_EPOCHS or not np.any(np.isfinite(late)):
        return None
    low, high = np.nanmin(late), np.nanmax(late)
    span = high - low
    if not span > 0 or np.nanmax(values) - np.nanmin(values) <= _SPIKE * span:
        return None
    return low - 0.1 * span, high + 0.3 * span


def _note(panels: Mapping[str, Mapping[str, np.ndarray]], leaves_panel: bool) -> str:
    """Describe the bands, and report curves that leave their panel."""
    counts = {len(values) for methods in panels.values() for values in methods.values()}
    notes = []
    if max(counts) > 1:
        runs = " or ".join(map(str, sorted(counts)))
        notes.append(f"Mean over n = {runs} runs; the band is their range.")
    if leaves_panel:
        notes.append("Some of the first epochs lie outside of their panel.")
    return " ".join(notes)


def _add_hover(
    axes: style.Axes, metric: str, methods: Mapping[str, np.ndarray], epochs: np.ndarray, axis: str
) -> None:
    """Attach the values of all methods to strips around the epochs, or around some of many."""
    step = -(-len(epochs) // _MOST_HOVER_BOXES)
    shown = np.arange((len(epochs) - 1) % step, len(epochs), step)  # includes the last epoch
    between = (epochs[shown][:-1] + epochs[shown][1:]) / 2
    edges = [None, *between, None]
    for left, right, place in zip(edges[:-1], edges[1:], shown, strict=True):
        means = {name: values[:, place].mean() for name, values in methods.items()}
        lines = [f"{name}: {mean:.4g}" for name, mean in means.items() if np.isfinite(mean)]
        text = "\n".join([f"{metric}, {axis} {epochs[place]:g}", *lines])
        if lines:
            style.add_hover(axes, text, left=left, right=right)
