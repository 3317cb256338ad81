"""Memory of losses of pixels: of a step, as XLA plans it, and of the statistics that are kept."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "at_most"),
    [
        *((name, 2.0) for name in ("dca", "esd", "mmce", "margin_smoothing", "max_suppression")),
        *(("class_adaptive_margin", 1.3), ("mdca", 2.4), ("logit_norm", 2.2), ("soft_ece", 3.1)),
    ],
)
def test_penalties_keep_a_few_arrays_of_the_classes(name, at_most):
    """Cross-entropy holds the logits and the gradient; no penalty holds pairs of pixels."""
    assert bytes_per_pixel(name) <= at_most * bytes_per_pixel("cross_entropy")


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


@pytest.mark.slow
def test_few_pixels_tell_what_all_do():
    """The grid of an image, whose rows differ in confidence, gives nearly the state of all."""
    draw = np.random.default_rng(0)
    height, width, classes = 180, 200, 3
    sharpness = np.linspace(0.5, 4, height)[:, None, None]
    z = sharpness * draw.standard_normal((height, width, classes))
    labels = jnp.asarray((z + draw.gumbel(size=z.shape)).argmax(axis=-1))[None]
    logits = jnp.asarray(1.5 * z, jnp.float32)[None]
    objective = losses.objective("adafocal")
    start = objective.init(classes)
    of_all, of_grid = (
        objective.update(start, objective.evidence(start, *given, None), Progress(1, 1, 2))
        for given in ((logits.reshape(-1, classes), labels.reshape(-1)), (logits, labels))
    )
    for whole, part in zip(jax.tree.leaves(of_all), jax.tree.leaves(of_grid), strict=True):
        np.testing.assert_allclose(part, whole, atol=0.07)
    moved = jax.tree.map(lambda new, old: jnp.max(jnp.abs(new - old)), of_all, start)
    assert max(jax.tree.leaves(moved)) > 0.05
