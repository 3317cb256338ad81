"""Columns of logs over epochs, as figures of entries."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calib_jax.plots import style
from experiments.papers.judge.comparisons import Seeds
from experiments.papers.store.measures import drops

if TYPE_CHECKING:
    import matplotlib.figure

Lines = Mapping[str, tuple[Seeds, str]]  # by label: the runs, and a column of their logs


@style.drawn
def of_logs(panels: Mapping[str, Lines]) -> "matplotlib.figure.Figure":
    """Draw means over seeds, with the range of the seeds behind them.

    Dotted lines are the drops of the learning rate.

    Args:
      panels: the lines of each panel, by the label of its ordinate.
    """
    columns = 2
    rows = -(-len(panels) // columns)
    figure = style.canvas(6.8, 2.5 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
    for axes, (label, lines) in zip(grid.flat, panels.items(), strict=False):
        for place, (name, (seeds, column)) in enumerate(lines.items()):
            epochs = np.array([row["epoch"] for row in seeds[0].log])
            values = np.array([[row[column] for row in run.log] for run in seeds])
            look = style.curve_look(place)
            axes.plot(epochs, values.mean(axis=0), label=name, **look)
            ends = values.min(axis=0), values.max(axis=0)
            axes.fill_between(epochs, *ends, color=look["color"], alpha=0.2, linewidth=0)
        for place in drops(seeds[0].log):
            axes.axvline(epochs[place], color="0.5", linestyle=":", linewidth=0.8)
        axes.set(ylabel=label, ylim=(0, None))
        axes.legend()
    style.label_grid(grid, len(panels), x="epoch")
    return figure
