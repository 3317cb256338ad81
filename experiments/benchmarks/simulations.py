r"""Data sets whose calibration error is known: one model or two, independent rows or clusters.

A calibrated model has logits $z \sim s N(0, I)$ and labels drawn from softmax(z); its logits times
T are overconfident if T > 1. The true value of a metric is its expectation over the labels, on a
million logits, in float64 NumPy. `confident` draws probabilities, with errors
known in advance.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

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
def one_model(
    key: jax.Array, rows: int, classes: int, dependent: bool, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """Draw logits and labels; the labels of a cluster of rows depend on each other if asked."""
    noise, coin = jax.random.split(key)
    z = scale_of(classes) * jax.random.normal(noise, (rows, classes))
    return temperature * z, _labels(coin, z, dependent)


LEAST, MOST = 0.94, 0.99  # confidences in the last of 15 bins


@functools.partial(jax.jit, static_argnums=(1, 2))
def confident(key: jax.Array, rows: int, classes: int, gap: float) -> tuple[jax.Array, jax.Array]:
    """Draw a confident model, all of whose examples lie in one bin, with the gap in it.

    The confidence c is uniform, and the answer is right with probability c - gap; the other classes
    share the remainder. So every top-label error over bins is the gap, and its square the squared
    error.
    """
    of_confidence, of_class, coin = jax.random.split(key, 3)
    confidence = jax.random.uniform(of_confidence, (rows, 1), minval=LEAST, maxval=MOST)
    predicted = jax.random.randint(of_class, (rows,), 0, classes)
    is_predicted = jax.nn.one_hot(predicted, classes, dtype=bool)

    def log_p(of_predicted: jax.Array) -> jax.Array:
        return jnp.log(jnp.where(is_predicted, of_predicted, (1 - of_predicted) / (classes - 1)))

    return log_p(confidence), jax.random.categorical(coin, log_p(confidence - gap))


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def constant(
    key: jax.Array, rows: int, classes: int, confidence: float, accuracy: float
) -> tuple[jax.Array, jax.Array]:
    """Draw a model that predicts class 0 with one confidence; the others share the remainder.

    All examples lie in one bin, so the gap in it is every top-label error over bins.
    """
    log_p, log_q = (
        jnp.log(jnp.where(jnp.arange(classes) == 0, top, (1 - top) / (classes - 1)))
        for top in (confidence, accuracy)
    )
    return jnp.tile(log_p, (rows, 1)), jax.random.categorical(key, log_q, shape=(rows,))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def sharper(
    key: jax.Array, rows: int, classes: int, dependent: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
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
def equal_errors(
    key: jax.Array, rows: int, classes: int, dependent: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draw two overconfident models with equal errors: each sees one of two exchangeable parts."""
    of_a, of_b, coin = jax.random.split(key, 3)
    scale = scale_of(classes)
    part_a, part_b = (scale * jax.random.normal(k, (rows, STATES, classes)) for k in (of_a, of_b))
    # State 0 of both parts is true. A sees part a and averages over part b; B does the reverse.
    log_p_a = jax.nn.log_softmax(part_a[:, :1] + part_b)
    log_p_b = jax.nn.log_softmax(part_a + part_b[:, :1])
    logits_a, logits_b = (1.5 * jax.nn.logsumexp(p, axis=1) for p in (log_p_a, log_p_b))
    return logits_a, logits_b, _labels(coin, log_p_a[:, 0], dependent)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def less_calibrated(
    key: jax.Array, rows: int, classes: int, dependent: bool, temperature: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draw a calibrated model A, and B with the same logits times the temperature."""
    z, labels = one_model(key, rows, classes, dependent, 1.0)
    return z, temperature * z, labels


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


class Truth(NamedTuple):
    """The expectations of metrics over logits and labels.

    Attributes:
      values: metric -> its expectation.
      bin_gaps: the mean of confidence minus probability of being right, in every bin.
    """

    values: Mapping[str, float]
    bin_gaps: np.ndarray


@functools.cache
def truth(classes: int, temperature: float, examples: int = 2**20) -> Truth:
    """Compute the expectations of metrics on many logits."""
    parts = list(_parts(classes, temperature, examples))
    columns = zip(*(part[0] for part in parts), strict=True)
    confidence, right, nll, brier = map(np.concatenate, columns)
    of_classes = sum(part[1] for part in parts)
    gap, equal = (
        function(confidence, right) / examples
        for function in (reference.gaps, reference.gaps_of_equal_count)
    )
    share = np.bincount(reference.bins(confidence), minlength=reference.BINS) / examples
    bin_gaps = gap / np.where(share > 0, share, 1)
    wrong = (1 - right)[np.argsort(-confidence)]
    answered = np.arange(1, examples + 1) / examples
    values = {
        "accuracy": np.mean(right),
        "nll": np.mean(nll),
        "brier": np.mean(brier),
        "ece": np.sum(np.abs(gap)),
        "adaptive_ece": np.sum(np.abs(equal)),
        # All classes have the same distribution, so their gaps are averaged first.
        "classwise_ece": np.sum(np.abs(of_classes)) / examples,
        "squared_error": share @ np.square(bin_gaps),
        "aurc": np.mean(np.cumsum(wrong) / examples / answered),
        "augrc": np.mean(np.cumsum(wrong)) / examples,
        "risk_at_coverage": np.mean(wrong[: round(0.9 * examples)]),
        "coverage_at_risk": np.mean(np.cumsum(wrong) <= 0.05 * examples * answered),
        "expected_cost": np.mean(1 - right),
    }
    return Truth({name: float(value) for name, value in values.items()}, bin_gaps)


def _parts(classes: int, temperature: float, examples: int) -> Any:
    random, block = np.random.default_rng(0), 2**14
    for start in range(0, examples, block):
        rows = min(block, examples - start)
        z = scale_of(classes) * random.standard_normal((rows, classes))
        q, p = reference.softmax(z), reference.softmax(temperature * z)
        top = p.argmax(axis=1)[:, None]
        confidence, right = (np.take_along_axis(of, top, axis=1)[:, 0] for of in (p, q))
        nll = -np.sum(q * np.log(np.maximum(p, 1e-300)), axis=1)
        brier = np.sum(np.square(p) - 2 * p * q, axis=1) + 1
        yield (confidence, right, nll, brier), reference.gaps(p.ravel(), q.ravel()) / classes
