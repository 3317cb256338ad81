"""Penalties on logits that are far from each other, or from the labels around a pixel."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import jax.numpy as jnp
from jax import lax

from calib_jax.core import arrays, checks
from calib_jax.core.numerics import at_least_float32, of_classes, times, valid
from calib_jax.core.probabilities import cross_entropy_and_view
from calib_jax.core.types import (
    AnyLabels,
    AxisName,
    Labels,
    Logits,
    Numbers,
    PerClass,
    PerExample,
    Weights,
)
from calib_jax.losses.focal import cross_entropy_and_gaps
from calib_jax.losses.objectives import Objective, make_objective, per_example, with_options

REDUCTIONS = ("mean", "sum")


@arrays.takes_logits(soft_labels=True, constants=("margin",))
def margin_smoothing(
    logits: Logits,
    labels: AnyLabels,
    *,
    margin: Numbers = 10.0,
    alpha: Numbers = 0.1,
    class_reduction: str = "mean",
) -> PerExample:
    r"""Compute cross-entropy plus a penalty on logits further than a margin below the largest.

    $$\ell = -\log p_y + \frac{\alpha}{K} \sum_k \max(0, \max_j z_j - z_k - m)$$

    Label smoothing pulls all logits together; the margin limits their distances instead, so the
    penalty is 0 for logits within m of the largest. A class of logit -inf makes it infinite.

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes, or a distribution q over the classes for each example.
      margin: m, at least 0; 0 penalises every distance.
      alpha: the weight of the penalty, at least 0; 0 is cross-entropy.
      class_reduction: "mean" over the classes, as in the released code, whose alpha of 0.1 is the
        published value; "sum", the formula of the paper, which is K times as large.

    Returns:
      One value per example, in float32 or float64.

    References:
      Liu et al. 2022, The Devil is in the Margin: Margin-based Label Smoothing for Network
      Calibration. Zhou et al. 2025, MaxSup: Overcoming Representation Collapse in Label
      Smoothing, whose max z - mean z is the case m = 0 with the mean.

    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.array([[30.0, 0.0]]), jnp.array([0])
    >>> margin_smoothing(logits, labels)                                 # 0.1 (30 - 10) / 2
    Array([1.], dtype=float32)
    """
    checks.one_of("class_reduction", class_reduction, REDUCTIONS)
    losses, gaps = cross_entropy_and_gaps(logits, labels)
    if not (isinstance(margin, float) and margin == 0):  # no gap is negative
        excess = gaps - of_classes(per_example("margin", margin, losses))
        gaps = jnp.where(excess > 0, excess, 0)
    penalty = jnp.sum(gaps, axis=-1)
    if class_reduction == "mean":
        penalty = penalty / logits.shape[-1]
    weight = jnp.asarray(per_example("alpha", alpha, losses), losses.dtype)
    return losses + times(jnp.broadcast_to(weight, losses.shape), penalty)


DISTANCES = ("l1", "l2")


@arrays.takes_logits()
def neighbour_margin_penalty(
    logits: Logits,
    labels: Labels,
    weights: Weights | None = None,
    *,
    kernel_size: int = 3,
    distance: str = "l1",
    axis_name: AxisName = None,
) -> PerExample:
    r"""Compute the distance of each pixel's logits from the label shares of its neighbourhood.

    $$\frac{1}{K} \sum_k |s_k - z_k|, \qquad s_k = \frac{1}{w^d} \sum_{j \in W} 1[y_j = k]$$

    with W the window of w pixels along each of the d spatial axes around the pixel, itself
    included. Pixels outside the image and pixels of weight 0 are in no share, so shares sum to less
    than 1 there. Unlike the softmax, the penalty changes if a constant is added to all
    logits. Add it to a loss with `regularized`.

    Args:
      logits: unnormalised log-probabilities, `[images, *spatial, classes]`.
      labels: the true classes, `[images, *spatial]`, of two or three spatial axes.
      weights: pixels of weight 0 are absent; other weights do not change the shares.
      kernel_size: w, odd.
      distance: "l1", as above; "l2" is the mean of $(s_k - z_k)^2$.
      axis_name: an argument of every penalty; this one does not depend on other images.

    Returns:
      One value per pixel, in float32 or float64.

    References:
      Murugesan et al. 2023, Trust Your Neighbours: Penalty-Based Constraints for Model
      Calibration; the windows are those of MONAI's NACLLoss with its mean filter.

    >>> import jax.numpy as jnp
    >>> labels = jnp.array([[[0, 0], [0, 1]]])                        # s = (3/9, 1/9) everywhere
    >>> neighbour_margin_penalty(jnp.zeros((1, 2, 2, 2)), labels)[0, 0, 0].round(4)
    Array(0.2222, dtype=float32)
    """
    checks.one_of("distance", distance, DISTANCES)
    if kernel_size % 2 == 0:
        raise ValueError(
            f"kernel_size must be odd, got {kernel_size}: a window has a middle pixel."
        )
    spatial = labels.shape[1:]
    if len(spatial) not in (2, 3):
        raise ValueError(
            "neighbour_margin needs labels of shape [images, height, width], or with a depth, got"
            f" {labels.shape}: give the pixels their axes."
        )
    rows = at_least_float32(logits)
    gap = _shares(labels, weights, kernel_size, rows) - rows
    size = jnp.abs(gap) if distance == "l1" else jnp.square(gap)
    return jnp.where(valid(labels, rows.shape[-1]), jnp.mean(size, axis=-1), jnp.nan)


def _shares(labels: Labels, weights: Weights | None, kernel_size: int, like: PerClass) -> PerClass:
    """Compute the share of each class in the window around each pixel."""
    # A CPU compares floats in vectors, unlike integers; classes up to 2^24 are exact.
    places = labels.astype(like.dtype)
    if weights is not None:
        places = jnp.where(weights == 0, -1, places)
    reach, dims = kernel_size // 2, labels.ndim - 1
    places = jnp.pad(places, ((0, 0), *((reach, reach),) * dims), constant_values=-1)
    classes = lax.broadcasted_iota(like.dtype, like.shape, like.ndim - 1)
    counts = jnp.zeros_like(like)
    for start in itertools.product(range(kernel_size), repeat=dims):
        end = (len(labels), *map(operator.add, start, labels.shape[1:]))
        neighbour = lax.slice(places, (0, *start), end)
        counts += (neighbour[..., None] == classes).astype(like.dtype)
    return counts / kernel_size**dims


def neighbour_margin(
    *, alpha: Numbers = 0.1, kernel_size: int = 3, distance: str = "l1"
) -> Objective:
    """Cross-entropy plus `alpha` times the distance from the label shares, for dense labels."""
    penalty = with_options(neighbour_margin_penalty, kernel_size=kernel_size, distance=distance)

    def value(_: Any, logits: Logits, labels: Labels, weights: Weights | None) -> PerExample:
        losses, view = cross_entropy_and_view(logits, labels)
        extra = penalty(view.logits, labels, weights)
        return losses + per_example("alpha", alpha, losses) * extra

    return make_objective(value)
