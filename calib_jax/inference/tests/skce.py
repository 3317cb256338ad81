r"""Are the probabilities of all classes calibrated together? A kernel test for small data sets.

The squared kernel calibration error compares every pair of examples:

$$\text{SKCE} = \frac{1}{n (n - 1)} \sum_{i \ne j} k(p_i, p_j) \, (e_{y_i} - p_i) \cdot
  (e_{y_j} - p_j), \quad k(p, q) = \exp(- \lVert p - q \rVert_1 / (2 \nu)),$$

with the median distance as $\nu$, which depends on the probabilities alone. Draws of the labels
of a calibrated model make the test exact.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core.inputs import checks
from calib_jax.core.types import Array, Labels, Logits
from calib_jax.inference.bounds import null_draws
from calib_jax.inference.evaluation import Evaluation, in_order, independent
from calib_jax.inference.tests.calibration import CalibrationTest, key_given, register
from calib_jax.metrics.contract.predictions import Predictions

MOST_ROWS = 5000
_KINDS = ("canonical", "top_label")
_ENTRIES = 2**22


@register("skce")
def skce(
    evaluation: Evaluation,
    *,
    key: Array | None = None,
    num_resamples: int = 1000,
    kind: str = "canonical",
) -> CalibrationTest:
    """Test by the squared kernel calibration error, of at most 5,000 examples.

    The statistic is unbiased, and negative for about half of all calibrated models. Its time grows
    with the square of the number of examples.

    Args:
      evaluation: the examples.
      key: PRNG key of the draws.
      num_resamples: number of draws.
      kind: "canonical" for all classes jointly, "top_label" for the confidence and the hit.

    References:
      Widmann, Lindsten and Zachariah, Calibration tests in multi-class classification: a unifying
      framework, NeurIPS 2019.
    """
    key = key_given("skce", key)
    checks.one_of("kind", kind, _KINDS)
    independent("calibration_test('skce')", evaluation)
    logits, labels, *_ = evaluation.copies
    num_rows = len(labels)
    if num_rows > MOST_ROWS:
        raise ValueError(
            f"calibration_test('skce') compares all pairs of at most {MOST_ROWS} examples, got"
            f" {num_rows}.\nUse fewer examples, or 't_cal'."
        )
    if num_rows < 2:
        return CalibrationTest(float("nan"), float("nan"))
    p, targets = _probabilities(logits, labels, kind)
    order = in_order(np.max(np.asarray(p), axis=1), targets)
    p, targets = p[order], targets[order]
    distance = np.asarray(_distances(p), np.float64)
    between = distance[np.triu_indices(num_rows, 1)]
    median = float(np.median(between))
    kernel = np.exp(-distance / (2 * median if median > 0 else 1.0))
    np.fill_diagonal(kernel, 0)
    chunk = max(1, min(num_resamples, _ENTRIES // num_rows**2))
    weights = jnp.asarray(kernel, jnp.float32)
    value = float(_values(weights, p, targets[None])[0])
    draws = _of_draws(key, weights, p, -(-num_resamples // chunk), chunk)
    # Multiplied by n, the statistic is of order 1, far above the rounding of equal draws.
    p_value = null_draws.p_of_draws(
        value * num_rows, np.asarray(draws, np.float64).reshape(-1)[:num_resamples] * num_rows
    )
    return CalibrationTest(value, p_value)


@functools.partial(jax.jit, static_argnums=2)
def _probabilities(logits: Logits, labels: Labels, kind: str) -> tuple[Array, Labels]:
    view = Predictions(logits, labels)
    if kind == "canonical":
        return view.p, view.labels
    pairs = jnp.stack([view.confidence, 1 - view.confidence], axis=-1)
    return pairs, 1 - view.hit.astype(view.labels.dtype)


@jax.jit
def _distances(p: Float[Array, "rows classes"]) -> Float[Array, "rows rows"]:
    return jax.lax.map(lambda row: jnp.sum(jnp.abs(p - row[None]), axis=-1), p)


@jax.jit
def _values(
    kernel: Float[Array, "rows rows"], p: Float[Array, "rows classes"], labels: Array
) -> Float[Array, " draws"]:
    """Compute the SKCE of each row of labels."""
    num_rows = len(p)
    smoothed = jnp.matmul(kernel, p, precision=jax.lax.Precision.HIGHEST)
    of_p = jnp.sum(smoothed * p, axis=1)

    def value(labels: Array) -> Array:
        equal = jnp.where(labels[:, None] == labels[None], kernel, 0)
        crossed = jnp.take_along_axis(smoothed, labels[:, None], axis=1)[:, 0]
        # Sum by row first: the sums of rows are small, and so are their rounding errors.
        by_row = jnp.sum(equal, axis=1) - 2 * crossed + of_p
        return jnp.sum(by_row)

    return jax.vmap(value)(labels) / (num_rows * (num_rows - 1))


@functools.partial(jax.jit, static_argnums=(3, 4))
def _of_draws(key: Array, kernel: Array, p: Array, num_chunks: int, chunk: int) -> Array:
    below = jnp.cumsum(p, axis=1)[:, :-1]  # the last class takes the rest after rounding

    def of_chunk(_: None, key: Array) -> tuple[None, Array]:
        uniform = jax.random.uniform(key, (chunk, len(p), 1), p.dtype)
        labels = jnp.sum(uniform >= below[None], axis=-1)
        return None, _values(kernel, p, labels)

    return jax.lax.scan(of_chunk, None, jax.random.split(key, num_chunks))[1]
