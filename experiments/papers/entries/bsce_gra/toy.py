"""Which weight follows the true error on Gaussians with a known posterior (Lin et al. 2025)."""

import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy.special

from calib_jax.plots import style
from experiments.papers import published
from experiments.papers.entry import computed
from experiments.papers.judge.paired import over_seeds
from experiments.papers.judge.rules import Judgement, Rule, Values, above
from experiments.papers.judge.values import Value

if TYPE_CHECKING:
    import matplotlib.figure

DRAWS = 20
PER_CLASS, TEST_PER_CLASS, BATCH = 10_000, 2_000, 1_000


class Setting(NamedTuple):
    """A toy: number of classes, range of the means, width of the network."""

    classes: int
    magnitude: float
    hidden: int
    rate: float = 1.0

    @property
    def label(self) -> str:
        """The setting in words."""
        return (
            f"K = {self.classes}, means within {self.magnitude:g}, hidden {self.hidden}, rate"
            f" {self.rate:g}"
        )


NOTEBOOK = Setting(5, 10, 10)
SETTINGS = (
    NOTEBOOK,
    Setting(5, 10, 10, rate=0.1),
    Setting(10, 10, 10, rate=0.1),
    Setting(5, 3, 10),
    Setting(5, 3, 100),
    Setting(10, 3, 10),
)
PAIRS = (("gBS", "DFL"), ("DFL", "FL"))
READINGS = ("signed", "absolute")


class Scored(NamedTuple):
    """Test examples: the true posterior, the prediction and the label."""

    truth: np.ndarray
    model: np.ndarray
    labels: np.ndarray


def _drawn(
    generator: np.random.Generator, centers: np.ndarray, per_class: int
) -> tuple[np.ndarray, np.ndarray]:
    labels = generator.permutation(np.repeat(np.arange(len(centers)), per_class))
    return centers[labels] + generator.standard_normal((len(labels), 2)), labels


@functools.cache
def trained(setting: Setting, draw: int) -> Scored:
    """Train one pass of cross-entropy by SGD, and score test examples."""
    generator = np.random.default_rng([draw, setting.classes, setting.hidden])
    size = (setting.classes, 2)
    centers = generator.uniform(-setting.magnitude, setting.magnitude, size)
    inputs, labels = _drawn(generator, centers, PER_CLASS)
    widths = (2, setting.hidden, setting.classes)
    layers = []
    for fan_in, fan_out in itertools.pairwise(widths):
        bound = 1 / np.sqrt(fan_in)
        shape = (fan_in + 1, fan_out)  # the last row is the bias
        layers.append(generator.uniform(-bound, bound, shape))
    first, second = layers

    def hidden(x: np.ndarray) -> np.ndarray:
        return np.maximum(x @ first[:-1] + first[-1], 0)

    def predict(h: np.ndarray) -> np.ndarray:
        return scipy.special.softmax(h @ second[:-1] + second[-1], axis=-1)

    for start in range(0, len(labels), BATCH):
        x, y = inputs[start : start + BATCH], labels[start : start + BATCH]
        h = hidden(x)
        gap = predict(h)
        gap[np.arange(len(y)), y] -= 1
        gap /= len(y)
        back = (gap @ second[:-1].T) * (h > 0)
        second -= setting.rate * np.vstack([h.T @ gap, gap.sum(axis=0)])
        first -= setting.rate * np.vstack([x.T @ back, back.sum(axis=0)])
    x, y = _drawn(generator, centers, TEST_PER_CLASS)
    squares = np.square(x[:, None] - centers).sum(axis=-1)
    return Scored(scipy.special.softmax(-squares / 2, axis=-1), predict(hidden(x)), y)


def of_label(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Gather the entry of each row at its label."""
    return rows[np.arange(len(rows)), labels]


def weights(scored: Scored) -> dict[str, np.ndarray]:
    """Compute the uncertainties as the notebook does, and the Brier score of the paper."""
    p = scored.model
    true = of_label(p, scored.labels)
    distance = p - np.eye(p.shape[-1])[scored.labels]
    return {
        "FL": 1 - true,
        "DFL": 1 - true + np.sort(p, axis=-1)[:, -2],
        "gBS": np.square(distance).sum(axis=-1),
        "L1": np.abs(distance).sum(axis=-1),
    }


def errors(scored: Scored) -> dict[str, np.ndarray]:
    """Compute the true error of every prediction, in three readings."""
    gap = scored.truth - scored.model
    signed = of_label(gap, scored.labels)
    return {
        "signed": signed,
        "absolute": np.abs(signed),
        "all classes": np.square(gap).sum(axis=-1),
    }


def correlation(setting: Setting, draw: int) -> dict[tuple[str, str], float]:
    """Compute Pearson's correlation of every weight with every reading of the error."""
    scored = trained(setting, draw)
    of_error, of_weight = errors(scored), weights(scored)
    return {
        (reading, weight): float(np.corrcoef(of_error[reading], of_weight[weight])[0, 1])
        for reading in of_error
        for weight in of_weight
    }


def correlations() -> dict[str, Value]:
    """Compare the correlations of the weights in every setting, over draws of means and data."""
    values: dict[str, Value] = {}
    facts: dict[str, Value] = {}
    gap = 0.0
    for setting in SETTINGS:
        draws = [correlation(setting, draw) for draw in range(DRAWS)]
        gap = max(gap, *(abs(one["signed", "L1"] - one["signed", "FL"]) for one in draws))
        for reading in READINGS:
            for first, second in PAIRS:
                name = f"r({first}) - r({second}), {reading} error, {setting.label}"
                values[name] = over_seeds(
                    [one[reading, first] - one[reading, second] for one in draws]
                )
        for weight in ("FL", "DFL", "gBS"):
            facts[f"r({weight}), signed error, {setting.label}"] = over_seeds(
                [one["signed", weight] for one in draws]
            )
        scored = [trained(setting, draw) for draw in range(DRAWS)]
        facts[f"accuracy, {setting.label}"] = over_seeds(
            [float(np.mean(one.model.argmax(axis=-1) == one.labels)) for one in scored]
        )
        facts[f"mean of 1 - eta_y, {setting.label}"] = over_seeds(
            [1 - float(np.mean(of_label(one.truth, one.labels))) for one in scored]
        )
    metric = "pearson_corr_with_true_uncertainty"
    (of_paper,) = published.table("bsce-gra", "text", metric=metric).values()
    for weight in ("FL", "DFL", "gBS"):
        facts[f"published r({weight})"] = Value(of_paper[weight].value)
    facts["largest |r(L1 Brier) - r(FL)|"] = Value(gap, note="the L1 Brier score is 2 (1 - p_y)")
    return values | facts


def _ordered(values: Values) -> Judgement:
    differences = [name for name in values if " - r(" in name and name.startswith("r(")]
    return above(*differences).judge(values)


ORDERED = Rule(
    "holds if the 90 % intervals of r(gBS) - r(DFL) and r(DFL) - r(FL) over draws lie above 0 in"
    " every setting, for the signed and the absolute error; does not hold if one lies below"
    " (Bonferroni over all of them); undecided otherwise",
    _ordered,
)


@style.drawn
def draw_toy() -> "matplotlib.figure.Figure":
    """Draw the correlations over the range of the means, and the error of one draw."""
    figure = style.canvas(6.4, 3.2)
    left, right = figure.subplots(1, 2)
    magnitudes = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)
    for place, weight in enumerate(("FL", "DFL", "gBS")):
        curve = [
            np.mean(
                [
                    correlation(Setting(5, size, 10, 0.1), draw)["signed", weight]
                    for draw in range(5)
                ]
            )
            for size in magnitudes
        ]
        left.plot(magnitudes, curve, label=weight, **style.curve_look(place))
    left.legend()
    left.set(xlabel="range of the means", ylabel="r with the signed error", xscale="log")
    left.set_xticks(magnitudes, [f"{size:g}" for size in magnitudes])
    left.minorticks_off()
    left.set_title("5 classes, means over 5 draws")
    right.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.8)
    for place, setting in enumerate((Setting(5, 3, 10, 0.1), Setting(5, 20, 10, 0.1))):
        scored = trained(setting, 0)
        chosen = slice(0, 300)
        right.plot(
            weights(scored)["FL"][chosen],
            errors(scored)["signed"][chosen],
            "ox"[place],
            markersize=2,
            color=style.curve_look(place)["color"],
            label=f"means within {setting.magnitude:g}",
        )
    right.legend()
    right.set(xlabel="1 - p_y", ylabel="signed error, eta_y - p_y")
    right.set_title("on the diagonal, eta_y is 1")
    return figure


ENTRY = computed(
    {"bsce-gra-pearson-toy": (correlations, ORDERED)},
    figures=lambda: {"correlation": draw_toy()},
    minutes=2,
)
