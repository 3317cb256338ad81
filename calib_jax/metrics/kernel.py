r"""Calibration error without bins, from a kernel estimate of the label frequencies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import gammaln
from jaxtyping import Float, Integer

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import is_true_class, log_probabilities, true_class
from calib_jax.core.statistics import Rows
from calib_jax.core.types import Array, Number, Scalar, Vector
from calib_jax.metrics.contract.metric import metric, ratio
from calib_jax.metrics.contract.predictions import Predictions
from calib_jax.metrics.contract.terms import Unreduced

_KINDS = ("canonical", "marginal", "top_label")
_LOG_ZERO = -1e30  # stays finite times any shape, and makes the kernel 0
_BLOCK_ENTRIES = 2**22  # entries of the rows x rows kernel per block


def _log_p(predictions: Predictions, *, kind: str = "canonical") -> Unreduced:
    checks.one_of("kind", kind, _KINDS)
    valid = predictions.valid[..., None]
    log_p, log_rest = (
        jnp.where(valid, column, jnp.nan) for column in log_probabilities(predictions.logits)
    )
    if kind == "canonical":
        return Unreduced({"log_p": log_p}, predictions.labels)
    if kind == "marginal":
        return Unreduced({"log_p": log_p, "log_rest": log_rest}, predictions.labels)
    # Keep only the predicted class: label 0 where it is the true class, else 1, which is no class.
    predicted = predictions.predicted
    top = {
        name: true_class(column, predicted)[..., None]
        for name, column in (("log_p", log_p), ("log_rest", log_rest))
    }
    return Unreduced(top, jnp.where(predicted == predictions.labels, 0, 1))


@metric(_log_p, biased=True)
def kde_calibration_error(
    rows: Rows, *, kind: str = "canonical", bandwidth: float = 0.1, p: float = 1.0
) -> Scalar:
    r"""Compute the calibration error by kernel density estimation.

    $$\frac1n \sum_i \| \hat\pi(f_i) - f_i \|_p^p, \quad
      \hat\pi(f_i) = \frac{\sum_{j \ne i} k(f_i; f_j) \, y_j}{\sum_{j \ne i} k(f_i; f_j)}$$

    with probabilities f, one-hot labels y and the density $k(\cdot; f_j)$ of the Dirichlet
    distribution with parameters $f_j / h + 1$. An example is not its own neighbour: an example of
    weight w has the weight max(w - 1, 0) in its own estimate, like w copies. The value is NaN if
    there is no neighbour.

    It compares all pairs: $O(n^2)$ in time (times the classes), a few rows at a time in memory.
    It is differentiable with respect to the logits, so it can serve as a penalty.

    Args:
      rows: the logarithms of the probabilities.
      kind: "canonical": all classes jointly, as above; "marginal": each class's probability
        $f_k$ against its occurrence, as pairs $(f_k, 1 - f_k)$ (a Beta density), with the errors
        summed over the classes; "top_label": the confidence against the hit, in the same way.
      bandwidth: h; smaller values weight near neighbours more.
      p: the exponent of the error; the value is not raised to the power 1/p.

    References:
      Popordanoska, Sayer and Blaschko, A consistent and differentiable Lp canonical calibration
      error estimator, NeurIPS 2022.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    >>> metrics.kde_calibration_error(logits, jnp.array([0, 0, 0]))
    Array(0.6, dtype=float32)
    """
    checks.one_of("kind", kind, _KINDS)
    checks.above("bandwidth", bandwidth, 0)
    checks.at_least("p", p, 1)
    weight = rows["weight"]

    def present_or_minus_1(name: str) -> Float[Array, "rows columns"]:
        # Rows of weight 0 enter the kernel too, so they must not be NaN.
        return jnp.where(weight[:, None] > 0, rows[name], -1)

    log_p = present_or_minus_1("log_p")
    targets = is_true_class(rows["label"], log_p.shape[-1]).astype(log_p.dtype)
    if kind == "canonical":
        estimate = _of_neighbours(log_p, targets, weight, bandwidth)
    else:

        def of_class(pair_and_label: tuple[Array, Array]) -> Vector:
            pair, occurs = pair_and_label
            return _of_neighbours(pair, occurs[:, None], weight, bandwidth)[:, 0]

        pairs = jnp.stack([log_p.T, present_or_minus_1("log_rest").T], axis=-1)
        estimate = lax.map(of_class, (pairs, targets.T)).T
    errors = jnp.sum(jnp.abs(estimate - jnp.exp(log_p)) ** p, axis=-1)
    counted = jnp.where(weight > 0, weight * errors, 0)
    return ratio(jnp.sum(counted), jnp.sum(weight))


def _of_neighbours(
    log_points: Float[Array, "rows classes"],
    targets: Float[Array, "rows targets"],
    weight: Vector,
    bandwidth: Number,
) -> Float[Array, "rows targets"]:
    """Average the targets of all other points at each point, weighted by the kernel."""
    shape = jnp.exp(log_points) / bandwidth
    log_norm = jnp.sum(gammaln(shape + 1), axis=-1) - gammaln(jnp.sum(shape + 1, axis=-1))
    num_rows = weight.shape[0]

    def at(point: tuple[Float[Array, " classes"], Integer[Array, ""]]) -> Float[Array, " targets"]:
        log_x, row = point
        exact = lax.Precision.HIGHEST
        # Clip log 0, so that a probability of 0 to the power 0 is 1 and not NaN from 0 x inf.
        log_x = jnp.maximum(log_x, _LOG_ZERO)
        log_kernel = jnp.matmul(shape, log_x, precision=exact) - log_norm
        others = weight - (jnp.arange(num_rows) == row).astype(weight.dtype)
        present = others > 0
        log_mass = log_kernel + jnp.log(jnp.where(present, others, 1))
        share = jax.nn.softmax(jnp.where(present, log_mass, -jnp.inf))
        return jnp.matmul(share, targets, precision=exact)

    block = max(1, min(num_rows, _BLOCK_ENTRIES // num_rows))
    return lax.map(at, (log_points, jnp.arange(num_rows)), batch_size=block)
