"""Label-distribution-aware margins: rare classes get a larger margin."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import add_to_true_class, of_classes, tempered, widened
from calib_jax.core.types import Array, Labels, Logits, Number, Numbers, PerExample
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.objectives import Objective, make_objective, needed_counts, register


class LDAMState(NamedTuple):
    """The constant margin of each class."""

    margins: Float[Array, " classes"]


@register("ldam")
def _ldam(*, max_margin: Number = 0.5, scale: Numbers = 30.0) -> Objective:
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
    checks.at_least("max_margin", max_margin, 0)
    checks.above("scale", scale, 0)

    def init(num_classes: int, class_counts: Any = None) -> LDAMState:
        counts = jnp.asarray(needed_counts("ldam", class_counts), float)
        rarest = jnp.min(jnp.where(counts > 0, counts, jnp.inf))
        return LDAMState(max_margin * (rarest / jnp.maximum(counts, rarest)) ** 0.25)

    def value(state: LDAMState, logits: Logits, labels: Labels) -> PerExample:
        checks.classes_of_state(len(state.margins), logits)
        logits = tempered(logits, 1)  # the scaled difference of large logits would not be exact
        index = jnp.clip(widened(labels), 0, logits.shape[-1] - 1)
        margins = state.margins.astype(logits.dtype)[index]
        scales = of_classes(checks.per_example("scale", scale, logits[..., 0]))
        logits = scales * add_to_true_class(logits, labels, -margins)
        return unchecked_cross_entropy(logits, labels)

    return make_objective(value, init=init)
