"""The task, plan, run and outcome of training, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax

from calib_jax.core.display import short_repr
from calib_jax.core.examples import Source, check_source
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.options import names_options
from calib_jax.core.types import PyTree
from calib_jax.train.feeds.ordering import Sampling, examples_of_epoch
from calib_jax.train.step.forward import Forward
from calib_jax.train.step.last_layer import LastLayer
from calib_jax.train.step.state import TrainState, check_state
from calib_jax.train.step.step import REDUCTIONS, Augment, Mix, check_parts, identity


@names_options
@dataclasses.dataclass(frozen=True)
class Task:
    """The network, loss, optimizer, metrics and data of training.

    Attributes:
      forward: the forward pass of the network.
      objective: the loss.
      tx: the optimizer.
      metrics: the evaluation metrics by name; each has `stat` and `value`.
      train: the training set.
      evaluated: the evaluated data sets by name, "validation" first: it updates the objective and
        selects checkpoints.
      num_classes: the number of classes, for the objective.
      reduction: "sum", "mean" or "examples" of a batch, as in `make_train_step`.
      warm_up_objective: a stateless loss that replaces `objective` in the first `warm_up_epochs`
        epochs.
      warm_up_reduction: the reduction of the warm-up loss.
      augment, prepare, mix: as in `make_train_step`.
      learning_rate: the rate as a function of the step, for the log.
      last_layer: last-layer statistics to compute in evaluation, if given.
      order: `(seed, epoch) -> indices`, the training examples of an epoch, such as
        `class_balanced(labels)`; None permutes all examples. All epochs have the same number of
        batches.
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
    augment: Augment | None = None
    prepare: Callable[[PyTree], PyTree] = identity
    mix: Mix | None = None
    learning_rate: Callable[[int], Any] | None = None
    last_layer: LastLayer | None = None
    order: Sampling | None = None

    def __post_init__(self) -> None:
        check_parts(self.forward, self.metrics, objective=self.objective, tx=self.tx)
        if not isinstance(self.evaluated, Mapping):
            got = type(self.evaluated).__name__
            raise TypeError(f"evaluated must map names to sources of examples, got {got}.")
        if not callable(self.prepare):
            raise TypeError(f"prepare must be a function, got {self.prepare!r}.")
        for name in ("augment", "mix", "learning_rate", "order"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be a function or None, got {value!r}.")
        for name in ("reduction", "warm_up_reduction"):
            checks.one_of(name, getattr(self, name), REDUCTIONS)
        check_source("train", self.train)
        for name, source in self.evaluated.items():
            check_source(f"evaluated[{name!r}]", source)
            if not len(source):
                raise ValueError(f"evaluated[{name!r}] has no examples: leave it out.")
        if not self.evaluated and self.objective.clock == "validation":
            raise ValueError(
                "the objective learns from the validation set after every evaluation, and"
                ' evaluated={} has none: give evaluated={"validation": SOURCE}.'
            )

    def examples_of(self, seed: int, epoch: int) -> np.ndarray:
        """Return the indices of the training examples of one epoch, in training order."""
        return examples_of_epoch(self.order, len(self.train), seed, epoch)


_COUNTS = (  # numbers of `Plan` that may be 0
    *("warm_up_epochs", "eval_every_steps", "eval_batch_size", "threads"),
    *("checkpoint_every_epochs", "keep_every_epochs", "patience"),
)


@names_options
@dataclasses.dataclass(frozen=True)
class Plan:
    """The length of training, and the intervals of evaluations and checkpoints.

    Attributes:
      num_epochs: the number of epochs.
      batch_size: the number of examples in a step, over all devices.
      seed: the seed of the order of examples.
      drop_last: drop the last, incomplete batch of an epoch.
      accumulate: the number of microbatches in a step.
      warm_up_epochs: the number of epochs with the warm-up objective, less than `num_epochs`. The
        objective's updates start when the warm-up ends.
      eval_every_steps: the steps between evaluations; 0 evaluates at the end of every epoch.
      eval_batch_size: the batch size of evaluation; 0 uses `batch_size`.
      resident_bytes: the largest size at which in-memory examples are copied to the devices.
      threads: the number of reader threads for streamed examples; 0 uses one per core.
      keep: the number of newest checkpoints to keep, besides the best.
      checkpoint_every_epochs: the epochs between checkpoints; 0 saves only the best and the last
        checkpoints, which are always saved.
      checkpoint_every_minutes: the longest time between checkpoints, also within an epoch.
      keep_every_epochs: the epochs between checkpoints that are never deleted; 0 keeps none.
      best: validation metrics, each "min" or "max", whose best checkpoint is kept.
      average: the decay of moving averages of the weights and the running statistics, which are
        then evaluated; 0 disables them. The state must be created with `averaged=True`.
      patience: stop after this many evaluations without a better `patience_for`; 0 never stops.
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
            checks.whole(name, getattr(self, name), 1)
        for name in _COUNTS:
            checks.whole(name, getattr(self, name), 0)
        for name in ("resident_bytes", "checkpoint_every_minutes"):
            checks.at_least(name, getattr(self, name), 0)
        checks.seed(self.seed)
        if self.accumulate > self.batch_size:
            raise ValueError(
                f"accumulate={self.accumulate} makes more parts than a batch has examples,"
                f" {self.batch_size}."
            )
        if self.num_epochs <= self.warm_up_epochs:
            raise ValueError(
                f"warm_up_epochs={self.warm_up_epochs} leaves none of num_epochs={self.num_epochs}"
                " for the loss itself: give fewer warm_up_epochs or more num_epochs."
            )
        checks.between("average", self.average, 0, 1)
        if not isinstance(self.best, Mapping):
            raise TypeError(f"best must map names of metrics to 'min' or 'max', got {self.best!r}.")
        for name, direction in self.best.items():
            checks.one_of(f"best[{name!r}]", direction, ("min", "max"))
        if self.patience:
            if not self.best:
                raise ValueError('patience needs a metric to watch: give best={"nll": "min"}.')
            checks.one_of("patience_for", self.patience_for, self.best)


class Run(NamedTuple):
    """One of several runs trained together, with the values specific to it.

    Attributes:
      folder: the folder for checkpoints and logs.
      state: the initial state, from `create`.
      seed: the seed of the order of examples.
      config: JSON that identifies the run; a folder with another config raises.
      name: the prefix of printed lines if there are several runs, such as "seed 3".
    """

    folder: Path | str
    state: TrainState
    seed: int
    config: Mapping[str, Any] = {}
    name: str = ""


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
      state: the train state, on the host.
      step: the number of steps done.
      finished: whether all planned steps are done or patience has run out.
      stopped_by: the signal that stopped the run, if any.
      already: whether the run had finished before this call.
      best: the step, epoch and value of the best evaluation, by metric.
      failed: an error message if the run failed; else empty.
    """

    state: PyTree
    step: int
    finished: bool
    stopped_by: int | None
    already: bool
    best: dict[str, dict[str, float]]
    failed: str = ""

    def __repr__(self) -> str:
        return short_repr(self)


def check_runs(runs: Sequence[Run], task: Task, plan: Plan) -> None:
    """Validate that the states, the metrics and the folders fit the plan."""
    for run in runs:
        check_state(run.state)
        checks.seed(run.seed)
        if bool(run.state.average) != (plan.average > 0):
            raise ValueError(
                f"average={plan.average}, and the state has {'' if run.state.average else 'no '}"
                "averages: make it by create(..., averaged=plan.average > 0)."
            )
    unmeasured = sorted(set(plan.best) - set(task.metrics if task.evaluated else ()))
    if unmeasured:
        raise ValueError(
            f"plan.best names {', '.join(unmeasured)}, which the task does not measure: give"
            ' metrics of these names, and evaluated={"validation": SOURCE}.'
        )
    if len({Path(run.folder).resolve() for run in runs}) < len(runs):
        raise ValueError("two of the runs have the same folder: give each its own.")
