"""Mukhoti et al., section 4: the confidence of focal loss and of CE in the first steps.

The rule counts all steps in which the mean p_y of CE is below the threshold of FL-3. In the first
quarter of these steps the confidence of every focal loss is above that of CE; later that of FL-3 is
below, while its p_y stays above. The confidence is judged, and the verdict depends on the length of
the first stage.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from calib_jax import data, losses, models
from experiments.papers.entries.mukhoti.gradient_scale import threshold
from experiments.papers.entry import Entry
from experiments.papers.judge import estimates, paired, rules
from experiments.papers.judge.estimates import Estimate
from experiments.papers.judge.values import Value

GAMMAS = (0.0, 1.0, 2.0, 3.0)  # 0 is cross-entropy
SEEDS, STEPS, EVERY, BATCH, MEASURED = 5, 200, 5, 128, 2_000
RATE = 0.05


def statistic() -> dict[str, Value]:
    """Compare the confidences after every few steps, on the same batches."""
    examples = _examples()
    by_gamma = {gamma: [_run(examples, gamma, seed) for seed in range(SEEDS)] for gamma in GAMMAS}
    values = {}
    for gamma in GAMMAS[1:]:
        pairs = list(zip(by_gamma[gamma], by_gamma[0.0], strict=True))
        counted = [_is_counted(ce) for _, ce in pairs]
        first = [np.arange(len(part)) < len(part) // 4 for part in counted]
        for steps, when in ((counted, ""), (first, ", first quarter of the steps")):
            for name, column in (("confidence", 0), ("p_y", 1)):
                values[f"{name}(FL-{gamma:g}) - {name}(CE){when}"] = paired.over_seeds_and_rows(
                    [
                        _change(focal[column], ce[column], part)
                        for (focal, ce), part in zip(pairs, steps, strict=True)
                    ],
                    note=f"steps counted: {[EVERY * int(part.sum()) for part in steps]}",
                )
    for gamma, of_seeds in by_gamma.items():
        last = [float(np.mean(confidence[-1])) for confidence, _ in of_seeds]
        values[f"confidence after the last step, gamma {gamma:g}"] = paired.over_seeds(last)
    return values


def _is_counted(ce: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Choose the steps after which the mean p_y of cross-entropy is below the threshold of FL-3."""
    return np.mean(ce[1], axis=1) < threshold(3.0)


def _change(focal: np.ndarray, ce: np.ndarray, counted: np.ndarray) -> Estimate:
    return estimates.mean(np.mean(focal[counted] - ce[counted], axis=0))


def _examples() -> tuple[Any, Any, Callable[[Any], Any]]:
    """Read the first training images."""
    given = flags.FLAGS.data_dir if flags.FLAGS.is_parsed() else None
    folder = given or os.environ.get("CALIB_JAX_DATA_DIR")
    dataset = data.named("cifar10", data_dir=folder)
    examples = dataset.train[np.arange(MEASURED)]
    return examples.inputs, np.asarray(examples.labels), dataset.prepare


def _run(
    examples: tuple[Any, Any, Callable[[Any], Any]], gamma: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Train LeNet-5 with one gamma.

    Returns:
      The confidence and p_y after every few steps, `[times, images]`.
    """
    inputs, labels, prepare = examples
    images = prepare(jnp.asarray(inputs))
    params = _network().init(jax.random.key(seed), images[:1], train=False)
    order = np.random.default_rng(seed).integers(MEASURED, size=(STEPS // EVERY, EVERY, BATCH))
    columns = []
    for rows in order:
        params, measured = _steps(params, images, jnp.asarray(labels), rows, gamma)
        columns.append(measured)
    confidence, of_label = zip(*columns, strict=True)
    return np.stack(confidence), np.stack(of_label)


def _network() -> Any:
    return models.lenet5(num_classes=10)


@jax.jit
def _steps(params: Any, images: Any, labels: Any, rows: Any, gamma: Any) -> Any:
    """Take a few steps of plain SGD, and measure all images."""

    def mean_loss(params: Any, chosen: Any) -> Any:
        logits = _network().apply(params, images[chosen], train=True)
        return jnp.mean(losses.focal(logits, labels[chosen], gamma=gamma))

    def step(params: Any, chosen: Any) -> Any:
        gradient = jax.grad(mean_loss)(params, chosen)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), None

    params, _ = jax.lax.scan(step, params, rows)
    p = jax.nn.softmax(_network().apply(params, images, train=False))
    return params, (p.max(axis=-1), jnp.take_along_axis(p, labels[:, None], axis=-1)[:, 0])


ENTRY = Entry(
    claims={
        "mukhoti-focal-confidence-rises-faster-early": rules.above(
            "confidence(FL-3) - confidence(CE)"
        )
    },
    statistic=statistic,
    data=("cifar10",),
    minutes=2,
)
