"""Recommend which of a run's best checkpoints to evaluate.

A calibration error is small for every network whose confidence matches its accuracy, even at chance
level. The NLL measures both calibration and accuracy, and the refinement part of the NLL measures
the loss that no temperature can remove. So:

- the recommended checkpoint is the best by `refinement_nll` if the run kept it, or else by `nll`;
- any other metric chooses only among the epochs whose error is within noise of the best error;
- a checkpoint of another epoch can be evaluated; its error is printed beside the best error.

An error is within noise of the best if it is at most the upper end of the 95 % interval (Wilson's)
of the best error over the validation examples.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# Scores that measure error and calibration together, in order of recommendation.
RECOMMENDED = ("refinement_nll", "nll", "refinement_brier", "brier", "error")
_FREE = ("refinement_nll", "nll")  # recommended at any error
_PART = "validation"
_ERROR = f"{_PART}_error"
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
    rows: Sequence[Row],
    best: Mapping[str, Mapping[str, float]],
    directions: Mapping[str, str],
    num_examples: int,
    saved: Collection[int] = (),
) -> list[str]:
    """Describe the best checkpoints of a run; the first line names the recommended checkpoint.

    Args:
      rows: the rows of the log.
      best: the step, epoch and value of the best evaluation, by metric.
      directions: "min" or "max", by metric.
      num_examples: the number of validation examples.
      saved: the steps of the checkpoints on disk.
    """
    lowest = _lowest_error(rows)
    errors = {name: _value(_row_of(rows, record["step"]), "error") for name, record in best.items()}
    within = [
        row
        for row in _measured(rows, "error")
        if lowest and row[_ERROR] <= highest_error(lowest[_ERROR], num_examples)
    ]
    steps_within = {row["step"] for row in within}
    choices = [
        name
        for name in (*RECOMMENDED, *best)
        if name in best
        and (name in _FREE or best[name]["step"] in steps_within)
        and (lowest is not None or name in RECOMMENDED)
    ]
    lines = []
    for name in dict.fromkeys([*choices[:1], *best]):
        record = best[name]
        head = f"The best {name} is {record['value']:.4f}, of epoch {record['epoch']:g}"
        if name != "error" and errors[name] is not None:
            head += f", where the error is {errors[name]:.4f}"
        flag = f"--checkpoint=best_{name}"
        if name in choices[:1]:
            line = f"{head}; evaluate it with {flag}."
        elif name in choices:
            line = f"{head} ({flag})."
        elif lowest is None:
            line = f"{head}; no error was measured, and a network at chance may have a good {name}."
        else:
            line = f"{head}, and the best error, {_of_epoch(lowest)}, is lower by more than noise."
        if name in choices and lowest is not None and record["step"] not in steps_within:
            line += f" The best error, {_of_epoch(lowest)}, is lower by more than noise."
        if name not in choices and lowest is not None:
            line += _instead(name, directions.get(name, "min"), within, saved)
        lines.append(line)
    return lines


def _instead(name: str, direction: str, within: Sequence[Row], saved: Collection[int]) -> str:
    """Name the best epoch by a metric among the epochs within noise of the best error."""
    measured = _measured(within, name)
    if not measured:
        return ""
    row = (min if direction == "min" else max)(measured, key=lambda row: _value(row, name))
    flag = f" (--checkpoint={row['step']})" if row["step"] in saved else ""
    return (
        f" Among the epochs within noise of the best error, epoch {row['epoch']:g} has the best"
        f" {name}, {_value(row, name):.4f}{flag}."
    )


def remark(rows: Sequence[Row], name: str, step: int, num_examples: int = 0) -> str:
    """Compare the error of a checkpoint that a metric chose with the best error.

    Args:
      rows: the rows of the log.
      name: the name of the checkpoint; only best_NAME has a remark, except best_error.
      step: the step of the checkpoint.
      num_examples: the number of validation examples; 0 if it is unknown.
    """
    if not name.startswith("best_") or name == "best_error":
        return ""
    lowest, error = _lowest_error(rows), _value(_row_of(rows, step), "error")
    if lowest is None or error is None:
        return ""
    text = f"{name} is of epoch {_row_of(rows, step)['epoch']:g}, with a validation error of"
    text += f" {error:.4f}; the best error is {_of_epoch(lowest)}"
    if not num_examples:
        return f"{text}."
    if error <= highest_error(lowest[_ERROR], num_examples):
        return f"{text}, and the difference is within noise."
    metric = name.removeprefix("best_")
    return f"{text}, lower by more than noise: {_ADVICE.get(metric, _OTHERS)}."


_OTHERS = "choose by the NLL (best_nll) or by refinement_nll, unless you want this epoch"
_ADVICE = dict.fromkeys(_FREE, "best_error is the checkpoint of it")


def _row_of(rows: Sequence[Row], step: float) -> Row:
    return next((row for row in rows if row["step"] == step), {})


def _value(row: Row, name: str) -> Any:
    value = row.get(f"{_PART}_{name}")
    return None if value is None or math.isnan(value) else value


def _measured(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if _value(row, name) is not None]


def _lowest_error(rows: Sequence[Row]) -> Row | None:
    return min(_measured(rows, "error"), key=lambda row: row[_ERROR], default=None)


def _of_epoch(lowest: Row) -> str:
    return f"{lowest[_ERROR]:.4f} of epoch {lowest['epoch']:g}"
