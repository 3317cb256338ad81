"""The laws of every metric about rows and weights, for the tests of a family."""

import jax
import jax.numpy as jnp
import numpy as np


def value_of(metric, logits, labels, weights=None, **options):
    """Compute a metric without compiling it whole, and without the refusals of its call."""
    weights = None if weights is None else jnp.asarray(weights)
    metric = metric.with_options(**options)
    return metric.value(metric.stat(jnp.asarray(logits), jnp.asarray(labels), weights))


def assert_same(actual, wanted, rtol=2e-5, atol=2e-6):
    """Compare numbers, or trees of them; NaN equals NaN."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), actual, wanted
    )
