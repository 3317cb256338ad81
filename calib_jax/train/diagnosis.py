"""Describe a loss that is not finite: the step, the examples, and a label out of range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from calib_jax.core.examples import Draw, read
from calib_jax.train.due import Timetable
from calib_jax.train.plan import Task


def of_steps(
    task: Task, timetable: Timetable, seed: int, step: int, measured: Mapping[str, np.ndarray]
) -> tuple[str, str] | None:
    """Describe the first step whose loss or gradient is not finite, and what the user can do.

    Args:
      task: the task, which has the training examples.
      timetable: the plan, and the steps of an epoch.
      seed: the seed of the order of examples.
      step: the number of steps before those that were measured.
      measured: the measurements of each step.

    Returns:
      The problem and the remedy; None if all losses and gradients are finite.
    """
    wrong = ~(np.isfinite(measured["loss"]) & np.isfinite(measured["gradient_norm"]))
    if not wrong.any():
        return None
    first, size = int(np.argmax(wrong)), timetable.plan.batch_size
    epoch, offset = divmod(step + first, timetable.epoch_steps)
    order = task.examples_of(seed, epoch)
    batch = order[offset * size : (offset + 1) * size].tolist()
    if label := _label_out_of_range(task, batch, Draw(seed, epoch)):
        return label, (
            "mend its label, or leave the example out, with data.subset, or with weight 0 in a"
            " loop of your own"
        )
    name = "gradient of the loss" if math.isfinite(measured["loss"][first]) else "loss"
    shown = ", ".join(map(str, batch[:20])) + (", ..." if len(batch) > 20 else "")
    return (
        f"the {name} is not finite at step {step + first} (epoch {epoch}), on the training examples"
        f" {shown}"
    ), "lower the learning rate, or look at these examples"


def _label_out_of_range(task: Task, batch: Sequence[int], draw: Draw) -> str:
    """Describe the first label outside the classes in a batch; return "" if there is none."""
    labels = np.asarray(read(task.train, np.asarray(batch), draw).labels)
    outside = (labels < 0) | (labels >= task.num_classes)
    if not outside.any():
        return ""
    row, *_ = first = tuple(np.argwhere(outside)[0])
    return (
        f"the training example {batch[row]} has the label {labels[first]}, and the classes are"
        f" 0 to {task.num_classes - 1}"
    )
