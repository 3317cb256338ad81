"""Logit adjustment: cross-entropy of logits to which the log prior of each class is added."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import at_least_float32, of_classes, tempered
from calib_jax.core.types import Array, Labels, Logits, Numbers, PerExample, SoftLabels
from calib_jax.losses.cross_entropy import unchecked_cross_entropy
from calib_jax.losses.objectives import Objective, make_objective, needed_counts, register


class LogitAdjustedState(NamedTuple):
    """The log of each class's share of the training set; -inf for a class without examples."""

    log_prior: Float[Array, " classes"]


@register("logit_adjusted")
def _logit_adjusted(*, tau: Numbers = 1.0) -> Objective:
    r"""Cross-entropy of the logits $z_k + \tau \log \pi_k$, $\pi_k$ being the share of class k.

    The network learns the logits without the prior, so its predictions are balanced. `init` needs
    the class counts.

    Args:
      tau: 0 is cross-entropy; with 1 the optimum has the smallest balanced error.

    References:
      Menon et al. 2021, Long-Tail Learning via Logit Adjustment, equation 10.
    """
    checks.at_least("tau", tau, 0)

    def init(num_classes: int, class_counts: Any = None) -> LogitAdjustedState:
        counts = jnp.asarray(needed_counts("logit_adjusted", class_counts), float)
        return LogitAdjustedState(jnp.log(counts / jnp.sum(counts)))

    def value(state: LogitAdjustedState, logits: Logits, labels: Labels | SoftLabels) -> PerExample:
        checks.classes_of_state(len(state.log_prior), logits)
        logits = tempered(at_least_float32(logits), 1)  # the sum of a large logit is not exact
        of_examples = of_classes(checks.per_example("tau", tau, logits[..., 0]))
        log_prior = jnp.broadcast_to(state.log_prior.astype(logits.dtype), logits.shape)
        shift = jnp.where(jnp.equal(of_examples, 0), 0, of_examples * log_prior)
        return unchecked_cross_entropy(logits + shift.astype(logits.dtype), labels)

    return make_objective(value, init=init, soft_labels=True)
