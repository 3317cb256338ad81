r"""Calibration errors without bins: from running sums, or smoothed by a kernel."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.fft import dct, idct
from jax.scipy.special import gammaln
from jaxtyping import Float, Integer

from calib_jax.core import checks
from calib_jax.core.numerics import is_true_class, log_probabilities, true_class
from calib_jax.core.statistics import Rows, Sums
from calib_jax.core.types import Array, Number, Scalar, Vector
from calib_jax.metrics.bins import confidences
from calib_jax.metrics.contract import Labels, Logits, Predictions, Weights, metric
from calib_jax.metrics.refinement import implicit_root
from calib_jax.metrics.terms import Columns, Kept, Ranked, points, ratio


def _path(ranked: Ranked) -> Vector:
    """Compute the running sums of confidence - hit, from 0 on, divided by the total weight."""
    mass, gap = points(ranked, 1, ranked.score - ranked["hit"], from_top=False)
    return ratio(gap, mass[-1])


@metric(confidences, lambda ranked: jnp.max(jnp.abs(_path(ranked))), biased=True)
def ks_error(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    excluded_class: int | None = None,
) -> Scalar:
    r"""Compute the Kolmogorov-Smirnov calibration error of the top label.

    $$\max_\sigma \frac1n \Bigl| \sum_{i : c_i \le \sigma} (c_i - [\hat y_i = y_i]) \Bigr|$$

    The error needs no bins. If a model is overconfident everywhere, or underconfident everywhere,
    the error is the gap between mean confidence and accuracy. Over- and underconfidence at
    different confidences partly cancel, so the error is at most the ECE with one bin per distinct
    confidence.

    Args:
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Gupta et al., Calibration of neural networks using splines, ICLR 2021.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    >>> metrics.ks_error(logits, jnp.array([0, 1, 1]))
    Array(0.1333, dtype=float32)
    """


@ks_error.variant(biased=True)
def ecce(ranked: Ranked) -> Scalar:
    r"""Compute the range of the cumulative differences of confidences and hits (ECCE-R).

    $$\max_{s < t} \frac1n \Bigl| \sum_{i : s < c_i \le t} (c_i - [\hat y_i = y_i]) \Bigr|$$

    This is the largest error of an interval of confidences, weighted by the share of its examples:
    the cutoff calibration error, so `cutoff_error` is the same metric. It needs no bins, and
    $\mathrm{ks\_error} \le \mathrm{ecce} \le 2 \, \mathrm{ks\_error}$.
    `inference.calibration_test("kuiper", ...)` tests it.

    Args:
      excluded_class: a class whose probability is set to 0, so that it is never predicted.

    References:
      Arrieta-Ibarra et al., Metrics of calibration for probabilistic predictions, JMLR 2022.
      Rossellini et al., Can a calibration metric be both testable and actionable?, 2025.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]]))
    >>> metrics.ecce(logits, jnp.array([0, 1, 1]))
    Array(0.2667, dtype=float32)
    """
    return jnp.ptp(_path(ranked))


cutoff_error = ecce  # the name in Rossellini et al.


_NUM_NODES = 1024


def _gaps_between_nodes(predictions: Predictions, *, excluded_class: int | None = None) -> Columns:
    """Sum the gaps between neighbouring nodes, and the share of each gap for the upper node.

    The nodes are the centres of the cells, so half a cell lies below the first node and half a
    cell above the last.
    """
    gap = predictions.confidence - predictions.hit
    place = predictions.confidence * _NUM_NODES + 0.5
    below = jnp.clip(jnp.nan_to_num(jnp.floor(place)), 0, _NUM_NODES)
    above = gap * (place - below)
    return Columns({"gap": gap, "above": above}, below.astype(jnp.int32), _NUM_NODES + 1)


def _gaps_at_nodes(sums: Sums) -> Vector:
    """Split each gap between its two nearest nodes; beyond the ends, use the end node."""
    above = jnp.asarray(sums["above"])
    below = jnp.asarray(sums["gap"]) - above
    nodes = below[1:] + above[:-1]
    return nodes.at[0].add(below[0]).at[-1].add(above[-1])


def _smooth_ece(sums: Sums) -> Scalar:
    weight = jnp.sum(sums["weight"])
    nodes = ratio(_gaps_at_nodes(sums), weight)
    # A Gaussian reflected at both ends multiplies the k-th coefficient of the cosine transform by
    # exp(-(k pi sigma)^2 / 2), all reflections included. Each bandwidth takes one transform.
    cosines = dct(nodes, norm="ortho")
    decay = -0.5 * jnp.square(jnp.pi * jnp.arange(_NUM_NODES, dtype=nodes.dtype))

    def excess(sigma: Scalar) -> Scalar:
        smoothed = idct(cosines * jnp.exp(decay * jnp.square(sigma)), norm="ortho")
        return jnp.sum(jnp.abs(smoothed)) - sigma

    def halve(_: Any, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        sigma = (low + high) / 2
        larger = excess(sigma) > 0
        return jnp.where(larger, sigma, low), jnp.where(larger, high, sigma)

    zero = jnp.zeros((), nodes.dtype)
    digits = jnp.finfo(nodes.dtype).nmant + 1
    low, _ = lax.fori_loop(0, digits, halve, (zero, zero + 1))
    return implicit_root(excess, low) + 0 * jnp.sum(nodes)  # propagate NaN


@metric(_gaps_between_nodes, _smooth_ece, biased=True)
def smooth_ece(logits: Logits, labels: Labels = None, weights: Weights = None) -> Scalar:
    r"""Compute the smooth ECE: the ECE of gaps smoothed by a Gaussian as wide as the error.

    $$\mathrm{smECE}_\sigma = \int_0^1 \Bigl| \frac1n \sum_i
      K_\sigma(t, c_i) \, (c_i - [\hat y_i = y_i]) \Bigr| \, dt$$

    with the Gaussian kernel $K_\sigma$ reflected at 0 and 1. $\mathrm{smECE}_\sigma$ decreases with
    the bandwidth, and the value is the fixed point $\sigma = \mathrm{smECE}_\sigma$. A small
    error is thus measured at a fine resolution and a large one at a coarse resolution, without a
    bandwidth to choose. Unlike a binned error, it changes little when confidences change little.

    The gaps are summed on a fine grid, so that the statistic merges like sums per bin. Each gap is
    split between its two nearest nodes, which changes the value by at most about
    $(M \sigma)^{-2} / 8$ times the mean of $|c_i - [\hat y_i = y_i]|$ with M = 1,024 nodes, and
    usually by far less.

    References:
      Błasiok and Nakkiran, Smooth ECE: principled reliability diagrams via kernel smoothing,
      ICLR 2024.

    >>> from calib_jax import metrics
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]))
    >>> metrics.smooth_ece(logits, jnp.array([0, 1, 1]))
    Array(0.2169, dtype=float32)
    """


_KINDS = ("canonical", "marginal", "top_label")
_LOG_ZERO = -1e30  # stays finite times any shape, and makes the kernel 0
_BLOCK_ENTRIES = 2**22  # entries of the rows x rows kernel per block


def _log_p(predictions: Predictions, *, kind: str = "canonical") -> Kept:
    checks.one_of("kind", kind, _KINDS)
    log_p, log_rest = log_probabilities(predictions.logits)
    columns = {"log_p": log_p} if kind == "canonical" else {"log_p": log_p, "log_rest": log_rest}
    label = predictions.labels
    if kind == "top_label":
        # Keep only the predicted class: label 0 where it is the true class, else 1, no class.
        top = predictions.predicted
        columns = {name: true_class(column, top)[..., None] for name, column in columns.items()}
        label = jnp.where(top == label, 0, 1)
    valid = predictions.valid[..., None]
    columns = {name: jnp.where(valid, column, jnp.nan) for name, column in columns.items()}
    return Kept({**columns, "label": label})


def _kde_calibration_error(
    rows: Rows, *, kind: str = "canonical", bandwidth: float = 0.1, p: float = 1.0
) -> Scalar:
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


@metric(_log_p, _kde_calibration_error, biased=True)
def kde_calibration_error(
    logits: Logits,
    labels: Labels = None,
    weights: Weights = None,
    *,
    kind: str = "canonical",
    bandwidth: float = 0.1,
    p: float = 1.0,
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


def _of_neighbours(log_points: Array, targets: Array, weight: Vector, bandwidth: Number) -> Array:
    """Average the targets of all other points at each point, weighted by the kernel.

    Args:
      log_points: `[rows, classes]`.
      targets: `[rows, targets]`; the averages have the same shape.
      weight: `[rows]`.
      bandwidth: h.
    """
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
