"""The figure of the law: T of each loss against T of cross-entropy."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.map.heads import NAMES
from experiments.map.points import Point

COLORS = {"focal_1": "#56B4E9", "focal_3": "#0072B2", "bsce_gra": "#D55E00", "adafocal": "#009E73"}
SIZES = {"map": 14, "new sets": 34, "networks": 60}
_ENDS = np.array([0.4, 40.0])
_TICKS = (0.5, 1, 2, 4, 8, 16)


def draw(heads: Sequence[Point], full: Sequence[Point], path: pathlib.Path) -> None:
    """Draw all places in which cross-entropy learned something, two classes apart.

    Args:
      heads: the points of the new sets and of the map.
      full: the points of full networks, drawn as diamonds.
      path: the file.
    """
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7.2, 4.4), layout="constrained")
    panels = drawing.subplots(1, 2, sharex=True, sharey=True)
    known = [p for p in (*heads, *full) if not p.dead and np.isfinite(p.measured)]
    for panel, two in zip(panels, (False, True), strict=True):
        _panel(panel, [p for p in known if (p.classes == 2) == two])
        panel.set_title("two classes" if two else "more classes", fontsize=13)
        panel.set_xlabel("T of cross-entropy", fontsize=13)
    panels[0].set_ylabel("T of the loss", fontsize=13)
    drawing.savefig(path, dpi=150)


def _panel(panel: Any, found: Sequence[Point]) -> None:
    panel.axhspan(np.exp(-0.1), np.exp(0.1), color="#dddddd")
    panel.text(38, 1, "calibrated", fontsize=11, ha="right", va="center")
    panel.plot(_ENDS, _ENDS, color="black", linewidth=0.7, linestyle=":")
    for loss, color in COLORS.items():
        of = [p for p in found if p.loss == loss]
        for source, size in SIZES.items():
            chosen = [p for p in of if p.source == source]
            panel.scatter(
                np.exp([p.base for p in chosen]),
                np.exp([p.measured for p in chosen]),
                s=size,
                color=color,
                marker="D" if source == "networks" else "o",
                edgecolors="none" if source == "map" else "black",
                linewidths=0.6,
                alpha=0.5 if source == "map" else 1,
            )
        label = NAMES[loss]
        if loss != "adafocal" and of:
            factor = np.exp(np.median([p.measured - p.base for p in of]))
            panel.plot(_ENDS, factor * _ENDS, color=color, linewidth=1.2)
            label += f": {factor:.2f} T".replace(" 0.", " .")
        panel.scatter([], [], color=color, label=label)
    panel.set(xscale="log", yscale="log", xlim=_ENDS, ylim=(0.25, 40))
    ticks = list(_TICKS), [f"{tick:g}".lstrip("0") for tick in _TICKS]
    panel.set_xticks(*ticks, fontsize=12)
    panel.set_yticks(*ticks, fontsize=12)
    panel.minorticks_off()
    panel.legend(fontsize=11, loc="upper left", handletextpad=0.2, borderpad=0.3)
