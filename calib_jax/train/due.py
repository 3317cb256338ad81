"""Decide what is due after a piece of training, without access to devices, clocks or files."""

from __future__ import annotations

from typing import NamedTuple

from calib_jax.train.plan import Plan


class Standing(NamedTuple):
    """The status of one run after a piece of training.

    Attributes:
      step: the number of optimiser steps done.
      failed: whether the loss, gradient or state is not finite.
      at_stop: whether the run is at the end of an epoch or at an evaluation.
      better: whether the evaluation at this step was the best by some metric.
      ended: whether all planned steps are done or patience has run out.
      seconds: the time since the last save.
    """

    step: int
    failed: bool
    at_stop: bool
    better: bool
    ended: bool
    seconds: float


def is_saved(standing: Standing, plan: Plan, epoch_steps: int) -> bool:
    """Decide whether to save the state of a run now; the state of a failed run is never saved.

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
