"""Describe a loss that is not finite: the step, the examples, and a label out of range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from calib_jax.core.examples import Draw, read
from calib_jax.train.ordering import shuffled
from calib_jax.train.plan import Task

SHOWN = 20  # the examples of a batch that a message lists


def first_failure(measured: Mapping[str, np.ndarray]) -> int | None:
    """Return the first step whose loss or gradient is not finite; None if all are finite."""
    wrong = ~(np.isfinite(measured["loss"]) & np.isfinite(measured["gradient_norm"]))
    return int(np.argmax(wrong)) if wrong.any() else None


def cause_and_remedy(
    task: Task, batch_size: int, seed: int, step: int, epoch_steps: int, loss: float
) -> tuple[str, str]:
    """Describe a step whose loss or gradient is not finite, and what the user can do about it."""
    epoch, batch_number = divmod(step, epoch_steps)
    order = shuffled(len(task.train), seed, epoch)
    batch = order[batch_number * batch_size : (batch_number + 1) * batch_size].tolist()
    if label := _label_out_of_range(task, batch, Draw(seed, epoch)):
        return label, (
            "mend its label, or leave the example out, with data.subset, or with weight 0 in a"
            " loop of your own"
        )
    what = "gradient of the loss" if math.isfinite(loss) else "loss"
    shown = ", ".join(map(str, batch[:SHOWN])) + (", ..." if len(batch) > SHOWN else "")
    return (
        f"the {what} is not finite at step {step} (epoch {epoch}), on the training examples {shown}"
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
