"""Losses that need the class counts of the training set: class weights, margins, priors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core import checks
from calib_jax.core.arrays import as_numbers
from calib_jax.core.numerics import add_to_true_class, at_least_float32, of_classes, tempered
from calib_jax.core.types import AnyLabels, Array, Labels, Logits, Number, Numbers, PerExample
from calib_jax.losses import objectives
from calib_jax.losses.focal import of_true_class, unchecked_cross_entropy, weigh_classes
from calib_jax.losses.objectives import Objective, make_objective, per_example

BALANCINGS = ("effective", "inverse", "median")


class ClassWeightsState(NamedTuple):
    """The constant weight of each class."""

    weights: Float[Array, " classes"]


def class_weights(
    class_counts: Any, *, balancing: str = "effective", volume: Number = 10_000.0
) -> Float[Array, " classes"]:
    r"""Compute the weight of each class from the number of its training examples.

    $$w_k \propto \frac{1}{1 - \beta^{n_k}} \;\text{(effective)}, \qquad
      w_k \propto \frac{1}{n_k} \;\text{(inverse)}, \qquad
      w_k = \frac{\mathrm{median}(n)}{n_k} \;\text{(median)}$$

    with $\beta = (N - 1) / N$. The first two have mean 1 over the classes that have examples, and
    a class without examples has weight 0.

    Args:
      class_counts: $n_k$, the number of training examples of each class.
      balancing: "effective", "inverse" or "median".
      volume: N, the number of distinct examples that a class can have; 1 gives every class the
        same weight, and larger values approach "inverse". The total of the counts gives the
        balanced cross-entropy in the released code of Tian et al. 2021.

    References:
      Cui et al. 2019, Class-Balanced Loss Based on Effective Number of Samples, equation 2.
      Eigen and Fergus 2015, Predicting Depth, Surface Normals and Semantic Labels, for "median".

    >>> class_weights([90, 10], balancing="inverse").round(4)
    Array([0.2, 1.8], dtype=float32)
    """
    checks.one_of("balancing", balancing, BALANCINGS)
    counts = jnp.asarray(as_numbers("class_weights", "class_counts", class_counts), float)
    checks.at_least("class_counts", counts, 0)
    present = counts > 0
    divisor = jnp.where(present, counts, 1)
    if balancing == "median":
        return jnp.where(present, jnp.nanmedian(jnp.where(present, counts, jnp.nan)) / divisor, 0)
    if balancing == "effective":
        divisor = -jnp.expm1(divisor * jnp.log1p(-1 / jnp.asarray(volume, float)))
    weights = jnp.where(present, 1 / divisor, 0)
    return weights * jnp.sum(present, dtype=weights.dtype) / jnp.sum(weights)


def class_weighted(
    *, balancing: str = "effective", volume: Number = 10_000.0, normalized: bool = False
) -> Objective:
    r"""Cross-entropy times the weight of the true class, $\ell = -w_y \log p_y$.

    `init` needs the class counts.

    Args:
      balancing, volume: as in `class_weights`.
      normalized: divide the weights by their mean over the batch, as the released code of Tian et
        al. 2021 does; the mean of the terms is then a weighted mean of cross-entropy.

    References:
      Cui et al. 2019, Class-Balanced Loss Based on Effective Number of Samples.
    """
    checks.one_of("balancing", balancing, BALANCINGS)

    def init(num_classes: int, class_counts: Any = None) -> ClassWeightsState:
        counts = objectives.needed_counts("class_weighted", num_classes, class_counts)
        return ClassWeightsState(class_weights(counts, balancing=balancing, volume=volume))

    def value(state: Any, logits: Logits, labels: Labels, weights: Any, *, axis_name: Any) -> Array:
        each = state.weights
        return weigh_classes(each, logits, labels, weights, axis_name, normalized=normalized)

    return make_objective(value, init=init)


class LDAMState(NamedTuple):
    """The constant margin of each class."""

    margins: Float[Array, " classes"]


def ldam(*, max_margin: Number = 0.5, scale: Numbers = 30.0) -> Objective:
    r"""Cross-entropy of the logits $s (z_k - \Delta_y [k = y])$ with a margin for the true class.

    $$\Delta_j = C / n_j^{1/4}$$

    where $n_j$ is the number of training examples of class j, and C makes the largest margin
    `max_margin`. The formula is infinite for a class without examples, whose margin is set to
    `max_margin` here. `init` needs the class counts.

    Args:
      max_margin: the margin of the rarest class.
      scale: s; 30 is meant for logits that are cosines, from -1 to 1. With s = 1 and without
        a margin the loss is cross-entropy.

    References:
      Cao et al. 2019, Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss,
      equation 13; scale and largest margin as in their released code.
    """

    def init(num_classes: int, class_counts: Any = None) -> LDAMState:
        counts = objectives.needed_counts("ldam", num_classes, class_counts)
        rarest = jnp.min(jnp.where(counts > 0, counts, jnp.inf))
        return LDAMState(max_margin * (rarest / jnp.maximum(counts, rarest)) ** 0.25)

    def value(state: LDAMState, logits: Logits, labels: Labels) -> PerExample:
        objectives.classes_of_state(len(state.margins), logits)
        logits = tempered(logits, 1)  # the scaled difference of large logits would not be exact
        margins = of_true_class(state.margins, labels).astype(logits.dtype)
        scales = of_classes(per_example("scale", scale, logits[..., 0]))
        logits = scales * add_to_true_class(logits, labels, -margins)
        return unchecked_cross_entropy(logits, labels)

    return make_objective(value, init=init)


class LogitAdjustedState(NamedTuple):
    """The log of each class's share of the training set; -inf for a class without examples."""

    log_prior: Float[Array, " classes"]


def logit_adjusted(*, tau: Numbers = 1.0) -> Objective:
    r"""Cross-entropy of the logits $z_k + \tau \log \pi_k$, $\pi_k$ being the share of class k.

    The network learns the logits without the prior, so its predictions are balanced. `init` needs
    the class counts.

    Args:
      tau: 0 is cross-entropy; with 1 the optimum has the smallest balanced error.

    References:
      Menon et al. 2021, Long-Tail Learning via Logit Adjustment, equation 10.
    """

    def init(num_classes: int, class_counts: Any = None) -> LogitAdjustedState:
        counts = objectives.needed_counts("logit_adjusted", num_classes, class_counts)
        return LogitAdjustedState(jnp.log(counts / jnp.sum(counts)))

    def value(state: LogitAdjustedState, logits: Logits, labels: AnyLabels) -> PerExample:
        objectives.classes_of_state(len(state.log_prior), logits)
        logits = tempered(at_least_float32(logits), 1)  # the sum of a large logit is not exact
        of_examples = of_classes(per_example("tau", tau, logits[..., 0]))
        log_prior = jnp.broadcast_to(state.log_prior.astype(logits.dtype), logits.shape)
        shift = jnp.where(jnp.equal(of_examples, 0), 0, of_examples * log_prior)
        return unchecked_cross_entropy(logits + shift.astype(logits.dtype), labels)

    return make_objective(value, init=init, soft_labels=True)
