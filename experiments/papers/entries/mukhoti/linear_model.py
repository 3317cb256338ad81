"""Logistic regression with two weights on clusters with flipped labels: cross-entropy and focal."""

import functools
from typing import TYPE_CHECKING

import numpy as np
import scipy.special

from calib_jax.plots import style
from experiments.papers.entry import computed
from experiments.papers.judge import rules
from experiments.papers.judge.paired import over_seeds
from experiments.papers.judge.rules import FAILS, HOLDS, UNDECIDED, Judgement, Rule, Values, above
from experiments.papers.judge.values import Value

if TYPE_CHECKING:
    import matplotlib.figure

GAMMAS = (0.0, 1.0, 2.0, 3.0, 5.0)  # 0 is cross-entropy
DRAWS, SIZE, TEST, STEPS, RATE = 20, 400, 4_000, 300, 0.5
DEVIATION, FLIPPED = 0.5, 0.1


def _examples(generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw examples: each class has two clusters, the vertices of one side of a square."""
    sign = generator.choice([-1.0, 1.0], size)  # the class
    other = generator.choice([-2.0, 2.0], size)
    inputs = np.column_stack([2 * sign, other]) + DEVIATION * generator.standard_normal((size, 2))
    flips = np.where(generator.random(size) < FLIPPED, -1.0, 1.0)
    return inputs, sign * flips


@functools.cache
def trained() -> dict[str, np.ndarray]:
    """Train by full-batch gradient descent; arrays of [draws, gammas, ...]."""
    parts = []
    for draw in range(DRAWS):
        generator = np.random.default_rng([draw, 1])
        parts.append((*_examples(generator, SIZE), *_examples(generator, TEST)))
    inputs, labels, test_inputs, test_labels = (np.stack(part) for part in zip(*parts, strict=True))
    gamma = np.array(GAMMAS)[:, None]
    weights = np.zeros((DRAWS, len(GAMMAS), 2))
    norms, sizes = [], []
    for _ in range(STEPS):
        logit = weights @ inputs.transpose(0, 2, 1)
        norms.append(np.linalg.norm(weights, axis=-1))
        sizes.append(np.abs(logit).mean(axis=-1))
        margin = labels[:, None] * logit
        p, rest = scipy.special.expit(margin), scipy.special.expit(-margin)
        # The derivative of the loss by the margin: cross-entropy's, -(1 - p), times g(p, gamma).
        log_p = -np.logaddexp(0, -margin)
        slope = -rest * (rest**gamma - gamma * p * rest ** (gamma - 1) * log_p)
        weights = weights - RATE * (slope * labels[:, None]) @ inputs / SIZE
    logit = weights @ test_inputs.transpose(0, 2, 1)
    return {
        "weights": weights,
        "norms": np.stack(norms, axis=-1),
        "logits": np.stack(sizes, axis=-1),
        "confidence": scipy.special.expit(np.abs(logit)),
        "class": np.sign(logit),
        "right": np.sign(logit) == test_labels[:, None],
    }


def magnification() -> dict[str, Value]:
    """Compare norms of weights and logits at the end of training."""
    run = trained()
    values = {}
    for what in ("norms", "logits"):
        final = run[what][:, :, -1]
        name = {"norms": "weight norm", "logits": "mean logit"}[what]
        higher = np.all(final[:, :1] > final[:, 1:], axis=-1)
        values[f"draws with the largest {name} for CE"] = Value(int(higher.sum()), rows=DRAWS)
        for place, gamma in enumerate(GAMMAS):
            values[f"{name}, gamma {gamma:g}"] = over_seeds(final[:, place])
    late = run["norms"][:, :, -1] / run["norms"][:, :, STEPS // 2] - 1
    values["largest change of a norm in the second half"] = Value(float(np.abs(late).max()))
    return values


def _in_every_draw(values: Values) -> Judgement:
    counts = [value for name, value in values.items() if name.startswith("draws")]
    least = min(counts, key=lambda count: count.value / count.rows)
    share = least.value / least.rows
    p = rules.p_of_count(least)
    return Judgement(
        *((HOLDS, p) if share == 1 else (FAILS, 1 - p) if share < 0.5 else (UNDECIDED, p))
    )


MAGNIFIED = Rule(
    "holds if weights and logits of CE are larger than those of every gamma in every draw; does not"
    " hold if in fewer than half; undecided in between",
    _in_every_draw,
)


def directions() -> dict[str, Value]:
    """Compute the angles to the weights of cross-entropy, and the shares of other predictions."""
    run = trained()
    unit = run["weights"] / np.linalg.norm(run["weights"], axis=-1, keepdims=True)
    cosine = np.clip(np.sum(unit * unit[:, :1], axis=-1), -1, 1)
    angles = np.degrees(np.arccos(cosine))[:, 1:].max(axis=-1)
    shares = np.mean(run["class"] != run["class"][:, :1], axis=-1)[:, 1:].max(axis=-1)
    same = (angles < 5) & (shares < 0.01)
    note = "the largest over gamma 1, 2, 3, 5"
    return {
        "share of draws with the same regions": Value(
            float(same.mean()), rows=DRAWS, note="angle below 5 degrees, below 1 % of predictions"
        ),
        "share of draws with an angle above 10 degrees": Value(float(np.mean(angles > 10))),
        "largest angle in degrees": over_seeds(angles, note),
        "largest share of other predictions": over_seeds(shares, note),
    }


def _same_regions(values: Values) -> Judgement:
    same = values["share of draws with the same regions"]
    if same.value >= 0.9:
        return Judgement(HOLDS, rules.p_of_count(same._replace(value=same.value * same.rows)))
    apart = values["share of draws with an angle above 10 degrees"].value > 0.5
    return Judgement(FAILS if apart else UNDECIDED)


SAME_REGIONS = Rule(
    "holds if, for every gamma, the angle is below 5 degrees and predictions differ on less than"
    " 1 % in at least 90 % of the draws; does not hold if the angle is above 10 degrees in most;"
    " undecided otherwise",
    _same_regions,
)


def confident_mistakes() -> dict[str, Value]:
    """Compare the mean confidence on wrong test points."""
    run = trained()
    wrong = ~run["right"]
    mean = np.sum(run["confidence"] * wrong, axis=-1) / wrong.sum(axis=-1)
    sure = np.sum((run["confidence"] > 0.9) & wrong, axis=-1) / wrong.sum(axis=-1)
    values = {
        f"confidence(CE) - confidence(gamma {gamma:g}) on mistakes": over_seeds(
            mean[:, 0] - mean[:, place]
        )
        for place, gamma in enumerate(GAMMAS)
        if gamma
    }
    for place, gamma in enumerate(GAMMAS):
        values[f"share of mistakes above 0.9, gamma {gamma:g}"] = over_seeds(sure[:, place])
    return values


@style.drawn
def draw() -> "matplotlib.figure.Figure":
    """Draw the norms of weights and logits over the steps, means over the draws."""
    run = trained()
    figure = style.canvas(6.0, 3.2)
    steps = np.unique(np.geomspace(1, STEPS, 80).astype(int)) - 1
    for axes, what, label in zip(
        figure.subplots(1, 2),
        ("norms", "logits"),
        ("norm of the weights", "mean |logit|"),
        strict=True,
    ):
        for place, gamma in enumerate(GAMMAS):
            name = f"gamma {gamma:g}" if gamma else "cross-entropy"
            curve = run[what][:, place].mean(axis=0)[steps]
            axes.plot(steps + 1, curve, label=name, **style.curve_look(place))
        axes.set(xlabel="step", ylabel=label, xscale="log")
    style.legend_below(figure, axes.lines, 6.0)
    return figure


ENTRY = computed(
    {
        "mukhoti-linear-weights-blow-up": (magnification, MAGNIFIED),
        "mukhoti-linear-same-decision-region": (directions, SAME_REGIONS),
        "mukhoti-linear-confident-mistakes": (
            confident_mistakes,
            above(
                *(
                    f"confidence(CE) - confidence(gamma {gamma:g}) on mistakes"
                    for gamma in GAMMAS
                    if gamma
                )
            ),
        ),
    },
    figures=lambda: {"norms": draw()},
)
