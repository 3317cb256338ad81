"""Cross-entropy with class weights from the class counts of the training set."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core.inputs import checks
from calib_jax.core.inputs.arrays import as_numbers
from calib_jax.core.numerics import times, widened
from calib_jax.core.types import Array, AxisName, Labels, Logits, Number, PerExample, Weights
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.objectives import Objective, make_objective, needed_counts, register
from calib_jax.losses.weighting import mean_one

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
    checks.at_least("volume", volume, 1)
    counts = jnp.asarray(as_numbers("class_weights", "class_counts", class_counts), float)
    if counts.ndim != 1:
        raise ValueError(f"class_counts must have one axis, got the shape {counts.shape}.")
    checks.at_least("class_counts", counts, 0)
    if checks.concrete(counts) and not np.any(np.asarray(counts) > 0):
        raise ValueError("class_counts are all 0: give those of the training set.")
    present = counts > 0
    divisor = jnp.where(present, counts, 1)
    if balancing == "median":
        return jnp.where(present, jnp.nanmedian(jnp.where(present, counts, jnp.nan)) / divisor, 0)
    if balancing == "effective":
        divisor = -jnp.expm1(divisor * jnp.log1p(-1 / jnp.asarray(volume, float)))
    weights = jnp.where(present, 1 / divisor, 0)
    return weights * jnp.sum(present, dtype=weights.dtype) / jnp.sum(weights)


@register("class_weighted")
def _class_weighted(
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
    checks.at_least("volume", volume, 1)

    def init(num_classes: int, class_counts: Any = None) -> ClassWeightsState:
        counts = needed_counts("class_weighted", class_counts)
        return ClassWeightsState(class_weights(counts, balancing=balancing, volume=volume))

    def value(
        state: ClassWeightsState,
        logits: Logits,
        labels: Labels,
        weights: Weights | None,
        *,
        axis_name: AxisName,
    ) -> PerExample:
        checks.classes_of_state(len(state.weights), logits)
        cross_entropy = unchecked_cross_entropy(logits, labels)
        factors = state.weights[jnp.clip(widened(labels), 0, logits.shape[-1] - 1)]
        if normalized:
            factors = mean_one(factors, weights, axis_name)
        return times(factors.astype(cross_entropy.dtype), cross_entropy)

    return make_objective(value, init=init)
