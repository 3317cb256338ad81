"""The judgement of values: one compiled pass counts the invalid rows, and `refuse` raises.

Three places judge values: the readers of the command, `inference.Evaluation`, and eager calls of
metrics and fits. Inside `jit` invalid values give NaN, never a wrong finite number (see
`core.numerics.valid`).

Probabilities passed as logits raise an error, too. Softmax accepts any numbers, so probabilities
would be scored wrongly without an error. Logits and probabilities differ only in their values. A
few logits may look like probabilities by chance, so at least `LEAST_ROWS` rows are needed.

Stated confidences are pairs `confidence`, `correct` in place of logits and labels: answers of a
language model, a judge, or any score that is a probability of being right. Inside the library, a
stated confidence is one column `[*batch, 1]` in place of the logits, and the label is 1 where the
answer is right. `two_classes` are the logits of that event.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Real

from calib_jax.core import arrays, checks, numerics
from calib_jax.core.types import Array, ArrayLike, Batch, Labels, Logits, Weights

LEAST_ROWS = 20

_TOLERANCE = 8e-3  # of a sum, for a softmax in bfloat16, whose numbers have 8 binary digits
_SHARE = 0.97  # of the rows: a few rows of zeros or NaN do not turn probabilities into logits
_FEW = 32  # rows that are read first


class InvalidValues(NamedTuple):
    """The number of invalid rows by cause, and the total weight."""

    not_finite: Real[Array, ""]
    wrong_label: Real[Array, ""]
    a_wrong_label: Real[Array, ""]
    wrong_weight: Real[Array, ""]
    weight: Real[Array, ""]


def judge(name: str, logits: Logits, labels: Labels, weights: Any, num_rows: int = 0) -> None:
    """Raise an error if rows `[rows, classes]` have invalid values, or look like probabilities.

    The message counts `num_rows`, if given, in place of all rows.
    """
    refuse(name, _counted(logits, labels, weights), (num_rows or len(logits), logits.shape[-1]))
    refuse_probabilities(name, logits, weights)


def count_invalid_values(logits: Logits, labels: Labels, weights: Weights | None) -> InvalidValues:
    """Count the rows with invalid values; rows of weight 0 may hold anything."""
    weights = jnp.ones(labels.shape) if weights is None else weights
    counts = weights != 0
    wrong = ~numerics.valid(labels, max(2, logits.shape[-1])) & counts  # one column: two classes
    if is_stated(logits):
        odd = ~((logits[..., 0] >= 0) & (logits[..., 0] <= 1))
    else:
        odd = not_finite(logits)
    of_weights = jnp.sum(~((weights >= 0) & (weights < jnp.inf))), jnp.sum(weights)
    of_labels = jnp.sum(wrong), labels[jnp.argmax(wrong)]
    return InvalidValues(jnp.sum(odd & counts), *of_labels, *of_weights)


_counted = jax.jit(count_invalid_values)


def not_finite(logits: Any) -> Bool[Array, "*batch"]:
    """Mark rows with NaN or +inf, and rows in which every class is -inf.

    A logit of -inf is a class of probability 0. One sum, which is faster than `all` on a CPU,
    detects whether any logit is not finite; only then are impossible classes counted. Where a
    softmax is computed anyway, its total detects the same rows at no cost:
    `~jnp.isfinite(sum(exp(z - max z)))`. The maximum alone does not, because XLA drops NaN from
    it on a CPU for 64 classes and more.
    """
    logits = numerics.at_least_float32(jnp.asarray(logits))
    odd = ~jnp.isfinite(jnp.sum(0 * logits, axis=-1))

    def unless_impossible() -> Bool[Array, "*batch"]:
        impossible = jnp.sum(jnp.where(logits == -jnp.inf, 1, 0 * logits), axis=-1)
        return ~(impossible < logits.shape[-1])

    return lax.cond(jnp.any(odd), unless_impossible, lambda: odd)


def refuse(
    name: str, invalid: InvalidValues, shape: tuple[int, ...], *, weightless: bool = False
) -> None:
    """Raise an error of one sentence if any values are invalid.

    Args:
      name: the name of the caller, for the error message.
      invalid: the counts.
      shape: the numbers of rows and classes.
      weightless: whether all weights may be 0.
    """
    counts, num_rows = jax.device_get(invalid), shape[0]
    if not (counts.wrong_weight or counts.weight > 0 or weightless):
        raise ValueError(f"{name}: all {num_rows} weights are 0, so there is nothing to measure.")
    of_logits = (
        "confidences are outside [0, 1]: divide percent by 100; calib_jax.binary(score) converts"
        " the one logit of a binary model."
        if shape[-1] == 1
        else "rows have NaN or infinite logits (-inf beside finite ones is fine); give them weight"
        " 0, or find their cause."
    )
    of_labels = f"labels are not among the {max(2, shape[-1])} classes, {counts.a_wrong_label}"
    of_weights = "weights are negative, infinite or NaN; use weight 0 for absent examples."
    for count, problem in (
        (counts.wrong_weight, of_weights),
        (counts.not_finite, of_logits),
        (counts.wrong_label, f"{of_labels} is one; give ignored examples weight 0."),
    ):
        if count:
            raise ValueError(f"{name}: {count} of {num_rows} {problem}")


# --------------------------------------------------------------------------------------------
# Probabilities passed as logits. NumPy judges them: compiled, this took longer than most metrics.


def refuse_probabilities(name: str, logits: Any, weights: Any = None) -> None:
    """Raise an error if nearly all rows of positive weight, 20 or more, look like probabilities."""
    refuse_alike(name, *count_alike(logits, weights))


def refuse_alike(name: str, alike: int, judged: int) -> None:
    """Raise an error if nearly all of the rows that were judged look like probabilities."""
    if judged >= LEAST_ROWS and alike > _SHARE * judged:
        count = f"all {judged}" if alike == judged else f"{alike} of {judged}"
        raise ValueError(
            f"{name}: {count} rows of the logits look like probabilities: they have no"
            " negative entry, and sum to 1.\nIf they are probabilities, give their logarithms,"
            " or in a report use probabilities=True (--probabilities).\nIf they are logits,"
            " subtract 1 from all of them: the softmax stays the same."
        )


def count_alike(logits: Any, weights: Any = None) -> tuple[int, int]:
    """Count the rows that look like probabilities, and the rows that were judged.

    A few rows are read first, and the others only if half of the few look like probabilities, so
    the count costs next to nothing for logits. Rows of zeros and ones are not judged: predictions
    of a tree and one-hot logits have them. Nor are rows that are spread over several processes.
    """
    if is_stated(logits) or not getattr(logits, "is_fully_addressable", True):
        return 0, 0
    if jax.default_backend() == "cpu":  # else only a few rows are copied
        logits = np.asarray(logits)
    logits = logits.reshape(-1, logits.shape[-1])
    counts = np.ones(len(logits), bool) if weights is None else np.ravel(np.asarray(weights)) > 0
    few = np.linspace(0, len(counts) - 1, min(_FEW, len(counts)), dtype=int)
    alike, judged = _count_alike(np.asarray(logits[few]), counts[few])
    return _count_alike(np.asarray(logits), counts) if 2 * alike >= judged else (alike, judged)


def _count_alike(rows: np.ndarray, counts: np.ndarray) -> tuple[int, int]:
    """Count rows that are non-negative and sum to 1, and the rows that were judged.

    A sum may be off by .008, the rounding of 16-bit types, or by the rounding of printed digits if
    all entries of the row are multiples of .1, .01, ...
    """
    judged = int(np.sum(counts))
    rows = rows[counts & np.all((rows >= 0) & (rows <= 1 + _TOLERANCE), axis=-1)]
    if not len(rows):
        return 0, judged
    whole = np.all((rows == 0) | (rows == 1), axis=-1)
    judged -= int(np.sum(whole))
    rows = rows[~whole].astype(np.result_type(rows, np.float32))
    allowed = np.full(len(rows), _TOLERANCE)
    for digits in (4, 3, 2, 1):  # the coarsest rounding that fits all entries comes last
        units = rows * 10**digits
        near = np.all(np.abs(units - np.round(units)) <= 10**digits * 1e-6, axis=-1)
        # Each entry may be off by half of its last digit; the cap of 0.5 excludes a sum of 0.
        printed = min(0.5, rows.shape[-1] * 0.5 * 10**-digits)
        allowed = np.where(near, max(_TOLERANCE, printed), allowed)
    return int(np.sum(np.abs(rows.sum(axis=-1) - 1) <= allowed)), judged


# --------------------------------------------------------------------------------------------
# Rows of whole data sets.


def flat_rows(name: str, *batch: Any, merges: bool = False, least_classes: int = 1) -> Batch:
    """Validate shapes and dtypes, and convert a batch to arrays with one batch axis.

    Weights that cannot count copies are scaled (`numerics.counted`), unless the statistics of the
    rows merge with those of other rows.

    Args:
      name: the name of the caller, for error messages.
      batch: logits, labels and weights.
      merges: whether the statistics of the rows merge.
      least_classes: as in `batch_of`.
    """
    logits, labels, weights = arrays.batch_of(name, *batch, least_classes=least_classes)
    if labels.size == 0:
        raise ValueError(f"{name}: there are no examples, the labels have shape {labels.shape}.")
    flat = weights if weights is None else weights.reshape(-1)
    if not (merges or flat is None or _are_counts(flat)):
        flat = numerics.counted(flat)
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), flat


def _are_counts(weights: Weights) -> bool:
    """Check on the host, without a compiled program, whether all weights are 0 or at least 1.

    No host can read weights that are traced, or that are spread over several processes.
    """
    readable: bool = checks.concrete(weights) and weights.is_fully_addressable
    return readable and not np.any(np.asarray(weights)[np.asarray(weights) > 0] < 1)


def ids_of(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Validate clusters or groups of examples of this shape; return them along one axis.

    Text of variable length, as pandas holds it, is converted.
    """
    ids = np.asarray(arrays.as_array(arrays.gathered(values)))
    if ids.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, one for each example, got {ids.shape}.")
    ids = ids.astype(str) if ids.dtype == object else ids
    if ids.dtype.kind not in "biuUS":
        raise TypeError(f"{name} must be integers, strings or booleans, got {ids.dtype}.")
    return ids.ravel()


# --------------------------------------------------------------------------------------------
# Stated confidences.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stated:
    """Confidences that were stated for answers, and whether the answers are right.

    It stands in place of the logits of every metric, and of every function of `inference` that
    needs no classes. A metric then reads the confidence as the probability that the answer is
    right, also below 1/2: the ECE of answers stated at .3, of which 10 % are right, is .2. The
    Brier score is the mean of (confidence - correct)^2, half of that of two classes.

    Attributes:
      confidence: `[*batch]`, in [0, 1].
      correct: `[*batch]`, True or 1 where the answer is right, else False or 0.

    >>> from calib_jax import metrics
    >>> stated = metrics.Stated([0.9, 0.9, 0.3, 0.3], [True, True, False, False])
    >>> metrics.ece(stated)
    Array(0.2, dtype=float32)
    >>> metrics.brier(stated)
    Array(0.05, dtype=float32)
    """

    confidence: ArrayLike
    correct: ArrayLike

    __repr__ = checks.short_repr

    def columns(self, name: str) -> tuple[Float[Array, "*batch 1"], Array]:
        """Validate the pair; return the confidences as one column, and the labels.

        Args:
          name: the name of the caller, for error messages.
        """
        confidence = arrays.as_floats(name, "confidence", self.confidence)
        correct = arrays.as_labels(arrays.as_numbers(name, "correct", self.correct))
        if confidence.shape != correct.shape or confidence.ndim == 0:
            raise ValueError(
                f"{name}: confidence and correct need one value for each answer, got the shapes"
                f" {confidence.shape} and {correct.shape}."
            )
        labels = correct.astype(jnp.int32)
        labels = jnp.where(labels == correct, labels, -1)  # 0.5 is no answer, and out of range
        return confidence[..., None], labels


def rows_of(name: str, logits: Any, labels: Any) -> tuple[Any, Any]:
    """Return the column and the labels of a `Stated`; return other logits and labels unchanged."""
    if isinstance(logits, Stated):
        if labels is not None:
            raise TypeError(f"{name}: a Stated holds its labels: leave out labels.")
        return logits.columns(name)
    if labels is None:
        raise TypeError(f"{name}: logits need labels, or give a metrics.Stated.")
    return logits, labels


def is_stated(logits: Any) -> bool:
    """Check whether logits are one column of stated confidences."""
    return bool(logits.shape[-1] == 1)


def two_classes(logits: Logits) -> Float[Array, "*batch two_or_more"]:
    """Convert one column c to the logits log(1 - c) and log c of wrong and right; else no-op.

    NaN where c is outside [0, 1].
    """
    if not is_stated(logits):
        return logits
    confidence = numerics.at_least_float32(logits)
    return jnp.concatenate([jnp.log1p(-confidence), jnp.log(confidence)], axis=-1)
