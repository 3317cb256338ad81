r"""How much of a score would remain after calibration, and how much is miscalibration?

The temperature that minimises the NLL of the other examples is applied to each example. The mean
loss at this temperature is the refinement part, and the rest is the calibration part:

$$\text{refinement} = \frac1n \sum_i \ell_i(b_{-i}), \quad
  \text{calibration} = \frac1n \sum_i \ell_i(1) - \text{refinement}, \quad b = 1 / T .$$

No example is scored by a temperature that was fitted on it, so neither part is too small on
average. The optimum without example i is one Newton step away from the optimum b of all examples,
$b_{-i} = b + g_i / \sum_j h_j$, with the derivatives $g_i$ and $h_i$ of the NLL of example i. To
first order in that step, the refinement is a function of sums over the examples, which stream and
merge. The sums are kept at `INVERSE_TEMPERATURES` and interpolated between them.

Weights are counts, see `core.numerics.counted`; `stat` takes them as they are.

A temperature removes only a part of the miscalibration, so a better calibrator would remove at
least the calibration part. For a calibrated model this part is near 0, and may be negative.

References:
  Berta, Holzmüller, Jordan and Bach, Rethinking early stopping: refine, then calibrate, 2025.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from calib_jax.core.numerics import true_class
from calib_jax.core.statistics import Sums
from calib_jax.core.types import Array, PerExample, Scalar
from calib_jax.metrics.contract import Labels, Logits, Predictions, Weights, metric
from calib_jax.metrics.terms import Columns, ratio

# 1 / T from 1/32 to 8, including 1. Between neighbouring nodes the interpolated NLL is exact to
# 1e-6, and the correction for the left-out example to a few thousandths of the correction.
_STEP = 0.5 * float(np.log(2))
_ONE = 10
INVERSE_TEMPERATURES = tuple(2.0 ** ((index - _ONE) / 2) for index in range(17))

# Of two models that differ by a temperature alone, whose refinement is the same, the values differ
# by .023 / n + 2e-6 at most with 2 to 100 classes and 50 to 20,000 examples, in 1,000 resamples.
_ERROR = 0.05

Nodes = Float[Array, "temperatures"]
Ends = tuple[Scalar, Scalar]


def _row_at(predictions: Predictions, b: Scalar) -> tuple[Array, ...]:
    """Compute the probabilities of every example at 1 / T = b, and the derivatives of its NLL by b.

    Returns:
      p: the probabilities.
      off: logits minus their expectation.
      true_off: the logit of the true class minus the expectation; 0 if the true class has
        probability 0 at every temperature, because such an example does not change the optimum.
      variance: the variance of the logits, the second derivative of the NLL; 0 as for `true_off`.
      loss: the NLL.
    """
    below = predictions.logits - jnp.max(predictions.logits, axis=-1, keepdims=True)
    spread = jnp.exp(b * below)
    total = jnp.sum(spread, axis=-1)
    p = spread / total[..., None]
    possible = jnp.where(p > 0, below, 0)  # a class of probability 0 may have the logit -inf
    expected = jnp.sum(p * possible, axis=-1)
    off = possible - expected[..., None]
    true = true_class(below, predictions.labels)
    fits = true > -jnp.inf
    variance = jnp.where(fits, jnp.sum(p * jnp.square(off), axis=-1), 0)
    loss = jnp.log(total) - b * true
    return p, off, jnp.where(fits, true - expected, 0), variance, loss


def _nll_terms(predictions: Predictions) -> Columns:
    def at(b: Scalar) -> dict[str, PerExample]:
        _, _, true_off, variance, loss = _row_at(predictions, b)
        columns = {"loss": loss, "loss_slope": -true_off, "loss_curvature": variance}
        return columns | {"product": jnp.square(true_off)}

    return _at_every_temperature(predictions, at)


def _brier_terms(predictions: Predictions) -> Columns:
    def at(b: Scalar) -> dict[str, PerExample]:
        p, off, true_off, variance, loss = _row_at(predictions, b)
        true = jnp.exp(-loss)
        squares = jnp.square(p)
        square = jnp.sum(squares, axis=-1)
        of_true = jnp.where(true > 0, true * true_off, 0)
        slope = 2 * (jnp.sum(squares * off, axis=-1) - of_true)
        spread = jnp.sum(p * jnp.square(off), axis=-1)
        curvature = 4 * jnp.sum(squares * jnp.square(off), axis=-1)
        curvature -= 2 * ((square - true) * spread + of_true * true_off)
        columns = {"loss_slope": -true_off, "loss_curvature": variance}
        score = jnp.maximum(square + 1 - 2 * true, 0)
        columns |= {"score": score, "score_slope": slope, "score_curvature": curvature}
        columns |= {"product": -slope * true_off}
        if predictions.stated is not None:  # the score of one class alone
            halved = ("score", "score_slope", "score_curvature", "product")
            columns |= {name: columns[name] / 2 for name in halved}
        return columns

    return _at_every_temperature(predictions, at)


def _at_every_temperature(
    predictions: Predictions, at: Callable[[Scalar], dict[str, PerExample]]
) -> Columns:
    nodes = jnp.asarray(INVERSE_TEMPERATURES, predictions.logits.dtype)
    columns = {name: predictions.if_valid(column) for name, column in lax.map(at, nodes).items()}
    vectors = {name: jnp.moveaxis(column, 0, -1) for name, column in columns.items()}
    return Columns({"weight": jnp.ones(predictions.labels.shape, nodes.dtype), **vectors})


# --------------------------------------------------------------------------------------------
# The parts, from sums as functions of log b, with the derivatives b f' and b f' + b^2 f''.


@functools.partial(jax.jit, static_argnames="score", inline=True)
def _parts(sums: Sums, score: str) -> tuple[Scalar, Scalar]:
    """Compute refinement and calibration of the score whose columns are named `score`."""
    weight = sums["weight"]

    def at_nodes(name: str) -> Nodes:
        return ratio(sums[name], weight)

    def by_log(name: str) -> tuple[Nodes, Nodes]:
        first = b * at_nodes(f"{name}_slope")
        return first, first + jnp.square(b) * at_nodes(f"{name}_curvature")

    b = jnp.asarray(INVERSE_TEMPERATURES, jnp.result_type(float, weight))
    slope, curvature = by_log("loss")
    # The last node with a negative slope, and whether the next one has none.
    negative, last = jnp.sum(slope < 0), len(INVERSE_TEMPERATURES) - 2
    left = jnp.clip(negative - 1, 0, last)
    inside = (negative > 0) & (negative <= last + 1)
    fraction = _root(_ends(slope, left), _ends(curvature, left))
    values = at_nodes(score)
    score_slope, score_curvature = (_ends(part, left) for part in by_log(score))
    optimum = _quintic(_ends(values, left), score_slope, score_curvature, fraction)
    # The optimum without one example is one Newton step away from the optimum of all examples; at
    # an end of the range all optima are equal.
    at_end = jnp.where(slope[0] < 0, values[-1], values[0])
    steps = ratio(_cubic(jnp.square(b) * at_nodes("product"), left, fraction), weight)
    steps = ratio(steps, _cubic(curvature, left, fraction))
    refinement = jnp.where(inside, optimum + steps, at_end)
    missing = jnp.isnan(values[_ONE]) | jnp.isinf(values[_ONE])
    refinement = jnp.where(missing, values[_ONE], refinement)
    return refinement, values[_ONE] - refinement


def _ends(values: Nodes, left: Array) -> Ends:
    return values[left], values[left + 1]


def _root(value: Ends, slope: Ends) -> Scalar:
    """Find the root of the cubic with these values and derivatives at 0 and 1, by bisection."""
    (first, second), (first_slope, second_slope) = value, slope
    zero = 0 * first

    def cubic(t: Scalar) -> Scalar:
        rest = 1 - t
        of_values = rest**2 * (1 + 2 * t) * first + t**2 * (3 - 2 * t) * second
        return of_values + _STEP * t * rest * (rest * first_slope - t * second_slope)

    def halved(_: Any, ends: Ends) -> Ends:
        low, high = ends
        middle = (low + high) / 2
        below = cubic(middle) < 0
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    return implicit_root(cubic, lax.fori_loop(0, 30, halved, (zero, zero + 1))[0])


def _quintic(value: Ends, slope: Ends, curvature: Ends, t: Scalar) -> Scalar:
    """Interpolate between 0 and 1, from the values and two derivatives at both ends."""

    def from_left(t: Scalar, value: Scalar, slope: Scalar, curvature: Scalar) -> Scalar:
        of_slope = _STEP * t * (1 + 3 * t) * slope
        of_curvature = (_STEP * t) ** 2 / 2 * curvature
        return (1 - t) ** 3 * ((1 + 3 * t + 6 * t**2) * value + of_slope + of_curvature)

    (first, second), (first_slope, second_slope) = value, slope
    return from_left(t, first, first_slope, curvature[0]) + from_left(
        1 - t, second, -second_slope, curvature[1]
    )


def _cubic(values: Nodes, left: Array, t: Scalar) -> Scalar:
    """Interpolate by the polynomial through the four nearest nodes."""
    start = jnp.clip(left - 1, 0, len(INVERSE_TEMPERATURES) - 4)
    x = t + (left - start).astype(t.dtype)
    total = jnp.zeros_like(t)
    for node in range(4):
        others = [other for other in range(4) if other != node]
        factors = [(x - other) / (node - other) for other in others]
        total += values[start + node] * factors[0] * factors[1] * factors[2]
    return total


# --------------------------------------------------------------------------------------------
# The metrics.


@metric(_nll_terms, lambda sums: _parts(sums, "loss")[0], interpolation_error=_ERROR)
def refinement_nll(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the mean NLL after the best temperature of the other examples, in nats.

    $$-\frac1n \sum_i \log \operatorname{softmax}(b_{-i} z_i)_{y_i}$$

    It ranks models, and the epochs of a training, by the NLL that they reach once calibrated.
    The temperature lies between 1/8 and 32. `nll` = `refinement_nll` + `calibration_nll`.

    References:
      Berta, Holzmüller, Jordan and Bach, Rethinking early stopping: refine, then calibrate, 2025.

    >>> from calib_jax import metrics
    >>> logits = np.tile([[4.0, 0.0]], (100, 1))  # 98 % sure, and right in 80 %
    >>> labels = (np.arange(100) < 20).astype(int)
    >>> round(float(metrics.nll(logits, labels)), 3)
    0.818
    >>> round(float(metrics.refinement_nll(logits, labels)), 3)  # 0.500 is the entropy of 0.8
    0.510
    """


@metric(_nll_terms, lambda sums: _parts(sums, "loss")[1], interpolation_error=_ERROR)
def calibration_nll(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the part of the NLL that the best temperature of the other examples removes.

    $$\text{nll} - \text{refinement\_nll}$$

    It is negative for about half of all calibrated models, by about 1 / (2 n). It is not clipped,
    so that its mean over data sets has no bias. `inference.compare_metrics` compares two models.

    References:
      Berta, Holzmüller, Jordan and Bach, Rethinking early stopping: refine, then calibrate, 2025.

    >>> from calib_jax import metrics
    >>> logits = np.tile([[4.0, 0.0]], (100, 1))  # 98 % sure, and right in 80 %
    >>> round(float(metrics.calibration_nll(logits, (np.arange(100) < 20).astype(int))), 3)
    0.308
    """


@metric(_brier_terms, lambda sums: _parts(sums, "score")[0], interpolation_error=_ERROR)
def refinement_brier(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the Brier score after the temperature with the best NLL of the other examples.

    $$\frac1n \sum_i \sum_k
      \bigl( \operatorname{softmax}(b_{-i} z_i)_k - [y_i = k] \bigr)^2$$

    `refinement_nll` uses the same temperature: it minimises the NLL, which has one minimum.
    `brier` = `refinement_brier` + `calibration_brier`.

    References:
      Berta, Holzmüller, Jordan and Bach, Rethinking early stopping: refine, then calibrate, 2025.

    >>> from calib_jax import metrics
    >>> logits = np.tile([[4.0, 0.0]], (100, 1))  # 98 % sure, and right in 80 %
    >>> round(float(metrics.refinement_brier(logits, (np.arange(100) < 20).astype(int))), 3)
    0.326
    """


@metric(_brier_terms, lambda sums: _parts(sums, "score")[1], interpolation_error=_ERROR)
def calibration_brier(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the part of the Brier score that the temperature with the best NLL removes.

    $$\text{brier} - \text{refinement\_brier}$$

    Like `calibration_nll`, it may be negative and is not clipped.

    References:
      Berta, Holzmüller, Jordan and Bach, Rethinking early stopping: refine, then calibrate, 2025.

    >>> from calib_jax import metrics
    >>> logits = np.tile([[4.0, 0.0]], (100, 1))  # 98 % sure, and right in 80 %
    >>> round(float(metrics.calibration_brier(logits, (np.arange(100) < 20).astype(int))), 3)
    0.060
    """


def implicit_root(function: Callable[[Array], Array], root: Array) -> Array:
    r"""Return the root of a function, with the derivative of the implicit function theorem.

    The derivative of a bisection by automatic differentiation is 0. The root $t(x)$ of
    $f(t, x) = 0$ has the derivative $-f_x / f_t$.

    Args:
      function: f of t, which closes over x.
      root: the value of t where f is 0, which is returned.

    >>> def square_root(x): return implicit_root(lambda t: t**2 - x, jnp.sqrt(lax.stop_gradient(x)))
    >>> jax.value_and_grad(square_root)(4.0)
    (Array(2., dtype=float32, weak_type=True), Array(0.25, dtype=float32, weak_type=True))
    """
    root = lax.stop_gradient(root)
    value, slope = jax.jvp(function, (root,), (jnp.ones_like(root),))
    slope = lax.stop_gradient(slope)
    step = value / jnp.where(slope == 0, 1, slope)
    return root - (step - lax.stop_gradient(step))
