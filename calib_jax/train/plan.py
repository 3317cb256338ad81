"""What is trained, for how long, and how it ended, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optax

from calib_jax.core import checks
from calib_jax.core.examples import Source
from calib_jax.core.types import Array, PyTree
from calib_jax.train.forward import Forward
from calib_jax.train.last_layer import LastLayer
from calib_jax.train.state import TrainState
from calib_jax.train.step import REDUCTIONS, Mix, identity


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained, as values.

    Attributes:
      forward: of the network.
      objective: the loss.
      tx: the optimiser.
      metrics: by name, for evaluation; each has `stat` and `value`.
      train: what is trained on.
      evaluated: by name, "validation" first: it feeds the objective and chooses checkpoints.
      num_classes: for the objective.
      reduction: "sum" or "mean" over a batch.
      warm_up_objective: trained instead of `objective` in the first epochs, by `warm_up_epochs`;
        one without state.
      warm_up_reduction: of it.
      augment, prepare, mix: as in `make_train_step`.
      learning_rate: of a step, for the log.
      last_layer: is looked at in evaluation, if given.
    """

    forward: Forward
    objective: Any
    tx: optax.GradientTransformation
    metrics: Mapping[str, Any]
    train: Source
    evaluated: Mapping[str, Source]
    num_classes: int
    reduction: str = "mean"
    warm_up_objective: Any = None
    warm_up_reduction: str = "mean"
    augment: Callable[[Array, PyTree], PyTree] | None = None
    prepare: Callable[[PyTree], PyTree] = identity
    mix: Mix | None = None
    learning_rate: Callable[[int], Any] | None = None
    last_layer: LastLayer | None = None

    def __post_init__(self) -> None:
        for name in ("reduction", "warm_up_reduction"):
            checks.one_of(name, getattr(self, name), REDUCTIONS)
        if not self.evaluated and self.objective.clock == "validation":
            raise ValueError(
                "the objective learns from the validation set after every evaluation, and"
                ' evaluated={} has none: give evaluated={"validation": SOURCE}.'
            )


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long, and how often what.

    Attributes:
      num_epochs: planned.
      batch_size: of a step, over all devices.
      seed: of the order of examples.
      drop_last: leave out an epoch's last, smaller batch.
      accumulate: microbatches of a step.
      warm_up_epochs: of the warm-up objective; the clocks of the objective begin to tick when
        what they set is used.
      eval_every_steps: evaluations apart; 0 is once at every epoch's end.
      eval_batch_size: 0 is that of training.
      resident_bytes: up to this size, examples in memory move to the devices.
      threads: that read examples which are not in memory; 0 is one for each core.
      keep: checkpoints that are kept, beside the best.
      checkpoint_every_epochs: epochs apart; the best and the last are always saved. 0: only these.
      checkpoint_every_minutes: also within an epoch, where it is long.
      keep_every_epochs: save these, too, and keep them for good; 0 is none.
      best: metrics of the validation set, "min" or "max": for each the best checkpoint is kept.
      average: decay of moving averages of the weights and the running statistics, which are then
        what is evaluated; 0 is none. The state must have been made with `averaged=True`.
      patience: stop when this many evaluations brought no better `patience_for`; 0 is never.
      patience_for: one of `best`.
    """

    num_epochs: int
    batch_size: int
    seed: int = 0
    drop_last: bool = False
    accumulate: int = 1
    warm_up_epochs: int = 0
    eval_every_steps: int = 0
    eval_batch_size: int = 0
    resident_bytes: int = 2**30
    threads: int = 0
    keep: int = 2
    checkpoint_every_epochs: int = 1
    checkpoint_every_minutes: float = 10.0
    keep_every_epochs: int = 0
    best: Mapping[str, str] = dataclasses.field(default_factory=dict)
    average: float = 0.0
    patience: int = 0
    patience_for: str = "nll"

    def __post_init__(self) -> None:
        for name in ("num_epochs", "batch_size", "accumulate", "keep"):
            checks.at_least(name, getattr(self, name), 1)
        for field in dataclasses.fields(self):
            if isinstance(getattr(self, field.name), int | float):
                checks.at_least(field.name, getattr(self, field.name), 0)
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"accumulate={self.accumulate} makes more parts than a batch has examples,"
                f" {self.batch_size}."
            )
        checks.between("average", self.average, 0, 1)
        for name, direction in self.best.items():
            checks.one_of(f"best[{name!r}]", direction, ("min", "max"))
        if self.patience:
            checks.one_of("patience_for", self.patience_for, self.best)


class Run(NamedTuple):
    """One of the runs that are trained together: what only it has.

    Attributes:
      folder: for its checkpoints and logs.
      state: before the first step, from `create`.
      seed: of the order of examples.
      config: JSON that identifies it: a folder with another one is refused.
      name: in what is said, where there are several: "seed 3".
    """

    folder: Path | str
    state: TrainState
    seed: int
    config: Mapping[str, Any] = {}
    name: str = ""


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
      state: the train state, on the host.
      step: steps done.
      finished: whether it has ended: all that was planned is done, or patience is out.
      stopped_by: the signal, if one came.
      already: whether it had been finished before.
      best: by metric, the step, epoch and value of the best evaluation.
      failed: what went wrong, in a sentence, where the others went on; else empty.
    """

    state: PyTree
    step: int
    finished: bool
    stopped_by: int | None
    already: bool
    best: dict[str, dict[str, float]]
    failed: str = ""
