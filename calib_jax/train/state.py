"""The values of training: the train state, a batch, the task, the plan and the outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax.core import checks
from calib_jax.core.examples import Examples, Source, check_source
from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, PyTree
from calib_jax.train.forward import Forward, LastLayer, check_forward
from calib_jax.train.pmap import canonical, first

REDUCTIONS = ("sum", "mean", "examples")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """The examples of one step.

    Attributes:
      inputs: a tree of arrays.
      labels: `[rows, ...]`.
      weights: `[rows]` or the shape of the labels; 0 for padding and for absent labels.
      index: `[rows]`, the number of each example, from which its random key is folded; see
        `Order.keys`.
    """

    inputs: PyTree
    labels: Any
    weights: Any
    index: Any


# (step key, example keys, mask of real rows, inputs, labels, axis_name) -> mixed inputs, labels of
# the second examples, share of the first examples. It is also called with the weights in place of
# the labels, so the pairs must depend on the keys and the mask alone.
Mix: TypeAlias = Callable[..., tuple[PyTree, Array, Array]]
Augment: TypeAlias = Callable[[Array, Examples], Examples]
# (seed, epoch) -> the indices of the examples of one epoch, in training order.
Sampling: TypeAlias = Callable[[int, int], np.ndarray]


def identity(inputs: PyTree) -> PyTree:
    """Return the inputs unchanged."""
    return inputs


def check_parts(forward: Any, metrics: Any, **others: Any) -> None:
    """Raise TypeError for a forward pass, metrics, an objective or a `tx` of another kind."""
    check_forward(forward)
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must map names to metrics, got {metrics!r}.")
    others |= {f"metrics[{name!r}]": metric for name, metric in metrics.items()}
    kinds = {
        "objective": ("clock", "losses.objective(NAME)"),
        "warm_up_objective": ("clock", "losses.objective(NAME)"),
        "tx": ("update", "train.optimizer(NAME, RATE)"),
    }
    for name, value in others.items():
        attribute, advice = kinds.get(name, ("stat", "metrics.named(NAME)"))
        if not hasattr(value, attribute):
            raise TypeError(f"{name} must be what {advice} returns, got {value!r}.")


# ------------------------------------------------------------------------------------------------
# The train state.


class TrainState(NamedTuple):
    """The train state. It holds only arrays, so it can be donated, saved and compared as a whole.

    Attributes:
      step: the number of optimizer steps done.
      params: the trained parameters.
      model_state: the running statistics of the network.
      opt_state: the state of the optimizer.
      loss_state: the state of the objective, such as AdaFocal's gammas or recall loss's miss rates.
      rng: raw key data, which is constant. The key of an example is folded from it, the step and
        the example's index, so it does not depend on resumption or the number of devices.
      average: moving averages of `params` and `model_state`; `()` without averaging.
    """

    step: Array
    params: PyTree
    model_state: PyTree
    opt_state: PyTree
    loss_state: PyTree
    rng: Array
    average: PyTree = ()

    def __repr__(self) -> str:
        return checks.short_repr(self)

    @property
    def evaluated(self) -> tuple[PyTree, PyTree]:
        """The parameters and model state used in evaluation: the averages, if there are any."""
        return self.average or (self.params, self.model_state)


def check_state(state: Any) -> None:
    """Raise TypeError for another value in place of a train state, such as variables."""
    if not isinstance(state, TrainState):
        raise TypeError(
            f"state must be a TrainState, got {type(state).__name__}: give the `state` that"
            " train.fit or train.create returns."
        )


def not_finite(state: TrainState) -> str:
    """Return the path of the first parameter, statistic or average that is not finite; else "".

    The states of the optimizer and of the objective may hold infinities.
    """
    values = {name: getattr(state, name) for name in ("params", "model_state", "average")}
    for path, leaf in jax.tree.leaves_with_path(first(values)):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not np.isfinite(leaf).all():
            return jax.tree_util.keystr(path, simple=True, separator="/")
    return ""


def create(
    variables: PyTree,
    objective: Any,
    tx: optax.GradientTransformation,
    num_classes: int,
    seed: int,
    *,
    averaged: bool = False,
    class_counts: Any = None,
) -> TrainState:
    """Create the initial train state.

    NumPy arrays and Python numbers in `variables` become JAX arrays with JAX's dtypes.

    Args:
      variables: the variables of a linen network: `params` and any other collections.
      objective: the loss, whose `init` creates the loss state.
      tx: the optimizer.
      num_classes: the number of classes, for the objective.
      seed: the seed of the random key.
      averaged: whether to keep moving averages; they start as copies of the variables, in float32
        or wider.
      class_counts: the number of training examples of each class, for objectives that need it.
    """
    checks.seed(seed)
    counts = () if class_counts is None else (class_counts,)
    if "params" not in variables:
        raise ValueError(
            f"variables must have the collection 'params', got {', '.join(variables) or 'none'}:"
            " give all that train.init_variables returns."
        )
    params = _arrays(variables["params"])
    others = _arrays({name: value for name, value in variables.items() if name != "params"})
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        model_state=others,
        opt_state=_arrays(tx.init(params)),
        loss_state=_arrays(objective.init(num_classes, *counts)),
        rng=jax.random.key_data(jax.random.key(seed)),
        average=jax.tree.map(_copied, (params, others)) if averaged else (),
    )


def _copied(leaf: Array) -> Array:
    """Copy a leaf, since a buffer can be donated only once, in a dtype that holds small moves."""
    is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jnp.array(leaf, wide(leaf.dtype)) if is_float else jnp.copy(leaf)


def _arrays(tree: PyTree) -> PyTree:
    """Convert all leaves to JAX arrays with the dtypes of the devices."""
    # Copy other arrays, because a step may donate the buffer.
    return jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.array(canonical(leaf)), tree
    )


# ------------------------------------------------------------------------------------------------
# The task, its plan and its outcome.


def shuffled(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    """Permute the examples for one epoch."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)


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
        count = len(self.train)
        if self.order is None:
            return shuffled(count, seed, epoch)
        examples = np.asarray(self.order(seed, epoch))
        if examples.ndim != 1 or not np.issubdtype(examples.dtype, np.integer):
            got = f"{examples.dtype} {examples.shape}"
            raise ValueError(f"the order of epoch {epoch} must be a vector of integers, got {got}.")
        if len(absent := examples[(examples < 0) | (examples >= count)]):
            raise ValueError(
                f"the order of epoch {epoch} names the example {absent[0]}, and there are"
                f" {count} training examples: name only 0 to {count - 1}."
            )
        return examples


_COUNTS = (  # numbers of `Plan` that may be 0
    *("warm_up_epochs", "eval_every_steps", "eval_batch_size", "threads"),
    *("checkpoint_every_epochs", "keep_every_epochs", "patience"),
)


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
        checkpoints. Saving takes at most a tenth of the time of a run, so that the checkpoints of
        small networks are rarer; the best and the last ones are always there at the end.
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


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
      state: the train state, on the host.
      step: the number of steps done.
      finished: whether all planned steps are done or patience has run out.
      stopped_by: the signal that was received, if any; a run may have finished all the same.
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
        return checks.short_repr(self)


def check_run(state: Any, task: Task, plan: Plan) -> None:
    """Validate that the initial state and the metrics fit the plan."""
    check_state(state)
    if bool(state.average) != (plan.average > 0):
        raise ValueError(
            f"average={plan.average}, and the state has {'' if state.average else 'no '}averages:"
            " make it by create(..., averaged=plan.average > 0)."
        )
    unmeasured = sorted(set(plan.best) - set(task.metrics if task.evaluated else ()))
    if unmeasured:
        raise ValueError(
            f"plan.best names {', '.join(unmeasured)}, which the task does not measure: give"
            ' metrics of these names, and evaluated={"validation": SOURCE}.'
        )
