"""The compiled programs of a task: training and warm-up steps, evaluation, the objective's update.

They are built once and shared by all seeds, so that several seeds cost one compilation.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core.examples import Draw, Examples, Source, has_weight, read
from calib_jax.core.statistics import NOTHING
from calib_jax.core.types import Progress, PyTree
from calib_jax.train.feeds import Order, RunSteps, feed, in_batches, steps_per_epoch
from calib_jax.train.forward import HEAD, with_classes
from calib_jax.train.pmap import Devices, all_devices, axis_of, first
from calib_jax.train.state import Plan, Task, check_parts, not_finite
from calib_jax.train.step import make_eval_step, make_train_step, same_kind

_AT_ONCE = 256  # examples per read when searching for a label
_LEAST_ROWS = 20  # rows from which on outputs are checked for probabilities


class Measured(NamedTuple):
    """The result of an evaluation.

    Attributes:
      row: the metric values, for the log.
      evidence: the objective's statistics on the first data set.
      norms: histograms of last-layer gradient norms by data set, if they are measured.
    """

    row: dict[str, Any]
    evidence: Any
    norms: dict[str, Any]


class Programs:
    """The compiled programs of a task, and its data on the devices.

    Args:
      task: the network, loss, optimizer, metrics and data.
      plan: the length of training; `plan.seed` is not used but to check the order of examples.
      devices: the devices of all processes; by default all devices.

    Attributes:
      task, plan, devices: as given.
      epoch_steps: the number of steps of an epoch.
      total_steps: the number of steps of a run whose patience does not run out.
      order: the batches of an epoch, by seed and epoch; it keeps the newest.
      update: the update of the objective's state, compiled.
    """

    def __init__(self, task: Task, plan: Plan, devices: Devices | None = None) -> None:
        self.task, self.plan = task, plan
        self.devices = all_devices() if devices is None else devices
        count = len(task.examples_of(plan.seed, 0))
        self.epoch_steps = steps_per_epoch(count, plan.batch_size, drop_last=plan.drop_last)
        self._eval_steps = plan.eval_every_steps or self.epoch_steps
        self.total_steps = plan.num_epochs * self.epoch_steps
        self.order = functools.lru_cache(maxsize=1)(self._order_of)
        forward = with_classes(task.forward, task.num_classes)
        axis_name = axis_of(self.devices)

        def feed_of(source: Source) -> Any:
            size, threads = plan.resident_bytes, plan.threads or None
            return feed(source, self.devices, resident_bytes=size, threads=threads)

        def training(objective: Any, reduction: str) -> RunSteps:
            step = make_train_step(
                forward,
                objective,
                task.tx,
                reduction=reduction,
                axis_name=axis_name,
                accumulate=plan.accumulate,
                augment=task.augment,
                prepare=task.prepare,
                mix=task.mix,
                progress_at=self.progress_at,
                average=plan.average,
            )
            run_steps: RunSteps = training_feed.training(step, accumulate=plan.accumulate)
            return run_steps

        training_feed = feed_of(task.train)
        self._steps = self._warm_up_steps = training(task.objective, task.reduction)
        if plan.warm_up_epochs:
            check_parts(forward, {}, warm_up_objective=task.warm_up_objective)
            self._warm_up_steps = training(task.warm_up_objective, task.warm_up_reduction)
            counts = np.ones(task.num_classes)
            init = functools.partial(task.warm_up_objective.init, task.num_classes, counts)
            if jax.tree.leaves(jax.eval_shape(init)):
                raise ValueError(
                    "warm_up_objective must have no state, since steps pass the state of objective."
                )
        self.chooses = next(iter(task.evaluated), "")
        self._evaluations = {}
        for name, source in task.evaluated.items():
            step = make_eval_step(
                forward,
                task.metrics,
                objective=task.objective if name == self.chooses else None,
                axis_name=axis_name,
                prepare=task.prepare,
                last_layer=task.last_layer,
            )
            # The training set may be evaluated too; share its feed.
            of_source = training_feed if source is task.train else feed_of(source)
            size = plan.eval_batch_size or plan.batch_size
            self._evaluations[name] = of_source.evaluation(step, size)
        row = np.zeros((1, task.num_classes)), np.zeros(1, int), np.ones(1)
        for name in plan.best.keys() & task.metrics.keys():
            metric = task.metrics[name]
            value = jax.eval_shape(lambda *row, of=metric: of.value(of.stat(*row)), *row)
            if getattr(value, "shape", None) != ():
                raise ValueError(f"best needs metrics of one number, and {name} has several.")
        self.update = jax.jit(same_kind(task.objective.update))
        self._values_of = jax.jit(
            lambda stats: {name: metric.value(stats[name]) for name, metric in task.metrics.items()}
        )
        self._table_of = jax.jit(  # an OrderedDict keeps the order of its keys
            lambda *given: collections.OrderedDict(task.objective.table(*given))
        )

    # --------------------------------------------------------------------------------------------
    # Steps.

    def progress_at(self, step: Any) -> Progress:
        """Return the training progress after a number of steps, which may be traced."""
        return Progress(step, step // self.epoch_steps, self.plan.num_epochs)

    def is_warm_up(self, step: int) -> bool:
        """Return whether the warm-up objective trains after this number of steps.

        The first clock tick at a step where this is false updates the state of the objective.
        """
        return step // self.epoch_steps < self.plan.warm_up_epochs

    def next_stop(self, step: int) -> int:
        """Return the next end of an epoch or evaluation after a step."""
        return min((step // each + 1) * each for each in (self.epoch_steps, self._eval_steps))

    def is_evaluated(self, step: int) -> bool:
        """Return whether a run is evaluated after this step."""
        return step % self._eval_steps == 0 or step == self.total_steps

    def _order_of(self, seed: int, epoch: int) -> Order:
        plan = self.plan
        order = in_batches(
            self.task.examples_of(seed, epoch),
            plan.batch_size,
            multiple=len(self.devices),
            accumulate=plan.accumulate,
            drop_last=plan.drop_last,
        )
        if order.num_steps != self.epoch_steps:
            raise ValueError(
                f"the order of epoch {epoch} has {order.num_steps} batches, and that of epoch 0"
                f" has {self.epoch_steps}: give all epochs as many examples."
            )
        return order

    def run(self, state: PyTree, seed: int, step: int, stop: int) -> Any:
        """Run the steps from `step` to `stop`, which are of one epoch, without waiting.

        Returns:
          The state, and a function that waits and returns the measurements of each step.
        """
        epoch, start = divmod(step, self.epoch_steps)
        steps = self._warm_up_steps if self.is_warm_up(step) else self._steps
        order = self.order(seed, epoch)
        return steps(state, order, Draw(seed, epoch), start, start + stop - step)

    # --------------------------------------------------------------------------------------------
    # Evaluation.

    def evaluate(self, state: PyTree) -> Measured:
        """Evaluate every data set."""
        look = self.task.last_layer
        row: dict[str, Any] = {}
        norms: dict[str, Any] = {}
        stats = {name: evaluation(state) for name, evaluation in self._evaluations.items()}
        for name, of_set in stats.items():
            if float(of_set["wrong_labels"]["count"]) > 0:
                check_labels(name, self.task.evaluated[name], self.task.num_classes)
            outputs = of_set["logits"]
            if float(outputs["count"]) == 0 and float(outputs["present"]) >= _LEAST_ROWS:
                raise ValueError(
                    f"all outputs of the network on the {name} set look like probabilities: none is"
                    " negative, and they sum to 1. Leave out its softmax: losses take logits."
                )
            values = jax.device_get(self._values_of(of_set["metrics"]))
            for metric in self.task.metrics:
                row |= _numbers(f"{name}_{metric}", values[metric])
            if look is not None:
                means = look.means(of_set["last_layer"])
                row |= {f"{name}_{key}": value for key, value in means.items()}
                norms[name] = np.asarray(of_set["last_layer"]["histogram"]).tolist()
        if look is not None:
            row["weight_norm"] = look.weight_norm({HEAD: first(state.evaluated[0][HEAD])})
        evidence = stats[self.chooses]["evidence"] if self.chooses else NOTHING
        return Measured(row, evidence, norms)

    def table(self, loss_state: PyTree, evidence: Any) -> dict[str, Any]:
        """Compute the table of the objective's state; most objectives have none."""
        columns = jax.device_get(self._table_of(loss_state, evidence))
        return {name: np.atleast_1d(column).tolist() for name, column in columns.items()}

    # --------------------------------------------------------------------------------------------
    # Failures.

    def failure(
        self, state: PyTree, seed: int, step: int, measured: Mapping[str, np.ndarray]
    ) -> str:
        """Describe a loss, gradient or state that is not finite: "PROBLEM: WAY OUT", or "".

        Args:
          state: the state after the measured steps.
          seed: the seed of the order of examples.
          step: the number of steps before the measured steps.
          measured: the measurements of each step.
        """
        wrong = ~(np.isfinite(measured["loss"]) & np.isfinite(measured["gradient_norm"]))
        if not wrong.any():
            if not (where := not_finite(state)):
                return ""
            return (
                f"the state is not finite after {step + len(wrong)} steps (first {where}): lower"
                " the learning rate"
            )
        bad, size = step + int(np.argmax(wrong)), self.plan.batch_size
        epoch, offset = divmod(bad, self.epoch_steps)
        index = self.task.examples_of(seed, epoch)[offset * size : (offset + 1) * size]
        examples = read(self.task.train, index, Draw(seed, epoch))
        if label := label_out_of_range("training", examples, index, self.task.num_classes):
            return (
                f"{label}: mend its label, or leave the example out, with data.subset, or the"
                " label, by weight 0 in its Examples"
            )
        name = "gradient of the loss" if math.isfinite(measured["loss"][bad - step]) else "loss"
        shown = ", ".join(map(str, index[:20])) + (", ..." if len(index) > 20 else "")
        return (
            f"the {name} is not finite at step {bad} (epoch {epoch}), on the training"
            f" examples {shown}: lower the learning rate, or look at these examples"
        )


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Name the scalars of a metric: the value itself or its fields, without arrays."""
    return {
        "_".join([name, *(str(key.name) for key in path)]): float(leaf)
        for path, leaf in jax.tree.leaves_with_path(value)
        if np.ndim(leaf) == 0
    }


def check_labels(name: str, source: Source, num_classes: int) -> None:
    """Raise an error for the first out-of-range label of positive weight in a source."""
    for start in range(0, len(source), _AT_ONCE):
        index = np.arange(start, min(start + _AT_ONCE, len(source)))
        if label := label_out_of_range(name, source[index], index, num_classes):
            raise ValueError(f"{label}: mend its label, or give it weight 0 in Examples.")


def wrong_label(examples: Examples, num_classes: int) -> tuple[tuple[int, ...], int] | None:
    """Find the first label of positive weight that is out of range; return its index and value.

    >>> wrong_label(Examples(None, np.array([[0, 255], [1, 7]]), np.array([[1, 0], [1, 1]])), 5)
    ((1, 1), 7)
    """
    labels = np.asarray(examples.labels)
    outside = (labels < 0) | (labels >= num_classes)
    for place in np.argwhere(outside & has_weight(labels, examples.weights)).tolist():
        return tuple(place), int(labels[tuple(place)])
    return None


def label_out_of_range(
    name: str, examples: Examples, index: Sequence[int] | np.ndarray, num_classes: int
) -> str:
    """Describe the first out-of-range label of positive weight; return "" if there is none.

    Args:
      name: the name of the data set.
      examples: some examples of the data set.
      index: the number of each example.
      num_classes: the number of classes.
    """
    wrong = wrong_label(examples, num_classes)
    if wrong is None:
        return ""
    (row, *position), label = wrong
    where = f" at position {', '.join(map(str, position))}" if position else ""
    return (
        f"the {name} example {index[row]} has the label {label}{where}, and the classes are 0 to"
        f" {num_classes - 1}"
    )
