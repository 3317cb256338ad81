"""Tables of bins and what is drawn of them, read back from the figures."""

import numpy as np

from calib_jax import plots

EDGES = np.array([0.0, 0.2, 0.5, 0.6, 1.0])


def table(**changes):
    """Four bins of different widths, the second empty: its means are NaN."""
    nan = np.nan
    columns = {
        "lower": EDGES[:-1],
        "upper": EDGES[1:],
        "weight": [10.0, 0.0, 30.0, 60.0],
        "confidence": [0.1, nan, 0.55, 0.9],
        "accuracy": [0.3, nan, 0.5, 0.7],
        "low": [0.1, nan, 0.4, 0.65],
        "high": [0.6, nan, 0.65, 0.8],
    }
    return plots.Bins(**{**columns, **changes})


def boxes(axes, label=None):
    """List (left, right, bottom, top) of the bars with that label, or of all."""
    return [
        (box.get_x(), box.get_x() + box.get_width(), box.get_y(), box.get_y() + box.get_height())
        for bars in axes.containers
        if hasattr(bars, "patches") and label in (None, bars.get_label())
        for box in bars.patches
    ]


def words(figure):
    """Join the text of the figure's titles, labels and legend."""
    said = [text for a in figure.axes for text in (a.get_title(loc="left"), a.get_xlabel())]
    legends = [text for legend in figure.legends for text in legend.get_texts()]
    return "\n".join([*said, *(text.get_text() for text in legends)])
