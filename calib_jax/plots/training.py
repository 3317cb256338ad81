"""Training curves: metrics over epochs, for several methods and seeds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calib_jax.core import checks
from calib_jax.plots import style

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["training_curves"]


@style.drawn
def training_curves(
    curves: Mapping[str, Mapping[str, Any]],
    epochs: Any,
    *,
    columns: int = 3,
    axis: str = "epoch",
    title: str | None = None,
    width: float = 9.0,
) -> "matplotlib.figure.Figure":
    """Draw one panel per metric, with each method's mean over runs and its range.

    Args:
      curves: metrics by name, each with its methods by name, each `[runs, epochs]` or
        `[epochs]`.
      epochs: `[epochs]`, ascending; or the values of another axis.
      columns: panels per row.
      axis: the label of the horizontal axis, such as "temperature".
      title: title of the figure.
      width: width of the figure, in inches.
    """
    if not curves:
        raise ValueError("training_curves: there is nothing to draw.")
    checks.at_least("columns", columns, 1)
    epochs = style.vector("epochs", epochs, "one value an evaluation")
    columns = min(columns, len(curves))
    rows = -(-len(curves) // columns)
    figure = style.canvas(width, 2.4 * rows + 1.0)
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False)
    handles: list[Any] = []
    for place, (metric, methods) in zip(axes.flat, curves.items(), strict=False):
        for number, (name, values) in enumerate(methods.items()):
            values = np.atleast_2d(np.asarray(values, np.float64))
            if values.shape[1:] != epochs.shape:
                raise ValueError(
                    f"training_curves: {metric} of {name!r} must be [runs, {len(epochs)}], got"
                    f" {list(values.shape)}."
                )
            look = style.curve_look(number)
            lines = place.plot(epochs, values.mean(axis=0), label=name, linewidth=1.2, **look)
            if metric == next(iter(curves)):
                handles += lines
            if len(values) > 1:
                low, high = values.min(axis=0), values.max(axis=0)
                place.fill_between(epochs, low, high, color=look["color"], alpha=0.12, linewidth=0)
        place.set_title(metric)
    for place in list(axes.flat)[len(curves) :]:
        place.set_visible(False)
    for place in list(axes.flat)[: len(curves)][-columns:]:  # the last of each column
        place.set_xlabel(axis)
        place.tick_params(labelbottom=True)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    style.legend_below(figure, handles, width)
    return figure
