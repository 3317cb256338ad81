"""Convert predictions to logits, average those of several models, and find equal examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import metrics
from calib_jax.core import checks
from calib_jax.core.arrays import as_array, as_numbers, binary
from calib_jax.core.types import Array, Logits
from calib_jax.core.values import LEAST_ROWS, look_like_probabilities, refuse_probabilities

# Smaller probabilities are raised to this value, so that their logarithm is finite.
FLOOR = 1e-38
# Sums of single-precision probabilities differ from 1 by less than this.
_ROUNDED = 1e-5
# Sums of a softmax that was computed in bfloat16 or float16 differ from 1 by less than this.
_OF_16_BITS = 2**-7


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
    predictions = _floating(predictions)
    one_column = predictions.ndim == 1 or predictions.shape[-1] == 1
    if not one_column and isinstance(predictions, np.ndarray) and predictions.dtype == np.float64:
        # Single precision would round logits with a large offset to equal numbers.
        large = np.nan_to_num(predictions, nan=0, posinf=0, neginf=0)
        if np.abs(large).max() > 1e4:
            with np.errstate(invalid="ignore"):
                predictions = predictions - predictions.max(axis=-1, keepdims=True)
    predictions = jnp.asarray(predictions)
    if one_column:
        _refuse_probability_column(name, predictions.reshape(-1), weights)
    else:
        refuse_probabilities(name, predictions, weights)
    return binary(predictions.reshape(-1)) if one_column else predictions


def _refuse_probability_column(name: str, column: Array, weights: Any) -> None:
    """Raise an error if all values of positive weight, 20 or more, lie in [0, 1]."""
    present = np.asarray(column) if weights is None else np.asarray(column)[np.asarray(weights) > 0]
    if len(present) >= LEAST_ROWS and np.all((present >= 0) & (present <= 1)):
        raise ValueError(
            f"{name}: all {len(present)} values of the one column lie in [0, 1], so they may be"
            " probabilities.\nIf so, use probabilities=True (--probabilities). If they are logits"
            " z, give the two columns -1 and z - 1."
        )


def probability_rows(predictions: Any, *, weights: Any = None, name: str = "score") -> np.ndarray:
    """Validate probabilities `[n, classes]`, or `[n]` of class 1, and divide rows by their sums.

    Args:
      predictions: the probabilities; a row's sum may differ from 1 by the rounding error of a
        softmax in 16 bits (1/128), or by that of its displayed digits.
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
    right = np.full(len(present), True)
    if len(present):
        sums = present.sum(axis=-1, dtype=np.float64)
        right = np.all((present >= 0) & (present <= 1 + _OF_16_BITS), axis=-1)
        right &= np.abs(sums - 1) <= _OF_16_BITS
        right |= np.asarray(look_like_probabilities(jnp.asarray(present)))
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
    sets = [_present_rows(*map(as_array, each)) for each in (one, other)]
    return len(sets[0][0]) == len(sets[1][0]) == shared_rows(one, other)


def shared_rows(scored: tuple[Any, Any, Any], fitted: tuple[Any, Any, Any]) -> int:
    """Count the scored rows that also are rows of a fit, up to a constant in each row.

    Rounded confidences are equal by chance. The share of rows of the fit that have a twin in the
    fit estimates this chance, and only a count that exceeds it by 4 standard deviations is
    returned. Where most rows are equal by chance, a fit counts if it contains all scored rows and
    hardly any other.

    Args:
      scored: logits, probabilities or confidences, labels, and weights or None.
      fitted: the same of the examples of a fit.
    """
    (rows, labels, reach), (others, other_labels, other_reach) = (
        _present_rows(*map(as_array, each)) for each in (scored, fitted)
    )
    n, m = len(rows), len(others)
    if not n or not m or rows.shape[1] != others.shape[1]:
        return 0
    if np.array_equal(labels, other_labels) and np.allclose(rows, others, 1e-4, 1e-5, True):
        return n
    reach = max(reach, other_reach)
    rows, others = _centred(rows, labels), _centred(others, other_labels)
    number = int(np.sum(_found(rows, others, reach)))
    chance = max(
        float(np.mean(_found(others, others, times * reach, is_self=True))) / times
        for times in (1, 100)
    )
    if number > n * chance + 4 * math.sqrt(n * chance * (1 - chance)):
        return number
    if chance < 0.5:
        return 0
    pairs, counts = np.unique(np.concatenate([rows, others]), axis=0, return_inverse=True)
    in_rows, in_others = (np.bincount(part, minlength=len(pairs)) for part in np.split(counts, [n]))
    is_contained = len(pairs) >= 10 and m <= 1.02 * n and np.all(in_rows <= in_others)
    return n if is_contained else 0


def _present_rows(logits: Any, labels: Any, weights: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Select the rows of positive weight; also return the rounding error of their precision."""
    labels = np.asarray(labels).reshape(-1)
    given = np.asarray(logits).reshape(len(labels), -1)
    kept = slice(None) if weights is None else np.asarray(weights).reshape(-1) > 0
    rows = given[kept].astype(np.float32)
    finite = np.abs(rows[np.isfinite(rows)])
    kind = given.dtype if jnp.issubdtype(given.dtype, jnp.floating) else np.float32
    eps = max(float(jnp.finfo(kind).eps), float(np.finfo(np.float32).eps))
    return rows, labels[kept], 4 * eps * max(1.0, float(np.max(finite, initial=0)))


def _centred(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Subtract the maximum of each row, unless it has one entry; append the label."""
    if rows.shape[1] > 1:
        with np.errstate(invalid="ignore"):
            rows = np.maximum(rows - rows.max(axis=1, keepdims=True), -1e4)
    return np.column_stack([rows, labels.astype(np.float32)])


def _found(
    rows: np.ndarray, others: np.ndarray, reach: float, *, is_self: bool = False
) -> np.ndarray:
    """Mark the rows that are among others, up to `reach`: the neighbors on a random line."""
    line = np.random.default_rng(0).standard_normal(rows.shape[1])
    of_rows, of_others = rows.astype(np.float64) @ line, others.astype(np.float64) @ line
    order = np.argsort(of_others, kind="stable")
    place = np.searchsorted(of_others[order], of_rows)
    if is_self:
        place = np.argsort(order)
    found = np.zeros(len(rows), bool)
    for step in (-1, 1) if is_self else (-1, 0):
        near = np.clip(place + step, 0, len(others) - 1)
        inside = (place + step >= 0) & (place + step < len(others))
        inside &= np.abs(of_others[order[near]] - of_rows) <= reach * np.abs(line).sum()
        for some in np.array_split(np.flatnonzero(inside), 1 + len(rows) // 4096):
            difference = np.abs(rows[some] - others[order[near[some]]])
            found[some] |= np.all(difference <= reach, axis=1)
    return found
