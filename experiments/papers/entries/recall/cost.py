"""The cost of a training step on pixels with recall loss (Tian et al. 2021) beside CE."""

from typing import Any

import jax
import jax.numpy as jnp

from calib_jax import losses, models
from experiments.papers.entry import Entry
from experiments.papers.judge import step_costs
from experiments.papers.judge.values import Value

ROUNDS = 21
IMAGES, HEIGHT, WIDTH, CLASSES = 6, 120, 160, 12  # of the config for CamVid
STEP = "time over CE's, step of a small DeepLab on 6 images of 160 x 120 pixels"


def costs() -> dict[str, Value]:
    """Time forward and backward passes of a segmentation network, and the recall's counters."""
    network = models.deeplab_small(num_classes=CLASSES, dropout=0.0)
    keys = jax.random.split(jax.random.key(0), 3)
    images = jax.random.normal(keys[0], (IMAGES, HEIGHT, WIDTH, 3))
    labels = jax.random.randint(keys[1], (IMAGES, HEIGHT, WIDTH), 0, CLASSES)
    variables = network.init(keys[2], images[:1], train=False)

    def step(name: str) -> Any:
        objective = losses.objective(name)
        state = objective.init(CLASSES, jnp.ones(CLASSES))

        def total(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            given = {**variables, "params": params}
            logits, _ = network.apply(given, x, train=True, mutable=["batch_stats"])
            current = state
            if objective.clock == "step":  # the counters are updated before the step uses them
                evidence = objective.evidence(state, logits, y, None)
                current = objective.update(state, evidence, losses.Progress(1, 0, 1))
            return jnp.mean(objective.value(current, logits, y, None))

        return total

    of = {step_costs.BASE: step("cross_entropy"), "recall": step("recall")}
    arguments = (variables["params"], images, labels)
    return step_costs.compared(STEP.partition(", ")[2], of, arguments, ROUNDS)


ENTRY = Entry(
    claims={"recall-minimal-tuning-and-cost": step_costs.free(STEP)}, statistic=costs, minutes=5
)
