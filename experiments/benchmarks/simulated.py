r"""Draw models whose truth is known: calibrated, overconfident, sharper, and of equal errors.

A calibrated model has logits $z \sim s N(0, I)$ and labels drawn from softmax(z); its logits times
T are overconfident if T > 1. True values are computed on a million logits in float64.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import reference

CLUSTER_SIZE, CORRELATION = 20, 0.3
STATES = 4  # of the feature that only one of two models sees


def scale_of(classes: int) -> float:
    """Return the standard deviation of the logits."""
    return 1.5 if classes == 2 else 2.0 if classes < 100 else 4.0


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def one_model(key: jax.Array, rows: int, classes: int, dependent: bool, temperature: float) -> Any:
    """Draw logits and labels; the labels of a cluster of rows depend on each other if asked."""
    noise, coin = jax.random.split(key)
    z = scale_of(classes) * jax.random.normal(noise, (rows, classes))
    return temperature * z, _labels(coin, z, dependent)


@functools.partial(jax.jit, static_argnums=(1, 2))
def confident(key: jax.Array, rows: int, classes: int, gap: float) -> Any:
    """Draw a model with confidences of .94 to .99, right with probability confidence - gap.

    All examples lie in one of 15 bins, so every top-label error over bins is the gap.
    """
    of_confidence, of_class, coin = jax.random.split(key, 3)
    confidence = jax.random.uniform(of_confidence, (rows, 1), minval=0.94, maxval=0.99)
    predicted = jax.nn.one_hot(jax.random.randint(of_class, (rows,), 0, classes), classes)

    def log_p(top: jax.Array) -> jax.Array:
        return jnp.log(jnp.where(predicted > 0, top, (1 - top) / (classes - 1)))

    return log_p(confidence), jax.random.categorical(coin, log_p(confidence - gap))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def sharper(key: jax.Array, rows: int, classes: int, dependent: bool) -> Any:
    """Draw two calibrated models: A averages over a feature that B sees, so B is sharper."""
    of_rows, of_states, state_key, coin = jax.random.split(key, 4)
    shared = 0.1 * jax.random.normal(of_rows, (rows, 1, classes))
    hidden = (3.0 if classes >= 100 else 6.0) * jax.random.normal(of_states, (STATES, classes))
    log_p = jax.nn.log_softmax(shared + hidden[None])  # [rows, states, classes]
    state = jax.random.randint(state_key, (rows,), 0, STATES)
    seen = jnp.take_along_axis(log_p, state[:, None, None], axis=1)[:, 0]
    average = jax.nn.logsumexp(log_p, axis=1) - jnp.log(STATES)
    return average, seen, _labels(coin, seen, dependent)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def equal_errors(key: jax.Array, rows: int, classes: int, dependent: bool) -> Any:
    """Draw two overconfident models with equal errors: each sees one of two exchangeable parts."""
    of_a, of_b, coin = jax.random.split(key, 3)
    shape, scale = (rows, STATES, classes), scale_of(classes)
    part_a, part_b = (scale * jax.random.normal(k, shape) for k in (of_a, of_b))
    log_p_a = jax.nn.log_softmax(part_a[:, :1] + part_b)
    log_p_b = jax.nn.log_softmax(part_a + part_b[:, :1])
    logits_a, logits_b = (1.5 * jax.nn.logsumexp(p, axis=1) for p in (log_p_a, log_p_b))
    return logits_a, logits_b, _labels(coin, log_p_a[:, 0], dependent)


def clusters_of(rows: int) -> np.ndarray:
    """Return the cluster of each row."""
    return np.arange(rows) // CLUSTER_SIZE


def _labels(key: jax.Array, z: jax.Array, dependent: bool) -> jax.Array:
    """Draw labels from softmax(z), of dependent rows with a Gaussian copula in each cluster."""
    if not dependent:
        return jax.random.categorical(key, z)
    of_cluster, of_row = jax.random.split(key)
    rows = z.shape[0]
    common = jax.random.normal(of_cluster, (-(-rows // CLUSTER_SIZE),))[clusters_of(rows)]
    alone = jax.random.normal(of_row, (rows,))
    normal = np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * alone
    # The most probable class comes first, so that its hits are correlated.
    order = jnp.argsort(-z, axis=1)
    below = jnp.cumsum(jnp.take_along_axis(jax.nn.softmax(z), order, axis=1), axis=1)
    rank = jnp.sum(below[:, :-1] <= jax.scipy.stats.norm.cdf(normal)[:, None], axis=1)
    return jnp.take_along_axis(order, rank[:, None], axis=1)[:, 0]


@functools.cache
def truth(classes: int, temperature: float, examples: int = 2**20) -> Mapping[str, float]:
    """Compute the expectations of metrics over the labels, on many logits."""
    random, block, parts = np.random.default_rng(0), 2**14, []
    for start in range(0, examples, block):
        z = scale_of(classes) * random.standard_normal((min(block, examples - start), classes))
        q, p = reference.softmax(z), reference.softmax(temperature * z)
        top = p.argmax(axis=1)[:, None]
        confidence, right = (np.take_along_axis(of, top, axis=1)[:, 0] for of in (p, q))
        nll = -np.sum(q * np.log(np.maximum(p, 1e-300)), axis=1)
        parts.append((confidence, right, nll, np.sum(np.square(p) - 2 * p * q, axis=1) + 1))
    confidence, right, nll, brier = map(np.concatenate, zip(*parts, strict=True))
    gap, equal = (
        of(confidence, right) / examples for of in (reference.gaps, reference.gaps_of_equal_count)
    )
    share = np.bincount(reference.bins(confidence), minlength=reference.BINS) / examples
    values = {
        "accuracy": np.mean(right),
        "nll": np.mean(nll),
        "brier": np.mean(brier),
        "ece": np.sum(np.abs(gap)),
        "adaptive_ece": np.sum(np.abs(equal)),
        "squared_error": np.sum(np.square(gap) / np.where(share > 0, share, 1)),
    }
    return {name: float(value) for name, value in values.items()}
