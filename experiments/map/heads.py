"""Train many heads on frozen features in one program, and measure and predict their temperatures.

A head has one hidden layer. All weight decays and seeds of a loss are trained at once, by SGD with
momentum and a cosine schedule.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import inference, losses
from calib_jax.core import population

ROWS, HIDDEN, EPOCHS, BATCH, RATE, MOMENTUM = 2500, 128, 30, 128, 0.5, 0.9
WEIGHT_DECAYS = (0.0, 5e-5, 2e-4, 5e-4, 2e-3, 5e-3)
# The objective of each loss with its options, in the order of training.
LOSSES: dict[str, tuple[str, dict[str, float]]] = {
    "cross_entropy": ("cross_entropy", {}),
    "focal_3": ("focal", {"gamma": 3.0}),
    "matched": ("matched", {}),
    "adafocal": ("adafocal", {}),
    "bsce_gra": ("bsce_gra", {}),
    "focal_1": ("focal", {"gamma": 1.0}),
    "flsd53": ("flsd53", {}),
    "fl_gra": ("fl_gra", {"gamma": 3.0}),
    "label_smoothing": ("label_smoothing", {"alpha": 0.05}),
    "brier": ("brier", {}),
    "dual_focal": ("dual_focal", {}),
}
NAMES = {
    **{"cross_entropy": "cross-entropy", "focal_1": "FL-1", "focal_3": "FL-3"},
    **{"flsd53": "FLSD-53", "fl_gra": "FL-GRA", "bsce_gra": "BSCE-GRA", "adafocal": "AdaFocal"},
    **{"label_smoothing": "label smoothing .05", "brier": "Brier", "dual_focal": "dual focal"},
    **{"matched": "matched focal", "mmce": "MMCE"},
}
# Losses with a frozen rule, and their factor on the texts of the map.
CONSTANT = {"focal_1": 0.76, "focal_3": 0.58, "bsce_gra": 0.58}
PREDICTED = tuple(loss for loss in LOSSES if loss not in ("matched", "adafocal"))
SLOW = ("dual_focal",)  # its predictions cost minutes, so only some networks have them


def train(
    arrays: dict[str, np.ndarray],
    loss: str,
    gammas: np.ndarray,
    *,
    epochs: int = EPOCHS,
    hidden: int = HIDDEN,
    seeds: Iterable[int] = (0, 1, 2),
) -> dict[str, np.ndarray]:
    """Train all weight decays and seeds of a loss; return logits `[decays, seeds, rows, classes]`.

    Args:
      arrays: vectors and labels of the three parts.
      loss: one of `LOSSES`.
      gammas: the gamma of each weight decay, negative for inverse focal loss; used by "matched".
      epochs: the length of the whole schedule.
      hidden: the width of the hidden layer.
      seeds: each gives the initial weights and the order of the rows.
    """
    name, options = LOSSES[loss]
    objective: Any = None if name == "matched" else losses.objective(name, **options)
    x, y = (jnp.asarray(arrays[name][:ROWS]) for name in ("train", "train_labels"))
    held_out, of_held_out = jnp.asarray(arrays["validation"]), arrays["validation_labels"]
    num_classes, steps = int(arrays["train_labels"].max()) + 1, len(x) // BATCH

    def initial(seed: int) -> dict[str, jax.Array]:
        keys = jax.random.split(jax.random.key(seed), 2)
        shapes = (x.shape[1], hidden), (hidden, num_classes)
        a, b = (
            jax.random.uniform(key, shape, minval=-1, maxval=1) / np.sqrt(shape[0])
            for key, shape in zip(keys, shapes, strict=True)
        )
        return {"a": a, "a0": jnp.zeros(hidden), "b": b, "b0": jnp.zeros(num_classes)}

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        hidden_units = jax.nn.relu(x @ params["a"] + params["a0"][None])
        return hidden_units @ params["b"] + params["b0"][None]

    def mean_loss(params: Any, state: Any, gamma: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        logits = apply(params, x)
        if objective is not None:
            return objective.value(state, logits, y).mean()
        focal = losses.focal(logits, y, gamma=jnp.maximum(gamma, 0))
        inverse = losses.inverse_focal(logits, y, gamma=jnp.maximum(-gamma, 0))
        return jnp.where(gamma >= 0, focal, inverse).mean()

    def epoch_of_one(
        params: Any, momentum: Any, state: Any, decay: Any, gamma: Any, order: Any, first: Any
    ) -> tuple[Any, Any]:
        def step(carry: Any, rows_and_number: Any) -> tuple[Any, None]:
            params, momentum = carry
            rows, number = rows_and_number
            rate = RATE * 0.5 * (1 + jnp.cos(jnp.pi * number / (epochs * steps)))
            slopes = jax.grad(mean_loss)(params, state, gamma, x[rows], y[rows])
            momentum = jax.tree.map(
                lambda m, g, p: MOMENTUM * m + g + decay * p, momentum, slopes, params
            )
            return (jax.tree.map(lambda p, m: p - rate * m, params, momentum), momentum), None

        rows = order[: steps * BATCH].reshape(steps, BATCH)
        carry, _ = jax.lax.scan(step, (params, momentum), (rows, first + jnp.arange(steps)))
        return carry

    epoch = jax.jit(jax.vmap(epoch_of_one, in_axes=(0, 0, 0, 0, 0, 0, None)))
    logits_of = jax.jit(jax.vmap(apply, in_axes=(0, None)))
    seeds = tuple(seeds)
    networks = [(decay, seed) for decay in range(len(WEIGHT_DECAYS)) for seed in seeds]
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(initial(s) for _, s in networks))
    momentum = jax.tree.map(jnp.zeros_like, params)
    decays = jnp.array([WEIGHT_DECAYS[decay] for decay, _ in networks])
    gamma = jnp.array([gammas[decay] for decay, _ in networks])
    start = () if objective is None else objective.init(num_classes)
    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(networks)), start)

    @jax.jit
    @jax.vmap
    def updated(params: Any, state: Any, done: jax.Array) -> Any:
        evidence = objective.evidence(state, apply(params, held_out), of_held_out)
        return objective.update(state, evidence, losses.Progress(done * steps, done, epochs))

    for number in range(epochs):
        orders = np.stack(
            [np.random.default_rng([s, number]).permutation(len(x)) for _, s in networks]
        )
        params, momentum = epoch(params, momentum, state, decays, gamma, orders, number * steps)
        if objective is not None and objective.clock == "validation":
            state = updated(params, state, jnp.full(len(networks), number + 1))
    return {
        part: np.asarray(logits_of(params, jnp.asarray(arrays[part]))).reshape(
            len(WEIGHT_DECAYS), len(seeds), -1, num_classes
        )
        for part in ("validation", "test")
    }


def temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Fit the temperature of least NLL; NaN for a network at chance."""
    try:
        return population.temperature(logits.astype(np.float64), labels)
    except ValueError:
        return float("nan")


def measured(logits: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Measure each network on the test rows, before and after its validation temperature.

    Args:
      logits: of "validation" and "test", `[*networks, rows, classes]`.
      arrays: "validation_labels" and "test_labels".
    """
    names = ("temperature", "error", "gap", "nll", "nll_after", "ce2", "ce2_after", "auroc")
    shape = logits["test"].shape[:-2]
    found: dict[str, Any] = {name: np.zeros(shape) for name in names}
    y = arrays["test_labels"]
    for at in np.ndindex(*shape):
        z = logits["test"][at].astype(np.float64)
        t = temperature(logits["validation"][at], arrays["validation_labels"])
        p, q = population.softmax(z), population.softmax(z / (t if t == t else 1.0))
        right, confidence = z.argmax(-1) == y, p.max(-1)
        order = np.argsort(np.argsort(confidence))
        wrong = int((~right).sum())
        ranks = order[right].sum() - right.sum() * (right.sum() - 1) / 2
        of_rows = (p[np.arange(len(y)), y], q[np.arange(len(y)), y])
        values = (
            *(t, 1 - right.mean(), confidence.mean() - right.mean()),
            *(-np.log(np.maximum(part, 1e-30)).mean() for part in of_rows),
            *(inference.ce2(part.max(-1), right).value for part in (p, q)),
            ranks / max(wrong * int(right.sum()), 1),
        )
        for name, value in zip(names, values, strict=True):
            found[name][at] = value
    return {name: np.round(value, 6).tolist() for name, value in found.items()}


def predicted(logits: np.ndarray, labels: np.ndarray, loss: str, rows: int = 10**9) -> Any:
    """Predict T and the signed gap of a loss from networks of cross-entropy.

    Args:
      logits: held-out logits of cross-entropy, `[*networks, rows, classes]`.
      labels: the labels of the rows.
      loss: one of `PREDICTED`.
      rows: T is fitted to all rows, and the prediction computed on about so many of them.
    """
    name, options = LOSSES[loss]
    some = slice(None, None, -(-len(labels) // rows))
    found = {column: np.full(logits.shape[:-2], np.nan) for column in ("temperature", "gap")}
    for at in np.ndindex(*logits.shape[:-2]):
        z, y = logits[at].astype(np.float64), labels[some]
        try:
            fitted = population.temperature(z, labels)
            other = population.predicted_logits(z[some], fitted, name, **options)
            found["temperature"][at] = population.temperature(other, y)
        except ValueError:
            continue
        found["gap"][at] = population.softmax(other).max(-1).mean() - (other.argmax(-1) == y).mean()
    return {column: np.round(values, 5).tolist() for column, values in found.items()}
