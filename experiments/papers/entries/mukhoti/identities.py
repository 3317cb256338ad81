"""Identities, bounds and minimisers of cross-entropy and focal loss, from Mukhoti et al. 2020."""

from typing import TYPE_CHECKING

import jax
import numpy as np
import scipy.special

from calib_jax import losses
from calib_jax.plots import style
from experiments.papers.entries.guo.formulas import scaled
from experiments.papers.entries.mukhoti.gradient_scale import scale
from experiments.papers.entry import computed
from experiments.papers.judge import limits
from experiments.papers.judge.rules import every
from experiments.papers.judge.values import Value

if TYPE_CHECKING:
    import matplotlib.figure

GAMMAS = (1.0, 2.0, 3.0, 5.0)
SMALL_GAMMAS = (0.1, 0.3, 0.5, 0.7, 0.9)
CLASSES = (2, 10, 100)

# Compiled once for each shape; gamma is an argument of the program.
cross_entropy = jax.jit(losses.cross_entropy)
brier = jax.jit(losses.brier)
focal = jax.jit(lambda logits, labels, gamma: losses.focal(logits, labels, gamma=gamma))
ratio_by_formula = jax.jit(losses.focal_gradient_ratio)


def brier_parts() -> dict[str, Value]:
    """Split the mean Brier score of grouped forecasts into calibration and refinement."""
    generator = np.random.default_rng(0)
    deviation, groups, size, classes = 0.0, 40, 25, 5
    for _ in range(20):
        forecast = generator.dirichlet(np.ones(classes), groups)
        labels = generator.integers(classes, size=(groups, size))
        with jax.enable_x64(True):
            logits = np.broadcast_to(np.log(forecast)[:, None], (groups, size, classes))
            score = float(np.mean(brier(logits, labels)))
        frequency = np.stack([np.bincount(row, minlength=classes) / size for row in labels])
        calibration = np.mean(np.sum(np.square(forecast - frequency), axis=-1))
        refinement = np.mean(np.sum(frequency * (1 - frequency), axis=-1))
        deviation = max(deviation, float(abs(score - calibration - refinement)))
    return {"Brier minus its two parts, largest": Value(deviation, rows=20 * groups * size)}


def never_minimal() -> dict[str, Value]:
    """Scale up separated logits, and the last layer of a classifier without training errors."""
    generator = np.random.default_rng(0)
    # A margin below 7 keeps the loss above the smallest float64 at the largest scale.
    random = generator.uniform(-3, 0, (500, 10))
    labels = generator.integers(10, size=500)
    random[np.arange(500), labels] = generator.uniform(0.01, 3, 500)
    # Multinomial logistic regression by gradient descent on separable clusters.
    kinds = generator.integers(3, size=300)
    centers = 4 * np.array([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]])
    inputs = centers[kinds] + generator.uniform(-1, 1, (300, 2))
    weights = np.zeros((2, 3))
    for _ in range(200):
        gap = scipy.special.softmax(inputs @ weights, axis=-1) - np.eye(3)[kinds]
        weights -= 0.1 * inputs.T @ gap / 300
    trained = inputs @ weights
    values = {
        "training errors of the classifier": Value(
            int(np.sum(np.argmax(trained, axis=-1) != kinds)), rows=300
        )
    }
    scales = np.geomspace(1, 100, 60)
    for name, logits, truth in (("random", random, labels), ("trained", trained, kinds)):
        with jax.enable_x64(True):
            batch = scales[:, None, None] * logits
            every_label = np.broadcast_to(truth, batch.shape[:-1])
            means = np.asarray(cross_entropy(batch, every_label)).mean(axis=-1)
        rise = float(np.max(np.diff(means) / means[:-1]))
        values[f"largest relative change by scaling up, {name} logits"] = Value(rise, rows=60)
        values[f"least loss, {name} logits"] = Value(float(means.min()), rows=60)
    return values


ONLY_AT_INFINITY = every(
    limits.at_most(0, "training errors of the classifier"),
    limits.at_most(
        -1e-9,
        "largest relative change by scaling up, random logits",
        "largest relative change by scaling up, trained logits",
    ),
    limits.above(0, "least loss, random logits", "least loss, trained logits"),
)


def _random_rows(classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw logits of all sharpnesses, labels, and soft labels."""
    generator = np.random.default_rng(classes)
    size = 10.0 ** generator.uniform(-2, 1.3, (2_000, 1))
    logits = size * generator.standard_normal((2_000, classes))
    soft = generator.dirichlet(np.full(classes, 0.5), 2_000)
    # Among them targets equal and close to the prediction, where the bound is tightest.
    soft[:500] = scipy.special.softmax(logits[:500], axis=-1)
    return logits, generator.integers(classes, size=2_000), soft


def slack_of_bound() -> dict[str, Value]:
    """Compute FL - (KL - gamma H(p)), with the entropy of soft targets as the constant."""
    least: dict[tuple[str, bool], float] = {}
    with jax.enable_x64(True):
        for kind, gammas in (("one-hot", (*GAMMAS, *SMALL_GAMMAS)), ("soft", GAMMAS)):
            slacks: dict[bool, float] = {}
            for classes in CLASSES:
                logits, labels, soft = _random_rows(classes)
                target = labels if kind == "one-hot" else soft
                entropy = scipy.special.entr(scipy.special.softmax(logits, axis=-1)).sum(axis=-1)
                # KL + H(q) is the cross-entropy.
                divergence = np.asarray(cross_entropy(logits, target))
                for gamma in gammas:
                    loss = np.asarray(focal(logits, target, gamma))
                    slack = float(np.min(loss - (divergence - gamma * entropy)))
                    slacks[gamma < 1] = min(slacks.get(gamma < 1, np.inf), slack)
            least |= {(kind, small): slack for small, slack in slacks.items()}
        logits, _, soft = _random_rows(2)
        entropy = scipy.special.entr(scipy.special.softmax(logits, axis=-1)).sum(axis=-1)
        loss = np.asarray(focal(logits, soft, 0.5))
        small = loss - (np.asarray(cross_entropy(logits, soft)) - 0.5 * entropy)
    rows = 2_000 * len(CLASSES)
    return {
        "least slack, one-hot targets": Value(
            least["one-hot", False], rows=rows * len(GAMMAS), note="gamma 1, 2, 3, 5"
        ),
        "least slack, soft targets": Value(
            least["soft", False], rows=rows * len(GAMMAS), note="gamma 1, 2, 3, 5"
        ),
        "least slack, one-hot targets, gamma below 1": Value(
            least["one-hot", True], rows=rows * len(SMALL_GAMMAS), note="gamma 0.1 to 0.9"
        ),
        "least slack, soft targets, gamma 0.5, two classes": Value(
            float(small.min()), rows=2_000, note="beyond the claim"
        ),
    }


def slack_of_one_component() -> dict[str, Value]:
    """Compute FL - (CE + gamma p_y log p_y), for gamma from 1 and for smaller ones."""
    chance = np.concatenate([np.geomspace(1e-12, 0.5, 4_000), 1 - np.geomspace(1e-12, 0.5, 4_000)])
    surprise = -np.log(chance)

    def slack(gamma: float) -> np.ndarray:
        with jax.enable_x64(True):
            logits = np.stack([np.log(chance), np.log1p(-chance)], axis=-1)
            loss = np.asarray(focal(logits, np.zeros(len(chance), int), gamma))
        return loss - surprise * (1 - gamma * chance)

    worst = {gamma: slack(gamma) for gamma in SMALL_GAMMAS}
    gamma = min(worst, key=lambda gamma: worst[gamma].min())
    place = chance[np.argmin(worst[gamma])]
    return {
        "least slack, gamma 1 to 5": Value(
            min(float(slack(gamma).min()) for gamma in GAMMAS), rows=len(chance) * len(GAMMAS)
        ),
        "least slack, gamma 0.1 to 0.9": Value(
            float(worst[gamma].min()), note=f"at gamma {gamma:g}, p_y = {place:.3f}"
        ),
        "least slack, gamma 0.5": Value(float(worst[0.5].min()), rows=len(chance)),
    }


def _binary_minimizer(target: np.ndarray, gamma: float) -> np.ndarray:
    """Minimise q f(p) + (1-q) f(1-p) over p, f(p) = -(1-p)^gamma log p, by search and bisection."""

    def slope(p: np.ndarray) -> np.ndarray:
        rest = 1 - p
        return gamma * rest ** (gamma - 1) * np.log(p) - rest**gamma / p

    def loss(p: np.ndarray) -> np.ndarray:
        return -target * (1 - p) ** gamma * np.log(p) - (1 - target) * p**gamma * np.log1p(-p)

    grid = np.linspace(1e-4, 1 - 1e-4, 2_001)[:, None]
    best = grid[np.argmin(loss(grid), axis=0), 0]
    low, high = best - 1e-3, np.minimum(best + 1e-3, 1 - 1e-9)
    for _ in range(60):
        middle = (low + high) / 2
        rising = target * slope(middle) - (1 - target) * slope(1 - middle) > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    return (low + high) / 2


def minimizers() -> dict[str, Value]:
    """Minimise focal loss for the targets (0.7, 0.3) and one-hot."""
    values, distances = {}, []
    for gamma in GAMMAS:
        minimum = float(_binary_minimizer(np.array([0.7]), gamma)[0])
        values[f"minimiser for 0.7, gamma {gamma:g}"] = Value(minimum)
        distances.append(abs(minimum - 0.7))
    p = 1 - np.geomspace(1e-12, 1 - 1e-12, 2_000)  # from 1 down to 0
    with jax.enable_x64(True):
        logits = np.stack([np.log(p), np.log1p(-p)], axis=-1)
        labels = np.zeros(len(p), int)
        one_hot = [np.asarray(focal(logits, labels, gamma)) for gamma in GAMMAS]
        # The library's loss of soft targets must have its minimum at the same places.
        fine = np.linspace(0.5, 0.75, 20_001)
        grid = np.log(np.stack([fine, 1 - fine], axis=-1))
        target = np.broadcast_to([0.7, 0.3], grid.shape)
        at = [fine[np.argmin(focal(grid, target, gamma))] for gamma in GAMMAS]
    expected = [values[f"minimiser for 0.7, gamma {gamma:g}"].value for gamma in GAMMAS]
    return values | {
        "least distance from the soft target": Value(min(distances), rows=len(GAMMAS)),
        "least rise away from the one-hot vertex": Value(
            min(float(np.min(np.diff(loss))) for loss in one_hot), rows=len(GAMMAS) * len(p)
        ),
        "distance from the library's minimum": Value(
            float(np.max(np.abs(np.subtract(at, expected)))), note="on a grid of 1.25e-5"
        ),
    }


NOT_PROPER = every(
    limits.above(1e-3, "least distance from the soft target"),
    limits.above(0, "least rise away from the one-hot vertex"),
)


def entropy_of_minimizers() -> dict[str, Value]:
    """Compare binary minimisers with the target, and those of one gamma with the next."""
    target = np.linspace(0.505, 0.995, 99)
    minima = np.stack([_binary_minimizer(target, gamma) for gamma in GAMMAS])
    ninety = np.argmin(np.abs(target - 0.9))
    shown = {
        f"minimiser for {target[ninety]:.2f}, gamma {gamma:g}": Value(float(minimum[ninety]))
        for gamma, minimum in zip(GAMMAS, minima, strict=True)
    }
    return {
        "least minimiser minus 0.5": Value(float(np.min(minima - 0.5)), rows=minima.size),
        "least target minus minimiser": Value(float(np.min(target - minima)), rows=minima.size),
        "least fall from one gamma to the next": Value(float(np.min(-np.diff(minima, axis=0)))),
        **shown,
    }


def last_layer_gradients() -> dict[str, Value]:
    """Divide the gradients of focal loss by those of cross-entropy, for every last-layer weight."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((50, 8))
    weights = generator.standard_normal((8, 5))
    labels = generator.integers(5, size=50)
    worst, least = 0.0, np.inf
    with jax.enable_x64(True):

        def loss(w: jax.Array, x: jax.Array, y: jax.Array, gamma: float) -> jax.Array:
            return losses.focal((x @ w)[None], y[None], gamma=gamma)[0]

        by_example = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0, None)))

        def gradients(gamma: float) -> jax.Array:
            return by_example(weights, features, labels, gamma)

        chance = scipy.special.softmax(features @ weights, axis=-1)[np.arange(50), labels]
        base = np.asarray(gradients(0.0))
        for gamma in GAMMAS:
            ratio = np.asarray(gradients(gamma)) / base
            expected = scale(chance, gamma)
            published = np.asarray(ratio_by_formula(chance, gamma))
            for factor in (expected, published):
                relative = np.abs(ratio / factor[:, None, None] - 1)
                worst = max(worst, float(np.max(relative)))
            least = min(least, float(expected.min()))
    return {
        "largest relative deviation from g": Value(worst, rows=50 * 40 * len(GAMMAS)),
        "least g": Value(least, rows=50 * len(GAMMAS)),
    }


def confidence_after_scaling() -> dict[str, Value]:
    """Compute the change of the top probability by a temperature above 1."""
    generator = np.random.default_rng(0)
    size = 10.0 ** generator.uniform(-1, 1, (2_000, 1))
    logits = size * generator.standard_normal((2_000, 10))
    before = scipy.special.softmax(logits, axis=-1).max(axis=-1)
    change, means = -np.inf, {}
    with jax.enable_x64(True):
        for temperature in (1.01, 1.5, 2.0, 3.0, 10.0):
            after = scipy.special.softmax(scaled(logits, temperature), axis=-1).max(axis=-1)
            # Where 1 - p is below the spacing of float64, neither can be told from 1.
            known = before < 1 - 1e-12
            change = max(change, float(np.max((after - before)[known])))
            means[temperature] = float(np.mean(after - before))
    return {
        "largest change of a top probability at T > 1": Value(change, rows=5 * int(known.sum())),
        **{
            f"mean change at T = {temperature:g}": Value(mean, rows=2_000)
            for temperature, mean in means.items()
        },
    }


@style.drawn
def draw() -> "matplotlib.figure.Figure":
    """Draw the minimiser of the binary focal loss over the target, for every gamma."""
    figure = style.canvas(3.8, 3.2)
    axes = figure.subplots()
    target = np.linspace(0.005, 0.995, 199)
    axes.plot(target, target, label="cross-entropy", **style.curve_look(0))
    for place, gamma in enumerate(GAMMAS, start=1):
        minimum = _binary_minimizer(target, gamma)
        axes.plot(target, minimum, label=f"gamma {gamma:g}", **style.curve_look(place))
    axes.set(xlabel="target q", ylabel="minimiser p", aspect="equal", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left")
    return figure


ENTRY = computed(
    {
        "mukhoti-brier-decomposes": (
            brier_parts,
            limits.at_most(1e-10, "Brier minus its two parts, largest"),
        ),
        "mukhoti-ce-minimised-only-at-infinite-weights": (never_minimal, ONLY_AT_INFINITY),
        "mukhoti-focal-kl-entropy-bound": (
            slack_of_bound,
            limits.above(-1e-10, "least slack, one-hot targets", "least slack, soft targets"),
        ),
        "mukhoti-focal-bound-one-component": (
            slack_of_one_component,
            limits.above(-1e-10, "least slack, gamma 1 to 5"),
        ),
        "mukhoti-focal-not-proper": (minimizers, NOT_PROPER),
        "mukhoti-focal-solution-higher-entropy": (
            entropy_of_minimizers,
            limits.above(
                0,
                "least minimiser minus 0.5",
                "least target minus minimiser",
                "least fall from one gamma to the next",
            ),
        ),
        "mukhoti-prop1-gradient-ratio": (
            last_layer_gradients,
            every(
                limits.at_most(1e-9, "largest relative deviation from g"),
                limits.above(0, "least g"),
            ),
        ),
        "mukhoti-ts-lowers-confidence-of-right": (
            confidence_after_scaling,
            limits.at_most(-1e-15, "largest change of a top probability at T > 1"),
        ),
    },
    figures=lambda: {"minimisers": draw()},
)
