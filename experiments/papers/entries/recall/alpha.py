"""The moving average of recall: its weight and the training loss (Tian et al. 2021)."""

import itertools
from typing import TYPE_CHECKING

import numpy as np

from calib_jax.plots import style
from experiments.papers.entries.recall.trained import TAIL
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import rules
from experiments.papers.judge.comparisons import Runs, logged
from experiments.papers.judge.paired import over_seeds
from experiments.papers.judge.values import Value

if TYPE_CHECKING:
    import matplotlib.figure

ALPHAS = (0.1, 0.5, 0.9)


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare the training loss of the last epoch over the weight of the new estimate."""
    values = {}
    for low, high in itertools.pairwise(ALPHAS):
        pairs = zip(runs[f"alpha{high}"], runs[f"alpha{low}"], strict=True)
        values[f"training loss: alpha {high} - {low}"] = over_seeds(
            [a.log[-1]["train_loss"] - b.log[-1]["train_loss"] for a, b in pairs],
            note="alpha weighs the new estimate; if it weighs the old one, the order is reversed",
        )
    for alpha in ALPHAS:
        values[f"training loss, alpha {alpha}"] = logged(
            runs[f"alpha{alpha}"], lambda log: float(log[-1]["train_loss"])
        )
        values[f"validation error, alpha {alpha}"] = logged(
            runs[f"alpha{alpha}"], lambda log: float(log[-1]["validation_error"])
        )
    return values


@style.drawn
def draw(runs: Runs) -> "matplotlib.figure.Figure":
    """Draw the training loss and the validation accuracy over the epochs, by alpha."""
    figure = style.canvas(6.4, 2.8)
    panels = figure.subplots(1, 2)
    for place, alpha in enumerate(ALPHAS):
        logs = [run.log for run in runs[f"alpha{alpha}"]]
        epochs = [row["epoch"] for row in logs[0]]
        loss, error = (
            np.mean([[row[key] for row in log] for log in logs], axis=0)
            for key in ("train_loss", "validation_error")
        )
        panels[0].plot(epochs, loss, label=f"alpha {alpha}", **style.curve_look(place))
        panels[1].plot(epochs, 1 - error, **style.curve_look(place))
    panels[0].set(xlabel="epoch", ylabel="training loss")
    panels[1].set(xlabel="epoch", ylabel="validation accuracy")
    panels[0].legend()
    return figure


ENTRY = Entry(
    claims={
        "recall-smaller-alpha-lower-train-loss": rules.above(
            "training loss: alpha 0.5 - 0.1", "training loss: alpha 0.9 - 0.5"
        )
    },
    runs={f"alpha{a}": Training("recall", {"alpha": a}, TAIL, keep="none") for a in ALPHAS},
    statistic=statistic,
    figures=lambda runs: {"loss": draw(runs)},
)
