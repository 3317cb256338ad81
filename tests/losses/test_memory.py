"""Memory of losses of pixels: of a step, as XLA plans it, and of the statistics that are kept."""

import functools

import jax
import jax.numpy as jnp
import pytest

from calib_jax import losses
from calib_jax.core.types import Progress

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


BY_VALIDATION = [
    name for name in losses.catalogue() if losses.objective(name).clock == "validation"
]


@pytest.mark.parametrize("name", BY_VALIDATION)
def test_statistics_do_not_grow_with_the_pixels_of_an_image(name):
    """Two images of Cityscapes keep a few megabytes, and not one row for each of their pixels."""
    objective = losses.objective(name)
    state = objective.init(CLASSES)
    pixels = jax.ShapeDtypeStruct((2, 1024, 2048), jnp.int32)
    logits = jax.ShapeDtypeStruct((*pixels.shape, CLASSES), jnp.float32)
    weights = jax.ShapeDtypeStruct(pixels.shape, jnp.float32)
    kept = jax.eval_shape(objective.evidence, state, logits, pixels, weights)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept)) < 8e6
