r"""MMCE: a trainable calibration error, the norm of an embedding in a kernel space.

Every variant is a bilinear form $\sum_{ij} x_i x_j k(c_i, c_j)$ with the Laplacian kernel on
confidences. Since $e^{-|a-b|/w} = e^{-a/w} e^{b/w}$ for $b \le a$, and confidences lie in
[0, 1], the form needs a sort and one running sum instead of all pairs of examples.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Integer

from calib_jax.core import arrays
from calib_jax.core.numerics import counted, times, weigh
from calib_jax.core.probabilities import TopLabel, cross_entropy_and_top_label
from calib_jax.core.statistics import gather
from calib_jax.core.types import Array, AxisName, Labels, Logits, Number, Numbers, Scalar, Weights
from calib_jax.losses.focal import constant_in_gradient, with_top_label_penalty
from calib_jax.losses.objectives import Objective, make_objective


@arrays.takes_logits()
def mmce_penalty(
    logits: Logits,
    labels: Labels,
    weights: Weights | None = None,
    *,
    bandwidth: Number = 0.4,
    axis_name: AxisName = None,
) -> Scalar:
    r"""Compute the squared maximum mean calibration error of a batch.

    $$\frac{1}{N^2} \sum_{i,j} e_i e_j \, k(c_i, c_j), \qquad
      e_i = 1[\hat y_i = y_i] - c_i, \quad k(a, b) = e^{-|a - b| / 0.4}$$

    with $c$ the top-label confidence. It is one value for the whole batch: add it to a loss with
    `regularized`. Gradients flow through c, not through correctness.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      weights: the weight of each example; weight k equals k copies.
      bandwidth: the kernel's width.
      axis_name: a device axis, over which the examples are gathered; every device returns the
        value of the global batch.

    Returns:
      A scalar, 0 for an empty batch.

    References:
      Kumar et al. 2018, Trainable Calibration Measures for Neural Networks from Kernel Mean
      Embeddings. The papers implemented here train it without the square root.

    >>> import jax.numpy as jnp
    >>> mmce_penalty(jnp.zeros((2, 2)), jnp.array([0, 1]))     # e = (1/2, -1/2), k = 1
    Array(0., dtype=float32)
    """
    top = cross_entropy_and_top_label(logits, labels)
    return _mmce(top, weights, axis_name, bandwidth)


def _mmce(top: TopLabel, weights: Weights | None, axis_name: AxisName, bandwidth: Number) -> Scalar:
    confidence, hit, weight = gathered(top, weights, axis_name)
    count = jnp.maximum(jnp.sum(weight), 1e-30)
    error = weigh(hit - confidence, weight) / count
    return _squared_norm(_kernel_gram(confidence, error[:, None], bandwidth))


@arrays.takes_logits()
def mmce_weighted_penalty(
    logits: Logits,
    labels: Labels,
    weights: Weights | None = None,
    *,
    bandwidth: Number = 0.4,
    double_normalization: bool = False,
    axis_name: AxisName = None,
) -> Scalar:
    r"""Compute the weighted MMCE, in which right and wrong predictions have equal weight.

    With $S_{11}, S_{00}, S_{10}$ the sums of $(1-c_i)(1-c_j)k$ over the m right predictions, of
    $c_i c_j k$ over the n wrong predictions, and of $(1-c_i) c_j k$ across, and the kernel k of
    `mmce_penalty` between $c_i$ and $c_j$,

    $$\sqrt{\frac{S_{11}}{m^2} + \frac{S_{00}}{n^2} - \frac{2 S_{10}}{mn} + 10^{-10}}$$

    It is 0, with zero gradient, when all predictions are right or all are wrong.

    Args:
      logits, labels, weights, bandwidth, axis_name: as in `mmce_penalty`.
      double_normalization: divide by $m^2 (m^2 + 10^{-5})$ and so on, as the released code does
        by taking means and dividing again; the value then shrinks with the batch like 1/m.

    Returns:
      A scalar.

    References:
      Kumar et al. 2018, section 4.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.8, 0.2], [0.8, 0.2]]))
    >>> mmce_weighted_penalty(logits, jnp.array([0, 1])).round(4)    # |0.2 - 0.8|
    Array(0.6, dtype=float32)
    """
    top = cross_entropy_and_top_label(logits, labels)
    return _mmce_weighted(top, weights, axis_name, bandwidth, double_normalization)


def _mmce_weighted(
    top: TopLabel,
    weights: Weights | None,
    axis_name: AxisName,
    bandwidth: Number,
    double_normalization: bool,
) -> Scalar:
    confidence, hit, weight = gathered(top, weights, axis_name)
    sides = jnp.stack([hit, 1 - hit], axis=1)
    counts = jnp.sum(weight[:, None] * sides, axis=0)
    both = ~jnp.any(counts == 0)  # propagates the NaN of a label out of range
    counts = jnp.where(both, counts, 1)

    distance = jnp.stack([1 - confidence, -confidence], axis=1)
    shares = weight[:, None] * sides * distance / counts[None]
    gram = _kernel_gram(confidence, shares, bandwidth)
    if double_normalization:
        gram = gram / (counts[:, None] * counts[None, :] + 1e-5)
    # If one side is missing, take the root of a constant: its slope is finite, its gradient 0.
    return jnp.where(both, jnp.sqrt(jnp.where(both, _squared_norm(gram), 1.0) + 1e-10), 0.0)


def gathered(
    top: TopLabel, weights: Weights | None, axis_name: AxisName
) -> tuple[Array, Array, Array]:
    """Gather the confidence, hit and weight of the examples of all devices."""
    weight = weigh(jnp.ones_like(top.hit), weights)
    rows = (top.confidence.reshape(-1), top.hit.reshape(-1), weight.reshape(-1))
    confidence, hit, weight = gather(rows, axis_name)
    return confidence, hit, weight if weights is None else counted(weight)


def _kernel_gram(confidence: Array, columns: Array, bandwidth: Number) -> Array:
    r"""Compute $G_{ab} = \sum_{ij} x_{ia} x_{jb} e^{-|c_i - c_j| / w}$, of many rows by a sort.

    Examples of equal confidence are summed first: the kernel between them is 1 with slope 0, so
    the gradient does not depend on the order of the rows. From one confidence to the next the
    running sum is multiplied by $e^{-(c_g - c_{g-1})/w}$, which is at most 1 for any bandwidth.
    """
    if not len(confidence):
        return jnp.zeros((columns.shape[1],) * 2, columns.dtype)
    if few(confidence):
        kernel = jnp.exp(-jnp.abs(confidence[:, None] - confidence[None]) / bandwidth)
        across = jnp.einsum("ij,jb->ib", kernel, columns, precision=lax.Precision.HIGHEST)
        return jnp.einsum("ia,ib->ab", columns, across, precision=lax.Precision.HIGHEST)
    place = lax.stop_gradient(confidence)
    places, group = ranked(place)

    def grouped(factor: Array) -> Float[Array, "rows columns"]:
        return jax.ops.segment_sum(factor[:, None] * columns, group, len(group))

    def product(
        a: Float[Array, "rows columns"], b: Float[Array, "rows columns"]
    ) -> Float[Array, "columns columns"]:
        return jnp.einsum("ga,gb->ab", a, b, precision=lax.Precision.HIGHEST)

    # The places are constants; the offset of a confidence is 0 and has slope 1.
    moved = (confidence - place) / bandwidth
    equal = grouped(jnp.ones_like(confidence))
    rising, falling = grouped(jnp.exp(moved)), grouped(jnp.exp(-moved))
    below = _faded_sums(-jnp.diff(places)[:, None] / bandwidth, rising[:-1])
    across = product(falling[1:], below)
    return product(equal, equal) + across + across.T


def few(rows: Array) -> bool:
    """Check whether all pairs of rows cost less than a sort, which accelerators do slowly.

    A CPU always sorts: its compiler may compute a confidence twice, by other instructions, and then
    a narrow kernel takes equal confidences apart.
    """
    return jax.default_backend() != "cpu" and len(rows) <= 2048


def ordered_bits(values: Float[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """Read the bits of values that are not negative as integers, which have the same order.

    A CPU sorts them in a fifth of the time that it needs for the values.
    """
    return lax.bitcast_convert_type(values, f"int{jnp.finfo(values.dtype).bits}")


def ranked(values: Array) -> tuple[Array, Integer[Array, " rows"]]:
    """Sort values that are not negative, and find where the value of each row comes first."""
    bits = ordered_bits(values)
    ascending = jnp.sort(bits)
    first = jnp.searchsorted(ascending, bits, method="scan_unrolled")
    return lax.bitcast_convert_type(ascending, values.dtype), first


def _squared_norm(gram: Array) -> Scalar:
    """Compute the squared norm of the sum of the columns, which only rounding makes negative.

    A network with one confidence of 1/2 everywhere has a weighted MMCE of 0; in float32 its square
    was -3e-8, whose root is NaN.
    """
    total = jnp.sum(gram)
    return jnp.where(total < 0, 0, total)


@jax.jit  # outside `jit` every level of the scan would be compiled separately
def _faded_sums(log_fading: Array, values: Array) -> Array:
    """Compute a running sum that adds a value at each step and is then multiplied by a factor.

    The factors of neighbouring confidences are so near 1 that the rounding of their product over
    many rows changes the bandwidth: their logarithms are added.
    """

    def joined(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        return first[0] + second[0], jnp.exp(second[0]) * first[1] + second[1]

    return lax.associative_scan(joined, (log_fading, jnp.exp(log_fading) * values))[1]


def mmce(*, scale: Numbers = 2.0, bandwidth: Number = 0.4) -> Objective:
    """Cross-entropy plus `scale` times the squared MMCE (MMCE_m)."""
    return with_top_label_penalty(functools.partial(_mmce, bandwidth=bandwidth), scale)


def mmce_weighted(
    *, scale: Numbers = 2.0, bandwidth: Number = 0.4, double_normalization: bool = False
) -> Objective:
    """Cross-entropy plus `scale` times the weighted MMCE (MMCE_w)."""
    options: dict[str, Any] = {"bandwidth": bandwidth, "double_normalization": double_normalization}
    return with_top_label_penalty(functools.partial(_mmce_weighted, **options), scale)


def mmce_gra(*, bandwidth: Number = 0.4) -> Objective:
    """Cross-entropy times the batch's squared MMCE, which is a constant in the backward pass."""

    def value(_: Any, logits: Logits, labels: Labels, weights: Any, *, axis_name: Any) -> Array:
        top = cross_entropy_and_top_label(logits, labels)
        constant = constant_in_gradient(top)
        weight = _mmce(constant, weights, axis_name, bandwidth)
        return times(jnp.broadcast_to(weight, top.loss.shape), top.loss)

    return make_objective(value)


@arrays.takes_logits()
def esd_penalty(
    logits: Logits, labels: Labels, weights: Weights | None = None, *, axis_name: AxisName = None
) -> Scalar:
    r"""Compute the expected squared difference of confidence and accuracy, without bias.

    $$\frac{1}{N} \sum_i \frac{1}{(N-1)(N-2)} \sum_{j \ne k; \; j, k \ne i}
      e_j e_k \, 1[c_j \le c_i] \, 1[c_k \le c_i], \qquad e_i = 1[\hat y_i = y_i] - c_i$$

    with $c$ the top-label confidence. Each term estimates the square of the mean of e over the
    confidences up to $c_i$. It is one value for the whole batch, and may be negative: add it to a
    loss with `regularized`. Gradients flow through e, not through the order of the confidences.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      weights: the weight of each example; weight k equals k copies.
      axis_name: a device axis, over which the examples are gathered; every device returns the
        value of the global batch.

    Returns:
      A scalar, 0 unless the weights sum to more than 2.

    References:
      Yoon et al. 2023, ESD: Expected Squared Difference as a Tuning-Free Trainable Calibration
      Measure.

    >>> import jax.numpy as jnp
    >>> logits = jnp.log(jnp.array([[0.75, 0.25]] * 3))
    >>> esd_penalty(logits, jnp.array([1, 1, 1])).round(4)            # e = -0.75 for each
    Array(0.5625, dtype=float32)
    """
    return _esd_of(cross_entropy_and_top_label(logits, labels), weights, axis_name)


def _esd_of(top: TopLabel, weights: Weights | None, axis_name: AxisName) -> Scalar:
    confidence, hit, weight = gathered(top, weights, axis_name)
    error = jnp.where(weight == 0, 0, hit - confidence)
    # Many confidences round to 1; the odds against the prediction still order them.
    place = -ordered_bits(gather(top.odds_against.reshape(-1), axis_name))
    if few(place):
        at_most = (place[None] <= place[:, None]).astype(error.dtype)
    else:
        group = jnp.searchsorted(jnp.sort(place), place, method="scan_unrolled")

    def up_to(values: Array) -> Array:
        """Sum, for each row, the values of the rows whose confidence is at most its own."""
        if few(place):
            return jnp.dot(at_most, values, precision=lax.Precision.HIGHEST)
        return jnp.cumsum(jax.ops.segment_sum(values, group, len(group)))[group]

    below = up_to(weight * error) - error
    squares = up_to(weight * jnp.square(error)) - jnp.square(error)
    count = jnp.sum(weight)
    terms = jnp.sum(weight * (jnp.square(below) - squares))
    enough = ~(count <= 2)  # propagates the NaN of a label out of range
    n = jnp.where(enough, count, 3)
    return jnp.where(enough, terms / (n * (n - 1) * (n - 2)), 0)


def esd(*, scale: Numbers = 1.0) -> Objective:
    """Cross-entropy plus `scale` times ESD."""
    return with_top_label_penalty(_esd_of, scale)
