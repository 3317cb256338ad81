"""Evaluate all data sets between stretches of training, for the requested runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from calib_jax.core.examples import read
from calib_jax.core.statistics import NOTHING, Rows
from calib_jax.core.types import Array, PyTree
from calib_jax.train.devices import memory
from calib_jax.train.feeds.runner import Evaluate, Feed
from calib_jax.train.folder.files import Row
from calib_jax.train.loop.arrangement import Arrangement
from calib_jax.train.loop.plan import Task
from calib_jax.train.step import last_layer
from calib_jax.train.step.diagnosis import check_labels, check_outputs
from calib_jax.train.step.step import make_eval_step


class Measured(NamedTuple):
    """The result of evaluating one run.

    Attributes:
      row: the metric values, for the log.
      evidence: the objective's statistics on the first data set.
      norms: histograms of last-layer gradient norms by data set, if they are measured.
    """

    row: Row
    evidence: Any
    norms: Row


def check_memory(task: Task, num_runs: int) -> None:
    """Raise `DoesNotFit` if metrics that keep one row per label or pixel do not fit into memory."""
    for name, source in task.evaluated.items():
        labels = read(source, np.arange(1)).labels
        number = labels.size * len(source)
        if number < memory.MANY_LABELS:
            continue
        seen = (
            jax.ShapeDtypeStruct((*labels.shape, task.num_classes), np.float32),
            jax.ShapeDtypeStruct(labels.shape, labels.dtype),
            jax.ShapeDtypeStruct(labels.shape, np.float32),
        )
        stats = {metric: jax.eval_shape(one.stat, *seen) for metric, one in task.metrics.items()}
        kept = {metric: stat for metric, stat in stats.items() if isinstance(stat, Rows)}
        memory.check_joined(
            f"{', '.join(kept)}: rows of the {number:,} labels of {name}",
            memory.size(kept) * len(source) * num_runs,
            "measure them after training, by experiments.evaluate or metrics.Stream, which need a"
            " fraction",
        )


class Evaluator:
    """Evaluate the data sets of a task.

    Args:
      task: the task, which holds the metrics.
      feeds: the feed of each data set, by name. The first data set updates the objective and
        selects the best checkpoint.
      batch_size: the batch size of evaluation.
      arrangement: the placement of the runs on the devices.
    """

    def __init__(
        self, task: Task, feeds: Mapping[str, Feed], batch_size: int, arrangement: Arrangement
    ) -> None:
        self._task = task
        self._arrangement = arrangement
        self.chooses = next(iter(feeds), "")
        self._evaluators: dict[str, Evaluate] = {}
        for name, fed in feeds.items():
            step = make_eval_step(
                task.forward,
                task.metrics,
                objective=task.objective if name == self.chooses else None,
                axis_name=arrangement.axis_name,
                prepare=task.prepare,
                last_layer=task.last_layer,
            )
            self._evaluators[name] = fed.evaluation(step, batch_size)
        self._values_of = jax.jit(
            lambda stats: {name: metric.value(stats[name]) for name, metric in task.metrics.items()}
        )
        self._columns: list[str] = []

        def table_of(loss_state: PyTree, evidence: Any) -> list[Array]:
            table = task.objective.table(loss_state, evidence)
            self._columns = list(table)  # jit returns a dict with its keys sorted
            return list(table.values())

        self._table_of = jax.jit(table_of)

    def __call__(self, states: PyTree, requested: Collection[int]) -> dict[int, Measured]:
        """Evaluate every data set for the requested runs."""
        wanted = [number in requested for number in range(self._arrangement.num_runs)]
        stats = {name: evaluate(states, wanted) for name, evaluate in self._evaluators.items()}
        for name, all_runs in stats.items():
            if any(float(of_run["wrong_labels"]["count"]) > 0 for of_run in all_runs):
                check_labels(name, self._task.evaluated[name], self._task.num_classes)
            if any(float(all_runs[number]["logits"]["count"]) == 0 for number in requested):
                check_outputs(name, self._task.evaluated[name])
        heads: list[PyTree] = [None] * len(wanted)
        if self._task.last_layer is not None:
            kernels = {last_layer.HEAD: states.evaluated[0][last_layer.HEAD]}
            heads = self._arrangement.fetch(kernels)
        return {
            number: self._of_run({name: all_runs[number] for name, all_runs in stats.items()}, head)
            for number, head in enumerate(heads)
            if wanted[number]
        }

    def _of_run(self, stats: Mapping[str, Any], head: PyTree) -> Measured:
        look = self._task.last_layer
        row: Row = {}
        norms: Row = {}
        for name, of_set in stats.items():
            values = jax.device_get(self._values_of(of_set["metrics"]))
            for metric in self._task.metrics:
                row |= _numbers(f"{name}_{metric}", values[metric])
            if look is not None:
                means = look.means(of_set["last_layer"])
                row |= {f"{name}_{key}": value for key, value in means.items()}
                norms[name] = last_layer.histogram(of_set["last_layer"])
        if look is not None:
            row["weight_norm"] = look.weight_norm(head)
        evidence = stats[self.chooses]["evidence"] if self.chooses else NOTHING
        return Measured(row, evidence, norms)

    def table(self, loss_state: PyTree, evidence: Any) -> Row:
        """Compute the table of the objective's state; most objectives have none."""
        columns = self._table_of(loss_state, evidence)
        values = (np.atleast_1d(column).tolist() for column in jax.device_get(columns))
        return dict(zip(self._columns, values, strict=True))


def _numbers(name: str, value: Any) -> Row:
    """Name the scalars of a metric: the value itself or its fields, without arrays."""
    return {
        "_".join([name, *(str(key.name) for key in path)]): float(leaf)
        for path, leaf in jax.tree.leaves_with_path(value)
        if np.ndim(leaf) == 0
    }
