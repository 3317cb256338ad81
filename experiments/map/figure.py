"""The figure of the map: the gain of each loss against the temperature of cross-entropy."""

from typing import Any

import numpy as np

from experiments.map import statistics

_MARKERS = {
    "banking77": ("o", "#0072B2"),
    "clinc150": ("s", "#D55E00"),
    "newsgroups": ("^", "#009E73"),
}
_ACROSS = 4
_TICKS = (-200, -100, -50, -20, -5, 0, 5, 20, 50)


def _root(value: np.ndarray) -> np.ndarray:
    """Return the root with the sign: the scale of an ECE instead of a squared error."""
    return np.sign(value) * np.sqrt(np.abs(value))


def figure(found: statistics.Cells) -> Any:
    """Draw one panel for each loss that has a record beside cross-entropy.

    The vertical axis has a root scale, because the losses of a squared error where cross-entropy is
    underconfident are many times the gains where it is overconfident.
    """
    from matplotlib.figure import Figure

    gains = statistics.gains(found)
    numbers = np.flatnonzero(np.isfinite(gains.value).any(axis=0))
    across = min(max(len(numbers), 2), _ACROSS)
    down = max(-(-len(numbers) // across), 1)
    drawing = Figure(figsize=(2.5 * across, 2.3 * down + 1.2), layout="constrained")
    panels = drawing.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    panels[0].set_yscale("function", functions=(_root, lambda value: value * np.abs(value)))
    handles = {}
    for panel, number in zip(panels, numbers, strict=False):
        panel.axhline(0, color="black", linewidth=0.6)
        panel.axvline(1, color="black", linewidth=0.6, linestyle=":")
        for texts, (marker, color) in _MARKERS.items():
            rows = [row for row, place in enumerate(found.places) if place.texts == texts]
            rows = [row for row in rows if np.isfinite(gains.value[row, number])]
            rows.sort(key=lambda row: found.temperature[row])
            if not rows:
                continue
            value, low, high = (
                1000 * array[rows, number] for array in (gains.value, gains.low, gains.high)
            )
            handles[texts] = panel.errorbar(
                found.temperature[rows],
                value,
                yerr=(value - low, high - value),
                marker=marker,
                color=color,
                markersize=4,
                linewidth=1,
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
        panel.set_title(found.losses[number + 1], fontsize=10)
    for position in range(len(numbers), len(panels)):
        panels[position].set_axis_off()
        panels[position - across].tick_params(labelbottom=True)
    panels[0].set_xlim(
        min(0.45, 0.9 * found.temperature.min()), max(2.5, 1.1 * found.temperature.max())
    )
    ends = panels[0].get_ylim()
    panels[0].set_yticks([tick for tick in _TICKS if ends[0] <= tick <= ends[1]])
    drawing.legend(
        handles.values(), handles, loc="outside upper center", ncols=3, fontsize=9, frameon=False
    )
    drawing.supxlabel("temperature that cross-entropy needs", fontsize=10)
    label = "CE2 of cross-entropy\nminus CE2 of the loss,\nin thousandths, root scale"
    drawing.supylabel(label, fontsize=10)
    return drawing
