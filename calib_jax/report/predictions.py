"""Convert predictions to logits, average those of several models, and find equal examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import metrics
from calib_jax.core.binary import binary
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.arrays import as_array, as_numbers
from calib_jax.core.inputs.invalid_values import (
    look_like_probabilities,
    refuse_probabilities,
    refuse_probability_column,
)
from calib_jax.core.types import Logits

# Smaller probabilities are raised to this value, so that their logarithm is finite.
FLOOR = 1e-38
# Sums of single-precision probabilities differ from 1 by less than this.
_ROUNDED = 1e-5


def as_logits(
    predictions: Any,
    *,
    probabilities: bool = False,
    floor: float = FLOOR,
    weights: Any = None,
    name: str = "score",
) -> Logits:
    """Convert predictions to logits `[*batch, classes]`.

    Args:
      predictions: `[n, classes]`; `[n]` or `[n, 1]` for a binary model.
      probabilities: if True, predictions are probabilities: divide each row by its sum and take the
        logarithm. If False, raise for predictions that look like probabilities: rows that all sum
        to 1, or one column within [0, 1].
      floor: smaller probabilities are raised to this value; 0 keeps them, and log 0 is -inf.
      weights: weight of each example; rows of weight 0 may contain anything.
      name: name of the caller, for error messages.
    """
    if probabilities:
        checks.between("floor", floor, 0, 0.1)
        with np.errstate(divide="ignore"):
            log_p = np.log(probability_rows(predictions, weights=weights, name=name))
        lowest = math.log(floor) if floor > 0 else -math.inf
        return jnp.asarray(np.maximum(log_p, lowest), jnp.float32)
    predictions = jnp.asarray(_floating(predictions))
    one_column = predictions.ndim == 1 or predictions.shape[-1] == 1
    refuse = refuse_probability_column if one_column else refuse_probabilities
    refuse(name, predictions.reshape(-1) if one_column else predictions, weights)
    return binary(predictions.reshape(-1)) if one_column else predictions


def probability_rows(predictions: Any, *, weights: Any = None, name: str = "score") -> np.ndarray:
    """Validate probabilities `[n, classes]`, or `[n]` of class 1, and divide rows by their sums.

    Args:
      predictions: the probabilities; a row's sum may differ from 1 by .001, or by the rounding
        error of its displayed digits.
      weights: weight of each example; a row of weight 0 becomes uniform.
      name: name of the caller, for error messages.
    """
    p = np.asarray(_floating(predictions))
    p = p.reshape(-1) if p.ndim == 1 or p.shape[-1] == 1 else p
    one_column = p.ndim == 1
    if one_column:
        p = np.stack([1 - p, p], axis=-1)
    rows = p.reshape(-1, p.shape[-1])
    counts = np.full(len(rows), True) if weights is None else np.asarray(weights).reshape(-1) > 0
    if len(counts) != len(rows):
        raise ValueError(f"{name}: {len(rows)} rows need as many weights, got {len(counts)}.")
    present = rows[counts]
    right = look_like_probabilities(present) if len(present) else np.full(0, True)
    if not np.all(right):
        raise ValueError(f"{name}: {_no_probabilities(present, right, one_column)}")
    result = np.full(rows.shape, 1 / rows.shape[-1], np.promote_types(rows.dtype, np.float32))
    result[counts] = present.astype(result.dtype)
    result[counts] /= result[counts].sum(axis=-1, keepdims=True)
    return result.reshape(p.shape)


def _no_probabilities(rows: np.ndarray, right: np.ndarray, one_column: bool) -> str:
    """Show the first row that is not probabilities, and suggest what the row may be."""
    wrong = rows[np.argmin(right)]
    values = rows[:, 1] if one_column else wrong
    hint = ""
    if values.min() < 0:
        hint = " These are logarithms, or logits: leave probabilities out."
    elif 2 < values.max() <= 100 if one_column else abs(values.sum() - 100) < 1:
        hint = " These are percentages: divide them by 100."
    numbers = ", ".join(f"{value:.4g}" for value in wrong[:6]) + ", ..." * (len(wrong) > 6)
    found = f"{numbers} have the sum {wrong.sum():.4g}"
    if one_column:
        found = f"{wrong[1]:.4g} in the column of class 1 is not in [0, 1]"
    return f"probabilities must not be negative and must sum to 1 in every row, and {found}.{hint}"


def _floating(predictions: Any) -> Any:
    """Raise if predictions are empty or not floating point."""
    predictions = as_array(predictions)
    if not hasattr(predictions, "dtype"):
        predictions = np.asarray(predictions)
    if not jnp.issubdtype(predictions.dtype, jnp.floating):
        raise TypeError(f"predictions must be floating point, got {predictions.dtype}.")
    if predictions.ndim == 0 or predictions.size == 0:
        raise ValueError(f"there are no predictions, their shape is {predictions.shape}.")
    return predictions


def notes_on(
    predictions: Any,
    logits: Logits,
    labels: Any,
    weights: Any = None,
    *,
    probabilities: bool = False,
    floor: float = FLOOR,
) -> list[str]:
    """Report changes to predictions: normalised rows, and true classes of probability 0.

    Args:
      predictions: the predictions as given.
      logits: the output of `as_logits`, `[n, classes]`.
      labels: `[n]`.
      weights: `[n]`.
      probabilities: True if the predictions are probabilities.
      floor: the value to which smaller probabilities were raised.
    """
    counts = np.ones(len(labels), bool) if weights is None else np.asarray(weights) > 0
    notes = []
    if probabilities and np.ndim(predictions) > 1 and np.shape(predictions)[-1] > 1:
        rows = np.asarray(predictions).reshape(logits.shape)[counts]
        sums = rows.sum(axis=-1, dtype=np.float64)
        if np.any(np.abs(sums - 1) > _ROUNDED):
            notes.append(
                f"The rows of probabilities sum to {sums.min():.4g} to {sums.max():.4g}: each was"
                " divided by its sum."
            )
    # Labels of weight 0 may be out of range.
    inside = np.where(counts, np.asarray(labels), 0)[:, None]
    of_true = np.take_along_axis(np.asarray(logits), inside, axis=-1)[:, 0]
    floored = probabilities and floor > 0
    # One unit in the last place of single precision is 8e-6 at log 1e-38.
    lowest = math.log(floor) + 1e-5 if floored else -math.inf
    impossible = counts & (of_true <= lowest)
    number, total = int(np.sum(impossible)), int(np.sum(counts))
    if not number:
        return notes
    if floored:
        what = "probability 0" if floor == FLOOR else f"a probability of at most {floor:.3g}"
        note = f"{number:,} of {total:,} true classes have {what}; NLL takes them as {floor:.3g}."
    else:
        note = f"{number:,} of {total:,} true classes have probability 0, so NLL is infinite."
    if number < total:
        others = np.where(impossible, 0, 1 if weights is None else np.asarray(weights))
        without = float(metrics.nll(logits, labels, jnp.asarray(others, jnp.float32)))
        note += f" Without these examples it is {without:.4f}."
    if not probabilities:
        note += (
            " If probabilities were rounded to 0, give these with probabilities=True"
            " (--probabilities): a floor then replaces 0."
        )
    elif floored:
        note += " The option floor (--floor) sets another value."
    return [*notes, note]


def average(models: Sequence[Any]) -> Logits:
    r"""Average the probabilities of several models, $\log \frac1M \sum_m p_m$."""
    logits = [jnp.asarray(as_numbers("average", "logits", z), jnp.float32) for z in models]
    if len({z.shape for z in logits}) != 1:
        sizes = ", ".join(str(z.shape) for z in logits)
        raise ValueError(f"an average needs predictions of one shape, got {sizes}.")
    log_p = jax.nn.log_softmax(jnp.stack(logits))
    return jax.nn.logsumexp(log_p, axis=0) - jnp.log(len(models))


def same_examples(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    """Check whether two sets hold the same rows of positive weight, in any order.

    Args:
      one: logits or probabilities, labels, and weights or None, of the first set.
      other: logits or probabilities, labels, and weights or None, of the second set.
    """
    rows, labels = _present_rows(*map(as_array, one))
    others, other_labels = _present_rows(*map(as_array, other))
    if rows.shape != others.shape:
        return False
    if np.array_equal(labels, other_labels) and np.allclose(rows, others, 1e-4, 1e-5, True):
        return True
    digests = _digests(rows, labels)
    return np.array_equal(np.sort(digests), np.sort(_digests(others, other_labels)))


def _present_rows(logits: Any, labels: Any, weights: Any) -> tuple[np.ndarray, np.ndarray]:
    """Select the rows of positive weight, in single precision."""
    labels = np.asarray(labels).reshape(-1)
    rows = np.asarray(logits).reshape(len(labels), -1).astype(np.float32)
    if weights is None:
        return rows, labels
    counts = np.asarray(weights).reshape(-1) > 0
    return rows[counts], labels[counts]


def _digests(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Hash each row with its label to 64 bits, by random multiples of the bits."""
    multiples = np.random.default_rng(0).integers(2**64, size=rows.shape[1] + 1, dtype=np.uint64)
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint32)  # + 0.0 turns -0.0 into 0.0
    digests = labels.astype(np.uint64) * multiples[-1]
    for column, multiple in zip(bits.T, multiples, strict=False):
        digests += column.astype(np.uint64) * multiple
    return digests
