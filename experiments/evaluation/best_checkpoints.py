"""Describe a run's best checkpoints, and recommend one.

A calibration error is small for every network whose confidence matches its accuracy, even at chance
level. The NLL measures both calibration and accuracy, and the refinement part of the NLL measures
the loss that no temperature can remove. So the recommended checkpoint is the best by
`refinement_nll` if the run kept it, or else by `nll`, and a checkpoint of another metric is offered
only if its error is within noise of the best error: at most the upper end of the 95 % interval
(Wilson's) of the best error over the validation examples.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

# Scores that measure error and calibration together, in order of recommendation.
RECOMMENDED = ("refinement_nll", "nll", "refinement_brier", "brier", "error")
_FREE = ("refinement_nll", "nll")  # recommended at any error
_ERROR = "validation_error"
_Z = 1.959964  # the normal quantile of a 95 % interval

Row = Mapping[str, Any]


def highest_error(error: float, num_examples: int) -> float:
    """Return the largest error that is within noise of the best error.

    >>> round(highest_error(0.1, 1000), 4), round(highest_error(0.0, 1000), 4)
    (0.1202, 0.0038)
    """
    if num_examples < 1:
        return error
    square = _Z**2 / num_examples
    spread = _Z * math.sqrt(error * (1 - error) / num_examples + square / (4 * num_examples))
    return (error + square / 2 + spread) / (1 + square)


def describe(
    rows: Sequence[Row], best: Mapping[str, Mapping[str, float]], num_examples: int
) -> list[str]:
    """Describe the best checkpoints of a run; the first line names the recommended checkpoint.

    Args:
      rows: the rows of the log.
      best: the step, epoch and value of the best evaluation, by metric.
      num_examples: the number of validation examples.
    """
    lowest = _lowest(rows)
    errors = {name: _error_at(rows, record["step"]) for name, record in best.items()}

    def is_within_noise(name: str) -> bool:
        if lowest is None or errors[name] is None:
            return name in RECOMMENDED
        return errors[name] <= highest_error(lowest[_ERROR], num_examples)

    choices = [
        name
        for name in dict.fromkeys((*RECOMMENDED, *best))
        if name in best and (name in _FREE or is_within_noise(name))
    ]
    lines = []
    for name in dict.fromkeys([*choices[:1], *best]):
        line = f"The best {name} is {best[name]['value']:.4f}, of epoch {best[name]['epoch']:g}"
        if name != "error" and errors[name] is not None:
            line += f", where the error is {errors[name]:.4f}"
        flag = f"--checkpoint=best_{name}"
        if name in choices:
            line += f"; evaluate it with {flag}." if name == choices[0] else f" ({flag})."
        elif lowest is None:
            line += f"; no error was measured, and a network at chance may have a good {name}."
        else:
            line += "."
        if lowest is not None and not is_within_noise(name):
            line += f" The best error, {_of_epoch(lowest)}, is lower by more than noise."
        lines.append(line)
    return lines


def remark(rows: Sequence[Row], name: str, step: int, num_examples: int = 0) -> str:
    """Compare the error of a checkpoint that a metric chose with the best error.

    Args:
      rows: the rows of the log.
      name: the name of the checkpoint; only best_NAME with a larger error has a remark.
      step: the step of the checkpoint.
      num_examples: the number of validation examples; 0 if it is unknown.
    """
    lowest, error = _lowest(rows), _error_at(rows, step)
    if not name.startswith("best_") or lowest is None or error is None or error <= lowest[_ERROR]:
        return ""
    epoch = next(row["epoch"] for row in rows if row["step"] == step)
    text = f"{name} is of epoch {epoch:g}, with a validation error of {error:.4f}; the best error"
    text += f" is {_of_epoch(lowest)}"
    if not num_examples:
        return f"{text}."
    if error <= highest_error(lowest[_ERROR], num_examples):
        return f"{text}, and the difference is within noise."
    if name.removeprefix("best_") in _FREE:
        return f"{text}, lower by more than noise: best_error is the checkpoint of it."
    return (
        f"{text}, lower by more than noise: choose by the NLL (best_nll) or by refinement_nll,"
        " unless you want this epoch."
    )


def _error_at(rows: Sequence[Row], step: float) -> Any:
    error = next((row.get(_ERROR) for row in rows if row["step"] == step), None)
    return None if error is None or math.isnan(error) else error


def _lowest(rows: Sequence[Row]) -> Row | None:
    measured = [row for row in rows if _error_at(rows, row["step"]) is not None]
    return min(measured, key=lambda row: row[_ERROR], default=None)


def _of_epoch(lowest: Row) -> str:
    return f"{lowest[_ERROR]:.4f} of epoch {lowest['epoch']:g}"
