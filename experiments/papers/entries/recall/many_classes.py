"""Estimates of recall from batches of 128, for ten to thousands of classes (Tian et al. 2021)."""

import itertools
from typing import TYPE_CHECKING

import jax
import numpy as np

from calib_jax import losses
from calib_jax.plots import style
from experiments.papers.entry import computed
from experiments.papers.judge.paired import over_seeds
from experiments.papers.judge.rules import above
from experiments.papers.judge.values import Value

if TYPE_CHECKING:
    import matplotlib.figure

CLASSES = (10, 100, 1_000, 8_142)  # the last is iNaturalist's number
BATCH, STEPS, DRAWS, ALPHA = 128, 2_000, 10, 0.1


def _counts(
    generator: np.random.Generator, share: np.ndarray, miss: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a batch: the classes in it, and their numbers of examples and of errors."""
    labels = generator.choice(len(share), BATCH, p=share)
    present, places, number = np.unique(labels, return_inverse=True, return_counts=True)
    wrong = generator.random(BATCH) < miss[labels]
    return present, number, np.bincount(places, wrong, len(present))


def squared_errors(classes: int, draw: int) -> tuple[float, float, float]:
    """Estimate known miss rates, and return the mean squared errors over classes and batches.

    Three estimates: a batch alone, as released (an absent class has rate 1); a batch alone, over
    the classes in it; and the moving average, in which an absent class keeps its rate.
    """
    generator = np.random.default_rng([classes, draw])
    share = 1 / np.arange(1, classes + 1) ** 0.5  # a mild tail
    share /= share.sum()
    miss = generator.permutation(np.linspace(0.1, 0.9, classes))
    average = np.ones(classes)
    released, alone, moving = [], [], []
    for step in range(STEPS):
        present, number, errors = _counts(generator, share, miss)
        rate = errors / number
        # Absent classes are off by 1 - miss each.
        absent = np.square(1 - miss).sum() - np.square(1 - miss[present]).sum()
        counted = np.square(np.maximum(errors, 1) / number - miss[present]).sum()
        released.append((absent + counted) / classes)
        alone.append(np.mean(np.square(rate - miss[present])))
        average[present] += ALPHA * (rate - average[present])
        if step >= STEPS // 2:
            moving.append(np.mean(np.square(average - miss)))
    return float(np.mean(released)), float(np.mean(alone)), float(np.mean(moving))


def estimates() -> dict[str, Value]:
    """Compare the estimates over the number of classes."""
    errors = {
        classes: np.array([squared_errors(classes, draw) for draw in range(DRAWS)])
        for classes in CLASSES
    }
    values = {
        f"rise from {few} to {many} classes": over_seeds(errors[many][:, 0] - errors[few][:, 0])
        for few, many in itertools.pairwise(CLASSES)
    }
    most = errors[CLASSES[-1]]
    values["batch minus moving average at 8142"] = over_seeds(most[:, 0] - most[:, 2])
    for place, name in enumerate(("batch", "batch, classes present", "moving average")):
        for classes in CLASSES:
            values[f"error of the {name}, {classes} classes"] = over_seeds(
                errors[classes][:, place]
            )
    return values | {"distance from the library's update": Value(_distance_from_library())}


def _distance_from_library() -> float:
    """Run the library's moving average on logits, and compare it with the formula."""
    generator = np.random.default_rng(0)
    objective = losses.objective("recall", alpha=ALPHA)
    state, average, worst = objective.init(50), np.ones(50), 0.0
    for step in range(5):
        labels = generator.integers(50, size=BATCH)
        logits = generator.standard_normal((BATCH, 50)).astype(np.float32)
        evidence = objective.evidence(state, logits, labels)
        state = objective.update(state, evidence, losses.Progress(step, 0, 1))
        wrong = logits.argmax(axis=-1) != labels
        for k in np.unique(labels):
            average[k] += ALPHA * (wrong[labels == k].mean() - average[k])
        worst = max(worst, float(np.abs(jax.device_get(state.miss_rate) - average).max()))
    return worst


@style.drawn
def draw() -> "matplotlib.figure.Figure":
    """Draw the errors of the estimates over the number of classes."""
    figure = style.canvas(4.2, 3.0)
    axes = figure.subplots()
    errors = [np.mean([squared_errors(k, draw) for draw in range(3)], axis=0) for k in CLASSES]
    names = ("batch, absent classes count 1", "batch, classes present", "moving average")
    for place, name in enumerate(names):
        axes.plot(
            CLASSES,
            [row[place] for row in errors],
            marker="o",
            label=name,
            **style.curve_look(place),
        )
    axes.set(xscale="log", xlabel="classes", ylabel="mean squared error of 1 - R", ylim=(0, None))
    axes.legend()
    return figure


ENTRY = computed(
    {
        "recall-many-classes-hard-to-estimate": (
            estimates,
            above(
                *(f"rise from {a} to {b} classes" for a, b in itertools.pairwise(CLASSES)),
                "batch minus moving average at 8142",
            ),
        )
    },
    figures=lambda: {"errors": draw()},
)
