"""Compare an objective of the library with a float64 NumPy reference: values and gradients.

A reference is a function (logits, labels, **options) -> [N]. One that holds something constant in
the backward pass (a detached weight) takes `constants_at`, the logits at which those constants
are evaluated. Finite differences with `constants_at` fixed are then the gradient that the loss
promises, so one recipe proves the losses of both kinds.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import losses


def batch(num_examples=8, num_classes=5, scale=2.0, seed=0):
    """Return random logits [N, K] and labels [N]; about half of the labels are the argmax."""
    random = np.random.default_rng(seed)
    logits = scale * random.standard_normal((num_examples, num_classes))
    labels = random.integers(num_classes, size=num_examples)
    return logits, np.where(random.random(num_examples) < 0.5, logits.argmax(-1), labels)


def numerical_gradient(reference, logits, labels, *, step=1e-5, **options):
    """Return central differences of the summed reference, its constants held where they are."""
    if "constants_at" in inspect.signature(reference).parameters:
        options["constants_at"] = logits
    gradient = np.zeros_like(logits)
    for index in np.ndindex(*logits.shape):
        shift = np.zeros_like(logits)
        shift[index] = step
        above = reference(logits + shift, labels, **options)
        below = reference(logits - shift, labels, **options)
        # subtract before summing: the terms that did not move cancel exactly
        gradient[index] = np.sum(above - below) / (2 * step)
    return gradient


def values_and_gradient(value, logits, labels, *, compiled):
    """Return value(logits, labels) [N] and the gradient of its sum, both in float64."""

    def run(logits, labels):
        values, pull_back = jax.vjp(lambda z: value(z, labels), logits)
        return values, pull_back(jnp.ones_like(values))[0]

    with jax.enable_x64(True):
        run = jax.jit(run) if compiled else run
        return jax.device_get(run(jnp.asarray(logits, jnp.float64), jnp.asarray(labels)))


def check(value, reference, logits, labels, *, step=1e-5, rtol=1e-6, **options):
    """Assert that value(logits, labels) [N] and its gradient are the reference's."""
    actual = values_and_gradient(value, logits, labels, compiled=True)
    assert_equal_the_reference(actual, reference, logits, labels, step=step, rtol=rtol, **options)


def assert_equal_the_reference(actual, reference, logits, labels, *, step, rtol, **options):
    """Compare values [N] and the gradient of their sum with those of a reference."""
    values, gradient = actual
    expected = reference(logits, labels, **options)
    assert values.dtype == gradient.dtype == np.float64
    assert values.shape == expected.shape
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-12)
    expected = numerical_gradient(reference, logits, labels, step=step, **options)
    np.testing.assert_allclose(gradient, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


def check_objective(
    name, reference, *batches, state=None, fields=None, step=1e-5, rtol=1e-6, seed=0, **options
):
    """Assert that an objective has the reference's values and gradients.

    Without `batches` there is one of five classes, with ordinary rows and confident ones, and with
    the default options one of two classes. Without a state the objective is in its initial one;
    `fields` are the options of the reference that describe the state.
    """
    if not batches:
        scale = np.repeat([[2.0], [8.0]], 4, axis=0)
        of_two_classes = [] if options else [batch(num_classes=2, seed=seed)]
        batches = [batch(scale=scale, seed=seed), *of_two_classes]
    objective = losses.objective(name, **options)

    def value(logits, labels):
        num_classes = logits.shape[-1]
        first = objective.init(num_classes, np.full(num_classes, 7)) if state is None else state
        return objective.value(first, logits, labels, jnp.ones(labels.shape, logits.dtype))

    # The losses without a state share their primitives: eager, nearly nothing is left to compile.
    compiled = objective.clock != "never"
    for logits, labels in batches:
        actual = values_and_gradient(value, logits, labels, compiled=compiled)
        assert_equal_the_reference(
            actual, reference, logits, labels, step=step, rtol=rtol, **options, **(fields or {})
        )
