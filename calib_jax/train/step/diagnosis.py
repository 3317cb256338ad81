"""Describe a loss that is not finite: the step, the examples, and a label out of range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from calib_jax.core.examples import Draw, Examples, Source, read, wrong_label
from calib_jax.core.inputs.invalid_values import LEAST_ROWS
from calib_jax.train.loop.plan import Task
from calib_jax.train.loop.timetable import Timetable

_AT_ONCE = 256  # examples per read when searching for a label


def of_steps(
    task: Task, timetable: Timetable, seed: int, step: int, measured: Mapping[str, np.ndarray]
) -> tuple[str, str] | None:
    """Describe the first step whose loss or gradient is not finite, and what the user can do.

    Args:
      task: the task, which has the training examples.
      timetable: the plan, and the steps of an epoch.
      seed: the seed of the order of examples.
      step: the number of steps before the measured steps.
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
    examples = read(task.train, np.asarray(batch), Draw(seed, epoch))
    if label := label_out_of_range("training", examples, batch, task.num_classes):
        return label, (
            "mend its label, or leave the example out, with data.subset, or the label, by weight 0"
            " in its Examples"
        )
    name = "gradient of the loss" if math.isfinite(measured["loss"][first]) else "loss"
    shown = ", ".join(map(str, batch[:20])) + (", ..." if len(batch) > 20 else "")
    return (
        f"the {name} is not finite at step {step + first} (epoch {epoch}), on the training examples"
        f" {shown}"
    ), "lower the learning rate, or look at these examples"


def check_labels(name: str, source: Source, num_classes: int) -> None:
    """Raise an error for the first out-of-range label of positive weight in a source."""
    for start in range(0, len(source), _AT_ONCE):
        index = np.arange(start, min(start + _AT_ONCE, len(source)))
        if label := label_out_of_range(name, source[index], index, num_classes):
            raise ValueError(f"{label}: mend its label, or give it weight 0 in Examples.")


def check_outputs(name: str, source: Source) -> None:
    """Raise an error for outputs that all look like probabilities, if enough rows have weight."""
    count = 0
    for start in range(0, len(source), _AT_ONCE):
        _, labels, weights = source[np.arange(start, min(start + _AT_ONCE, len(source)))]
        present = np.ones(np.shape(labels)) if weights is None else np.asarray(weights)
        count += int(np.sum(present > 0))
        if count >= LEAST_ROWS:
            raise ValueError(
                f"all outputs of the network on the {name} set look like probabilities: none is"
                " negative, and they sum to 1. Leave out its softmax: losses take logits."
            )


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
