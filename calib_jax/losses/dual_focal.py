"""Dual focal loss: examples are weighted by the margin between p_y and the runner-up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import first_argmax, is_true_class, max_where, power, true_class
from calib_jax.core.probabilities import Probabilities
from calib_jax.core.types import Labels, Logits, Numbers, PerExample
from calib_jax.losses.objectives import register_loss
from calib_jax.losses.weighting import Uncertainty, Weighting, weigh_cross_entropy

RUNNERS_UP = ("below", "wrong", "second")


@checks.takes_logits()
def dual_focal(
    logits: Logits,
    labels: Labels,
    *,
    gamma: Numbers = 5.0,
    runner_up: str = "below",
    detach_runner_up: bool = False,
    weighting: Weighting = "loss",
) -> PerExample:
    r"""Compute the dual focal loss: cross-entropy times $(1 - p_y + p_j)^\gamma$.

    $$\ell = (1 - p_y + p_j)^\gamma \, (-\log p_y)$$

    Args:
      logits: unnormalised log-probabilities.
      labels: the true classes.
      gamma: the focusing parameter, at least 0. No source gives a value; 5 is our default.
      runner_up: which probability is $p_j$. "below": the largest one strictly below $p_y$,
        0 if there is none (as in the released code and the published results). "wrong": the
        largest of the wrong classes. "second": the second largest of all, which may be
        $p_y$ itself (the released notebook).
      detach_runner_up: treat only $p_j$ as a constant in the backward pass, as the released
        "DFL-GRA" does; `weighting="gradient"` treats the whole weight as a constant.
      weighting: "loss" or "gradient" (DFL-GRA).

    Returns:
      One value per example, in float32 or float64.

    References:
      Tao et al. 2023, Dual Focal Loss for Calibration; Lin et al. 2025, BSCE-GRA.

    >>> import jax.numpy as jnp
    >>> dual_focal(jnp.log(jnp.array([[0.5, 0.3, 0.2]])), jnp.array([0]), gamma=1.0).round(4)
    Array([0.5545], dtype=float32)
    """
    uncertainty = dual_focal_uncertainty(
        gamma=gamma, runner_up=runner_up, detach_runner_up=detach_runner_up
    )
    return weigh_cross_entropy(logits, labels, uncertainty, weighting=weighting)


def dual_focal_uncertainty(
    *, gamma: Numbers, runner_up: str, detach_runner_up: bool
) -> Uncertainty:
    """Build the uncertainty score (1 - p_y + p_j)^gamma."""
    checks.at_least("gamma", gamma, 0)
    checks.one_of("runner_up", runner_up, RUNNERS_UP)

    def uncertainty(p: Probabilities) -> PerExample:
        # (1 - p_y + p_j) = (1 - p_y) (1 + p_j / (1 - p_y)), in logarithms.
        relative = (_runner_up(p, runner_up) - p.offset) - p.log_others
        if detach_runner_up:
            log_runner_up = lax.stop_gradient(relative + p.log_rest)
            log_base = jnp.logaddexp(p.log_rest, log_runner_up)
        else:
            log_base = p.log_rest + jax.nn.softplus(relative)
        return power(log_base, checks.per_example("gamma", gamma, log_base))

    return uncertainty


def _runner_up(p: Probabilities, which: str) -> PerExample:
    """Compute the logit of the runner-up; -inf if there is none."""
    if which == "below":
        true = true_class(p.logits, p.labels)[..., None]
        return max_where(p.logits, p.logits < true)
    excluded = p.labels if which == "wrong" else first_argmax(p.logits)
    return max_where(p.logits, ~is_true_class(excluded, p.logits.shape[-1]))


register_loss("dual_focal", dual_focal)
register_loss("dfl_gra", dual_focal, weighting="gradient", detach_runner_up=False)
