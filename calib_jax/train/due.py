"""What is due after a piece of training, decided from plain values: no device, clock or file."""

from __future__ import annotations

from typing import NamedTuple

from calib_jax.train.plan import Plan


class Standing(NamedTuple):
    """How one run stands after a piece of training.

    Attributes:
      step: optimiser steps done.
      failed: whether its loss, gradient or state is not finite.
      at_stop: whether it has come to the end of an epoch, or to an evaluation.
      better: whether an evaluation at this step was the best by some metric.
      ended: whether all that was planned is done, or patience is out.
      seconds: since it was last saved.
    """

    step: int
    failed: bool
    at_stop: bool
    better: bool
    ended: bool
    seconds: float


def is_saved(standing: Standing, plan: Plan, epoch_steps: int) -> bool:
    """Decide whether the state of a run is saved now; that of a failed run never is.

    >>> plan = Plan(num_epochs=9, batch_size=1, checkpoint_every_epochs=2)
    >>> [is_saved(Standing(step, False, True, False, False, 1.0), plan, 5) for step in (5, 10)]
    [False, True]
    """
    if standing.failed:
        return False
    if standing.seconds > 60 * plan.checkpoint_every_minutes:
        return True
    often = plan.checkpoint_every_epochs, plan.keep_every_epochs
    ended = any(epochs and standing.step % (epochs * epoch_steps) == 0 for epochs in often)
    return standing.at_stop and (standing.better or standing.ended or ended)
