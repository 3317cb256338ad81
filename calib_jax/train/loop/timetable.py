"""Schedule epochs, evaluations and saves from step counts alone, without device, clock or file."""

from __future__ import annotations

from typing import Any, NamedTuple

from calib_jax.core.progress import Progress
from calib_jax.train.loop.plan import Plan

# The target length of a chunk, after which signals are handled, in seconds. Each call of a program
# allocates its memory: 70 ms for a small ResNet on a CPU, so chunks of one second would cost 7 %.
CHUNK_SECONDS = 8.0


class Timetable(NamedTuple):
    """The steps at which epochs end and at which runs are evaluated and saved.

    >>> table = Timetable(Plan(num_epochs=2, batch_size=1, eval_every_steps=3), epoch_steps=5)
    >>> [step for step in range(1, 11) if table.is_evaluated(step)], table.next_stop(3)
    ([3, 6, 9, 10], 5)

    Attributes:
      plan: the plan of training.
      epoch_steps: the number of steps in an epoch.
    """

    plan: Plan
    epoch_steps: int

    @property
    def total_steps(self) -> int:
        """The number of steps of a run whose patience does not run out."""
        return self.plan.num_epochs * self.epoch_steps

    @property
    def _eval_steps(self) -> int:
        return self.plan.eval_every_steps or self.epoch_steps

    def next_stop(self, step: int) -> int:
        """Return the next end of an epoch or evaluation after a step."""
        return min((step // every + 1) * every for every in (self.epoch_steps, self._eval_steps))

    def ends_epoch(self, step: int) -> bool:
        """Return whether a step is the last of its epoch."""
        return step % self.epoch_steps == 0

    def is_evaluated(self, step: int) -> bool:
        """Return whether runs are evaluated after this step."""
        return step % self._eval_steps == 0 or step == self.total_steps

    def is_warm_up(self, step: int) -> bool:
        """Return whether the warm-up objective trains after this number of steps.

        The first clock tick at a step where this is false updates the state of the objective.
        """
        return step // self.epoch_steps < self.plan.warm_up_epochs

    def progress_at(self, step: Any) -> Progress:
        """Return the training progress after a number of steps, which may be traced."""
        return Progress(step, step // self.epoch_steps, self.plan.num_epochs)

    def is_saved(
        self, step: int, *, failed: bool, better: bool, ended: bool, seconds: float
    ) -> bool:
        """Return whether to save the state of a run after a chunk of training.

        Args:
          step: the number of optimizer steps done.
          failed: whether the loss, gradient or state is not finite; such a run is never saved.
          better: whether the evaluation at this step was the best by some metric.
          ended: whether all planned steps are done or patience has run out.
          seconds: the time since the last save.
        """
        intervals = self.plan.checkpoint_every_epochs, self.plan.keep_every_epochs
        late = seconds > 60 * self.plan.checkpoint_every_minutes
        regular = any(n and step % (n * self.epoch_steps) == 0 for n in intervals)
        return not failed and (late or better or ended or regular)


class Chunk:
    """The number of steps in a chunk, adapted to the duration of the last chunk."""

    def __init__(self) -> None:
        self.size, self.steps, self.seconds = 1, 0, 0.0

    def begin(self) -> None:
        """Start a chunk."""
        self.steps, self.seconds = 0, 0.0

    def add(self, steps: int, seconds: float) -> None:
        """Add the duration of steps in this process to the duration of the chunk."""
        self.steps = max(self.steps, steps)
        self.seconds += seconds

    def adapt(self, seconds: float) -> None:
        """Adapt the size to `CHUNK_SECONDS`; grow at most 64-fold, as the first steps compile."""
        if self.steps:
            wanted = self.steps * CHUNK_SECONDS / max(seconds, 1e-6)
            self.size = max(1, int(min(wanted, 64 * self.size)))
