"""Focal loss of the mean cross-entropy of a batch, a released variant of the focal loss."""

from __future__ import annotations

import jax.numpy as jnp

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import power
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import total
from calib_jax.core.types import AxisName, Labels, Logits, Number, PerExample, PyTree, Weights
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.objectives import Objective, make_objective, register


@register("focal_of_mean")
def _focal_of_mean(*, gamma: Number = 2.0) -> Objective:
    r"""Focal loss of the mean cross-entropy m of the batch, $(1 - e^{-m})^\gamma \, m$.

    Every example's term is this value, and so is the mean of the terms. All examples have the same
    weight: unlike the focal loss, it only scales the gradient of the batch.

    Args:
      gamma: the focusing parameter, at least 0; 0 is the mean cross-entropy.

    References:
      Tian et al. 2021, released code.
    """
    checks.at_least("gamma", gamma, 0)

    def value(
        _: PyTree, logits: Logits, labels: Labels, weights: Weights | None, *, axis_name: AxisName
    ) -> PerExample:
        cross_entropy = unchecked_cross_entropy(logits, labels)
        count = weigh(jnp.ones_like(cross_entropy), weights)
        added = jnp.sum(weigh(cross_entropy, weights))
        added, size = total((added, jnp.sum(count)), axis_name)
        mean = added / jnp.where(size > 0, size, 1)
        of_batch = checks.per_example("gamma", gamma, mean)
        return jnp.broadcast_to(_focal(mean, of_batch), cross_entropy.shape)

    return make_objective(value)


def _focal(mean: PerExample, gamma: Number) -> PerExample:
    # Beyond 50 the factor is 1 in every precision, and 0 has a constant of its own: neither an
    # infinite mean nor the root of 0 then gives a NaN gradient.
    inside = (mean > 0) & (mean < 50)
    moderate = jnp.where(inside, mean, 1)
    log_rest = jnp.log(-jnp.expm1(-moderate))
    at_zero = jnp.where(jnp.equal(gamma, 0), mean, 0 * mean)
    outside = jnp.where(mean <= 0, at_zero, mean)
    return jnp.where(inside, power(log_rest, gamma) * moderate, outside)
