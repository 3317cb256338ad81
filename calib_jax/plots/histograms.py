"""Histograms: of right and wrong predictions in each bin, and of numbers that span decades."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.binning import bin_index, uniform_edges
from calib_jax.plots import style
from calib_jax.plots.bins import checked, note_on_narrow

_UNITS = {"percent": "examples, %", "count": "examples"}


@style.drawn
def bin_strength(
    tables: Any, *, unit: str = "percent", columns: int = 3, width: float | None = None
) -> style.Figure:
    """Draw the number of examples in each bin: right predictions below, wrong predictions on top.

    Args:
      tables: an object with the fields of `BinTable`; or several by name, such as one per epoch,
        drawn side by side on the same axes.
      unit: "percent" of all examples, or "count".
      columns: tables per row.
      width: width of the figure, in inches; if None, 4.5 for one table and 7.5 for more.

    References:
      Mukhoti et al., Calibrating deep neural networks using focal loss, NeurIPS 2020.
    """
    checks.one_of("unit", unit, _UNITS)
    named = tables if isinstance(tables, Mapping) else {"": tables}
    if not named:
        raise ValueError("bin_strength: there is no table to draw.")
    panels = {str(name): checked("bin_strength", table) for name, table in named.items()}
    rows, columns = style.grid_of(len(panels), columns)
    if width is None:
        width = 4.5 if columns == 1 else 7.5
    room = (width - 0.6) / columns
    figure = style.canvas(width, rows * (0.62 * room + 0.75) + 0.8)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    handles: list[Any] = []
    for axes, (name, bins) in zip(grid.flat, panels.items(), strict=False):
        filled = bins.filled
        left, wide = bins.lower[filled], (bins.upper - bins.lower)[filled]
        total = (bins.weight if unit == "count" else bins.share)[filled]
        right = total * bins.accuracy[filled]
        wrong = total - right
        handles += [
            axes.bar(left, right, wide, align="edge", label="right", **style.PLAIN),
            axes.bar(left, wrong, wide, right, align="edge", label="wrong", **style.HATCHED),
        ]
        caption = f"accuracy {bins.mean(bins.accuracy):.3f}, {bins.n}\n{bins.cut}"
        axes.set_title(style.wrapped(f"{name}\n{caption}" if name else caption, room))
        axes.set(xlim=(0, 1), xticks=np.linspace(0, 1, 6 if room > 2.5 else 3))
        bins.add_hover(axes)
    style.label_grid(grid, len(panels), x="confidence", y=_UNITS[unit])
    style.legend_below(figure, handles, width, note_on_narrow(panels))
    return figure


@style.drawn
def confidence_histogram(
    confidence: Any,
    hit: Any,
    weights: Any = None,
    *,
    num_bins: int = 20,
    unit: str = "group",
    title: str | None = None,
    width: float = 4.5,
) -> style.Figure:
    """Draw histograms of the confidences of right and of wrong predictions.

    Bins are (lo, hi], the first closed on the left, as for every metric.

    Args:
      confidence: `[examples]`, the probability of the predicted class.
      hit: `[examples]`, 1 where the prediction is right, else 0.
      weights: `[examples]`.
      num_bins: number of bins of equal width.
      unit: "group" for percentages of the right and of the wrong predictions, to compare their
        shapes; "percent" of all examples; "count".
      title: title of the figure.
      width: width of the figure, in inches.
    """
    checks.num_bins(num_bins)
    labels = {"group": "of right, of wrong, %", **_UNITS}
    checks.one_of("unit", unit, labels)
    confidence = style.vector("confidence", confidence)
    hit = style.vector("hit", hit)
    weight = np.ones_like(confidence) if weights is None else style.vector("weights", weights)
    style.of_same_length(confidence=confidence, hit=hit, weights=weight)
    counts = weight != 0
    confidence, hit, weight = confidence[counts], hit[counts], weight[counts]
    if not np.all((weight > 0) & np.isfinite(weight)) or not weight.size:
        raise ValueError("weights must be finite, not negative, and not all 0.")
    if not np.all((confidence >= 0) & (confidence <= 1 + 1e-6)):
        raise ValueError("confidence must lie in [0, 1]: give probabilities, not logits.")
    if not np.all((hit == 0) | (hit == 1)):
        raise ValueError("hit must be 0 or 1.")

    edges = uniform_edges(num_bins).astype(np.float64)
    cell = np.asarray(bin_index(jnp.asarray(confidence, jnp.float32), uniform_edges(num_bins)))
    figure = style.canvas(width, 0.6 * width + 0.6)
    axes = figure.subplots()
    for value, name, look in ((1, "right", style.PLAIN), (0, "wrong", style.HATCHED)):
        chosen = hit == value
        n = weight[chosen].sum()
        total = {"group": n, "percent": weight.sum(), "count": 100}[unit]
        sums = np.bincount(cell[chosen], weight[chosen], num_bins)
        mean = f", mean {np.average(confidence[chosen], weights=weight[chosen]):.3f}" if n else ""
        label = f"{name}: n = {style.count(n)}{mean}"
        # The histograms overlap, so the front histogram has hatching and no fill.
        clear = look if value else {**look, "facecolor": "none", "linewidth": 1.2}
        axes.stairs(100 * sums / (total or 1), edges, fill=True, label=label, **clear)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="confidence", ylabel=labels[unit])
    if title:
        axes.set_title(style.wrapped(title, width - 0.6))
    style.legend_below(figure, axes.patches, width)
    return figure


@style.drawn
def log_histograms(
    counts: Mapping[str, Any],
    edges: Any,
    *,
    quantity: str,
    title: str | None = None,
    width: float = 4.5,
) -> style.Figure:
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
    if len(edges) < 2 or edges[0] <= 0 or np.diff(edges).min() <= 0:
        raise ValueError("log_histograms: edges must be positive and ascend.")
    named = {name: style.vector(f"counts of {name!r}", values) for name, values in counts.items()}
    for name, values in named.items():
        if len(values) != len(edges) - 1 or values.min() < 0 or not 0 < values.sum() < np.inf:
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
