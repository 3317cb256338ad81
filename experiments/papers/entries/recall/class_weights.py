"""Weights of classes during training, of the focal and of the recall loss (Tian et al. 2021)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calib_jax.plots import style
from calib_jax.plots.segmentation import colored
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.paired import over_seeds
from experiments.papers.judge.values import Value

if TYPE_CHECKING:
    import matplotlib.figure

MEASURE = "class_weights"
LARGE, SMALL = 0.05, 0.02  # shares of the training pixels
CONFIG = "camvid_deeplab_small"

Table = Mapping[str, np.ndarray]


def shares(table: np.ndarray) -> np.ndarray:
    """Divide the weights `[epochs, classes]` by their sum over the classes."""
    return table / np.sum(table, axis=1, keepdims=True)


def slope(epochs: np.ndarray, values: np.ndarray) -> float:
    """Fit a line over the epochs."""
    return float(np.polyfit(epochs, values, 1)[0])


def _tables(runs: Runs) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Return epochs, focal and recall shares, and class sizes, seed by seed."""
    tables = []
    for focal, recall in zip(runs["focal"], runs["recall"], strict=True):
        first, second = focal.measured[MEASURE], recall.measured[MEASURE]
        sizes = first["class_counts"] / np.sum(first["class_counts"])
        weights = shares(first["focal_weights"]), shares(second["recall_weights"])
        tables.append((first["epoch"], *weights, sizes))
    return tables


def statistic(runs: Runs) -> dict[str, Value]:
    """Follow the rarest class, and the ratio of both weights in large and in small classes."""
    values: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        values.setdefault(name, []).append(value)

    for epochs, focal, recall, sizes in _tables(runs):
        rarest = int(np.argmin(sizes))
        add("slope of the focal share of the rarest class", slope(epochs, focal[:, rarest]))
        add("slope of the recall share of the rarest class", slope(epochs, recall[:, rarest]))
        ratio = recall / focal
        small = sizes < max(SMALL, sizes.min() * (1 + 1e-9))
        for name, chosen in (("large", sizes > LARGE), ("small", small)):
            course = np.mean(ratio[:, chosen], axis=1)
            add(f"ratio of {name} classes", float(np.mean(course)))
            add(f"slope of the ratio of {name} classes", slope(epochs, course))
    return {name: over_seeds(column) for name, column in values.items()}


@style.drawn
def draw(runs: Runs) -> "matplotlib.figure.Figure":
    """Draw both shares and their ratio over training, by class, as means over seeds."""
    tables = _tables(runs)
    epochs, sizes = tables[0][0], tables[0][3]
    focal, recall = (np.mean([table[part] for table in tables], axis=0) for part in (1, 2))
    figure = style.canvas(9.0, 2.8)
    panels = figure.subplots(1, 3)
    titles = ("focal, gamma 1", "recall", "recall / focal")
    for axes, title, table in zip(panels, titles, (focal, recall, recall / focal), strict=True):
        for k in np.argsort(-sizes):
            color = colored(k) / 255  # a color of its own for each of the 11 classes
            axes.plot(epochs, table[:, k], color=color, label=f"{100 * sizes[k]:.1f} %")
        axes.set(title=title, xlabel="epoch")
    panels[0].set(ylabel="share of the weights")
    lines, names = panels[2].get_legend_handles_labels()
    figure.legend(lines, names, title="pixels", fontsize=7, loc="outside right center")
    return figure


ENTRY = Entry(
    claims={
        "recall-focal-share-of-rare-class-rises": rules.every(
            rules.above("slope of the focal share of the rarest class"),
            rules.below("slope of the recall share of the rarest class"),
        ),
        "recall-focal-ratio-large-classes": rules.every(
            rules.above("ratio of large classes", margin=1.0),
            rules.above("slope of the ratio of large classes"),
            rules.below("ratio of small classes", margin=1.0),
        ),
    },
    runs={
        "focal": Training("focal", {"gamma": 1.0}, config=CONFIG, keep="none"),
        "recall": Training("recall", config=CONFIG, keep="none"),
    },
    measures=(MEASURE,),
    statistic=statistic,
    figures=lambda runs: {"weights": draw(runs)},
)
