"""The cost of BSCE-GRA (Lin et al. 2025) beside cross-entropy: loss alone, and a training step."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from calib_jax import losses, models
from experiments.papers.entry import computed
from experiments.papers.judge import step_costs
from experiments.papers.judge.values import Value

ROUNDS = 31
SHAPES = ((8192, 100), (1024, 1000))
LOSSES: dict[str, Callable[..., jax.Array]] = {
    step_costs.BASE: losses.cross_entropy,
    "BSCE-GRA": losses.generalized_brier,
}


def costs() -> dict[str, Value]:
    """Time forward and backward passes of both losses alone, and in a step of ResNet-8."""
    values: dict[str, Value] = {}
    network = models.resnet8(num_classes=10)
    images = jax.random.normal(jax.random.key(0), (128, 32, 32, 3))
    labels = jax.random.randint(jax.random.key(1), (128,), 0, 10)
    variables = network.init(jax.random.key(2), images[:2], train=False)

    def step(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def total(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            logits, _ = network.apply(
                {**variables, "params": params}, x, train=True, mutable=["batch_stats"]
            )
            return jnp.sum(loss(logits, y))

        return total

    of_step = {name: step(loss) for name, loss in LOSSES.items()}
    arguments = (variables["params"], images, labels)
    values |= step_costs.compared("step of ResNet-8 at batch 128", of_step, arguments, ROUNDS)
    for rows, classes in SHAPES:
        logits = jax.random.normal(jax.random.key(3), (rows, classes))
        labels = jax.random.randint(jax.random.key(4), (rows,), 0, classes)
        alone = {name: lambda z, y, loss=loss: jnp.sum(loss(z, y)) for name, loss in LOSSES.items()}
        values |= step_costs.compared(
            f"loss alone at [{rows}, {classes}]", alone, (logits, labels), ROUNDS
        )
    return values


STEP = "time over CE's, step of ResNet-8 at batch 128"


ENTRY = computed({"bsce-gra-no-extra-cost": (costs, step_costs.free(STEP))}, minutes=5)
