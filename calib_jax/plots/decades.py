"""Histograms of positive numbers that span decades, such as norms of gradients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calib_jax.plots import style

if TYPE_CHECKING:
    import matplotlib.figure


@style.drawn
def log_histograms(
    counts: Mapping[str, Any],
    edges: Any,
    *,
    quantity: str,
    title: str | None = None,
    width: float = 4.5,
) -> "matplotlib.figure.Figure":
    """Draw histogram outlines on one logarithmic axis, cropped to the non-empty bins.

    Args:
      counts: `[bins]` of each histogram, by name, such as one per epoch.
      edges: `[bins + 1]`, positive, ascending.
      quantity: name of the binned quantity; the label of the axis.
      title: title of the figure.
      width: width of the figure, in inches.

    References:
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020, figure 3:
      norms of last-layer gradients after three epochs.
    """
    if not counts:
        raise ValueError("log_histograms: there is nothing to draw.")
    edges = style.vector("edges", edges)
    if len(edges) < 2 or not np.isfinite(edges).all() or edges[0] <= 0 or np.diff(edges).min() <= 0:
        raise ValueError(
            "log_histograms: edges must be positive and ascend, and be two at least, got"
            f" {edges.tolist()}."
        )
    named = {name: style.vector(f"counts of {name!r}", values) for name, values in counts.items()}
    for name, values in named.items():
        counts_fit = len(values) == len(edges) - 1 and np.isfinite(values).all()
        if not counts_fit or values.min() < 0 or not values.sum() > 0:
            raise ValueError(
                f"log_histograms: {name!r} must have {len(edges) - 1} counts, none of them negative"
                " and one of them positive."
            )
    filled = np.flatnonzero(sum(named.values()))
    low, high = max(filled[0] - 1, 0), min(filled[-1] + 2, len(edges) - 1)
    figure = style.canvas(width, 0.6 * width + 0.6)
    axes = figure.subplots()
    handles = [
        axes.stairs(
            100 * values[low:high] / values.sum(),
            edges[low : high + 1],
            label=f"{name}: n = {style.count(values.sum())}",
            linewidth=1.4,
            **style.curve_look(place),
        )
        for place, (name, values) in enumerate(named.items())
    ]
    axes.set(xscale="log", ylim=(0, None), xlabel=quantity, ylabel="examples, %")
    if title:
        axes.set_title(style.wrapped(title, width - 0.6))
    style.legend_below(figure, handles, width)
    return figure
