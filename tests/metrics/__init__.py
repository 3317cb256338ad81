"""The laws of every metric about rows and weights, for the tests of a family."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


@functools.partial(jax.jit, static_argnums=0)
def _value_of(metric, logits, labels, weights):
    return metric.value(metric.stat(logits, labels, weights))


def value_of(metric, logits, labels, weights=None, **options):
    """Compute a metric in one program, without the refusals of its call."""
    weights = None if weights is None else jnp.asarray(weights)
    metric = metric.with_options(**options)
    return _value_of(metric, jnp.asarray(logits), jnp.asarray(labels), weights)


def assert_same(actual, wanted, rtol=2e-5, atol=2e-6):
    """Compare numbers, or trees of them; NaN equals NaN."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), actual, wanted
    )
