"""Memory of losses of pixels, as XLA plans it: weights of a class or of p_y need no more arrays."""

import functools

import jax
import jax.numpy as jnp
import pytest

from calib_jax import losses
from calib_jax.core.progress import Progress

PIXELS, CLASSES = 769 * 769, 19


@functools.cache
def bytes_per_pixel(name):
    """Plan a loss with its update and its gradient, and count all that is held at once."""
    objective = losses.objective(name)
    start = objective.init(CLASSES)

    def step(logits, labels, weights):
        state = start
        if objective.clock == "step":
            evidence = objective.evidence(state, logits, labels, weights)
            state = objective.update(state, evidence, Progress(0, 0, 1))
        total = lambda z: jnp.sum(objective.value(state, z, labels, weights))  # noqa: E731
        return jax.grad(total)(logits), state

    given = (((PIXELS, CLASSES), jnp.float32), ((PIXELS,), jnp.int32), ((PIXELS,), jnp.float32))
    planned = jax.jit(step).lower(*(jax.ShapeDtypeStruct(*each) for each in given)).compile()
    plan = planned.memory_analysis()
    held = plan.temp_size_in_bytes + plan.output_size_in_bytes + plan.argument_size_in_bytes
    return held / PIXELS


@pytest.mark.parametrize("name", ["focal", "adafocal", "bsce_gra", "recall"])
def test_weights_need_little_memory(name):
    assert bytes_per_pixel(name) <= 1.2 * bytes_per_pixel("cross_entropy")
