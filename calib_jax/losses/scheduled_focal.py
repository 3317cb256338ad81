"""Scheduled focal loss: gamma decreases during training (FLSc)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from calib_jax.core.inputs import checks
from calib_jax.core.types import Array, Logits, Number, PerExample, PyTree, Scalar
from calib_jax.losses.focal import focal
from calib_jax.losses.objectives import Objective, Progress, make_objective, register


class ScheduledGamma(NamedTuple):
    """The gamma of the current epoch."""

    gamma: Scalar


def scheduled_focal(
    *, gammas: Sequence[Number], milestones: Sequence[Number] | None = None
) -> Objective:
    r"""Build a focal loss objective whose gamma steps down between epochs.

    $$\gamma(e) = \gamma_i \quad \text{for} \quad m_i \le e < m_{i+1}, \qquad m_0 = 0$$

    with e the epoch, counted from 0; epoch 0 always has the first gamma. FLSc-531 has gammas
    (5, 3, 1), FLSc-532 (5, 3, 2).

    Args:
      gammas: one more than the milestones.
      milestones: the first epochs of the following gammas. The papers use (100, 250) in 350
        epochs and (30, 70) in 100 on Tiny-ImageNet. The default, for three gammas, scales the
        first pair to the E epochs planned: int(E 100/350), int(E 250/350).

    References:
      Mukhoti et al. 2020, section 4 and appendix.

    >>> flsc = scheduled_focal(gammas=(5.0, 3.0, 1.0))
    >>> state = flsc.init(10)
    >>> flsc.update(state, flsc.evidence(state, jnp.zeros((1, 2)), jnp.zeros(1, int)),
    ...             Progress(steps=0, epochs=14, num_epochs=50)).gamma.item()
    3.0
    """
    for gamma in gammas:
        checks.at_least("gammas", gamma, 0)
    count = len(gammas) - 1
    if milestones is None and count != 2:
        raise ValueError(f"{len(gammas)} gammas need {count} milestones; only three have defaults.")
    if milestones is not None:
        checks.ascending("milestones", milestones)
        if len(milestones) != count:
            raise ValueError(
                f"gammas must have one more entry than milestones, got {len(gammas)} gammas for"
                f" {len(milestones)} milestones."
            )

    def update(state: ScheduledGamma, stat: PyTree, progress: Progress) -> ScheduledGamma:
        steps: Any = milestones
        if milestones is None:
            steps = np.array([100, 250], np.int32) * progress.num_epochs // 350
        index = jnp.sum(jnp.asarray(progress.epochs, float) >= jnp.asarray(steps, float))
        return ScheduledGamma(jnp.asarray(gammas, state.gamma.dtype)[index])

    def value(state: ScheduledGamma, logits: Logits, labels: Array) -> PerExample:
        return checks.unchecked(focal)(logits, labels, gamma=state.gamma)

    return make_objective(
        value,
        soft_labels=True,
        init=lambda num_classes: ScheduledGamma(jnp.asarray(gammas[0], float)),
        update=update,
        clock="epoch",
    )


@register("flsc531")
def _flsc531(*, milestones: Sequence[Number] | None = None) -> Objective:
    """FLSc-531: gamma 5, then 3, then 1."""
    return scheduled_focal(gammas=(5.0, 3.0, 1.0), milestones=milestones)


@register("flsc532")
def _flsc532(*, milestones: Sequence[Number] | None = None) -> Objective:
    """FLSc-532: gamma 5, then 3, then 2."""
    return scheduled_focal(gammas=(5.0, 3.0, 2.0), milestones=milestones)
