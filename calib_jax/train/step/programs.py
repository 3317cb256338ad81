"""Build the programs of a task: training and warm-up steps, evaluation, and a finiteness check."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from calib_jax.core.examples import Draw, Source
from calib_jax.core.statistics import NOTHING
from calib_jax.core.types import PyTree
from calib_jax.train.feeds.feed import feed
from calib_jax.train.feeds.ordering import in_batches
from calib_jax.train.feeds.runner import Feed, Runner
from calib_jax.train.loop.arrangement import Arrangement
from calib_jax.train.loop.evaluator import Evaluator
from calib_jax.train.loop.plan import Task
from calib_jax.train.loop.timetable import Timetable
from calib_jax.train.step.forward import with_classes
from calib_jax.train.step.state import all_finite
from calib_jax.train.step.step import make_train_step, same_kind


class Programs:
    """The compiled programs of a task, over all runs.

    Args:
      task: the network, loss, optimizer, metrics and data.
      timetable: the plan, and the steps of an epoch.
      arrangement: the placement of the runs on the devices.
      loss_state: the state of the objective at the start of a run.

    Attributes:
      evaluate: the evaluation of all data sets.
      update: the update of the objective's state.
    """

    def __init__(
        self, task: Task, timetable: Timetable, arrangement: Arrangement, loss_state: PyTree
    ) -> None:
        plan = timetable.plan
        task = dataclasses.replace(task, forward=with_classes(task.forward, task.num_classes))
        self._task = task
        self._timetable = timetable
        self._arrangement = arrangement
        self._epochs: dict[int, int] = {}  # the epoch that each run has started

        def feed_of(source: Source) -> Feed:
            threads = plan.threads or None
            return feed(source, arrangement, resident_bytes=plan.resident_bytes, threads=threads)

        def runner(objective: Any, reduction: str) -> Runner:
            step = make_train_step(
                task.forward,
                objective,
                task.tx,
                reduction=reduction,
                axis_name=arrangement.axis_name,
                accumulate=plan.accumulate,
                augment=task.augment,
                prepare=task.prepare,
                mix=task.mix,
                progress_at=timetable.progress_at,
                average=plan.average,
            )
            return training_feed.training(step, accumulate=plan.accumulate)

        training_feed = feed_of(task.train)
        self._runner = self._warm_up_runner = runner(task.objective, task.reduction)
        if plan.warm_up_epochs:
            self._warm_up_runner = runner(task.warm_up_objective, task.warm_up_reduction)
            counts = np.ones(task.num_classes)
            init = functools.partial(task.warm_up_objective.init, task.num_classes, counts)
            if jax.tree.leaves(jax.eval_shape(init)):
                raise ValueError(
                    "warm_up_objective must have no state, since steps pass the state of objective."
                )
        # The training set may be evaluated too; share its feed.
        feeds = {
            name: training_feed if source is task.train else feed_of(source)
            for name, source in task.evaluated.items()
        }
        size = plan.eval_batch_size or plan.batch_size
        self.evaluate = Evaluator(task, feeds, size, arrangement)
        self.update = jax.jit(same_kind(task.objective.update))
        if task.objective.clock == "epoch":
            # Updates with the other clocks need logits, and are checked when they are compiled.
            jax.eval_shape(self.update, loss_state, NOTHING, timetable.progress_at(0))
        self._all_finite = arrangement.on_devices(all_finite)

    def runner_of(self, number: int, seed: int, step: int) -> Runner:
        """Return the runner for the next steps of a run; start the epoch if necessary."""
        timetable, plan = self._timetable, self._timetable.plan
        epoch, offset = divmod(step, timetable.epoch_steps)
        runner = self._warm_up_runner if timetable.is_warm_up(step) else self._runner
        if self._epochs.get(number) != epoch:
            order = in_batches(
                self._task.examples_of(seed, epoch),
                plan.batch_size,
                multiple=self._arrangement.sharing,
                accumulate=plan.accumulate,
                drop_last=plan.drop_last,
            )
            if order.num_steps != timetable.epoch_steps:
                raise ValueError(
                    f"the order of epoch {epoch} has {order.num_steps} batches, and that of epoch 0"
                    f" has {timetable.epoch_steps}: give all epochs as many examples."
                )
            if runner is not self._warm_up_runner:
                self._warm_up_runner.end(number)
            runner.begin(order, offset, Draw(seed, epoch), run=number)
            self._epochs[number] = epoch
        return runner

    def all_finite(self, states: PyTree) -> list[Any]:
        """Return for each run whether its parameters and statistics are finite."""
        return self._arrangement.fetch(self._all_finite(states))
