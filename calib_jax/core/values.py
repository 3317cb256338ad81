"""Invalid values: one compiled pass counts them, and outside `jit` they raise an error.

Inside `jit` invalid values give NaN, never a wrong finite number (see `core.numerics.valid`).
Outside `jit`, where values can be read, they raise an error that counts them.

Probabilities passed as logits also raise an error, outside `jit`. Softmax accepts any numbers, so
probabilities would be scored wrongly without an error. Logits and probabilities are both floating
point and differ only in their values. A few logits may look like probabilities by chance, so the
check reads all rows of an input once, where they enter, and only if there are at least
`LEAST_ROWS`. Parts of an input (groups, folds, batches) are not checked: see
`probabilities_checked`.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Real

from calib_jax.core import numerics, rows
from calib_jax.core.arrays import (
    as_array,
    as_labels,
    as_numbers,
    batch_of,
    concrete,
    gathered,
    host_integers,
    unmasked,
    weights_for,
)
from calib_jax.core.names import short_repr
from calib_jax.core.numerics import at_least_float32, valid
from calib_jax.core.rows import LARGEST_TOTAL
from calib_jax.core.types import Array, ArrayLike, Labels, Logits, Weights

LEAST_ROWS = 20

_TOLERANCE = 8e-3  # of a sum, for a softmax in bfloat16, whose numbers have 8 binary digits
_SHARE = 0.97  # of the rows: a few rows of zeros or NaN do not turn probabilities into logits
_FEW = 32  # rows that are read first
_checked = contextvars.ContextVar("checked", default=False)


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


class InvalidValues(NamedTuple):
    """The number of invalid rows by cause, and the total weight."""

    not_finite: Real[Array, ""]
    wrong_label: Real[Array, ""]
    a_wrong_label: Real[Array, ""]
    wrong_weight: Real[Array, ""]
    weight: Real[Array, ""]


def num_classes_of(shape: tuple[int, ...]) -> int:
    """Return the number of classes; one column states the probability of the second of two."""
    return max(2, shape[-1])


def count_invalid_values(logits: Logits, labels: Labels, weights: Weights | None) -> InvalidValues:
    """Count the rows with invalid values; rows of weight 0 may hold anything."""
    labels = as_labels(labels)
    counts = True if weights is None else weights != 0
    wrong = ~valid(labels, num_classes_of(logits.shape)) & counts
    stated = logits.shape[-1] == 1
    odd = ~((logits[..., 0] >= 0) & (logits[..., 0] <= 1)) if stated else not_finite(logits)
    return InvalidValues(
        not_finite=jnp.sum(odd & counts),
        wrong_label=jnp.sum(wrong),
        a_wrong_label=labels[jnp.argmax(wrong)],
        wrong_weight=jnp.array(0)
        if weights is None
        else jnp.sum(~((weights >= 0) & (weights < jnp.inf))),
        weight=jnp.array(1.0) if weights is None else jnp.sum(weights),
    )


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
    counts = jax.device_get(invalid)
    num_rows, num_classes = shape[0], num_classes_of(shape)
    if counts.wrong_weight:
        raise ValueError(
            f"{name}: {counts.wrong_weight} of {num_rows} weights are negative, infinite or NaN;"
            " use weight 0 for examples that do not count."
        )
    if counts.weight > LARGEST_TOTAL:
        raise ValueError(
            f"{name}: the weights sum to {counts.weight:.3g}, and sums of float32 end soon after:"
            " divide them all by the largest."
        )
    if not (counts.weight > 0 or weightless):
        raise ValueError(f"{name}: all {num_rows} weights are 0, so there is nothing to measure.")
    if counts.not_finite and shape[-1] == 1:
        raise ValueError(
            f"{name}: {counts.not_finite} of {num_rows} rows of the one column are outside [0, 1],"
            " but one column states confidences; calib_jax.binary(score) converts one logit."
        )
    if counts.not_finite:
        raise ValueError(
            f"{name}: {counts.not_finite} of {num_rows} rows have NaN or infinite logits (-inf"
            " beside finite ones is fine); give them weight 0, or find their cause."
        )
    if counts.wrong_label:
        raise ValueError(
            _wrong_labels(name, counts.wrong_label, num_rows, num_classes, counts.a_wrong_label)
        )


def refuse_labels(name: str, labels: np.ndarray, weights: Weights | None, num_classes: int) -> None:
    """Raise an error for labels out of range; rows of weight 0 may have any label."""
    wrong = (labels < 0) | (labels >= num_classes)
    wrong = wrong if weights is None else wrong & (np.asarray(weights) != 0)
    if np.any(wrong):
        # Report a label beyond 32 bits, if there is one: no other check can report it.
        offending = labels[wrong]
        worst = max((int(offending.max()), int(offending.min())), key=abs)
        raise ValueError(_wrong_labels(name, int(np.sum(wrong)), labels.size, num_classes, worst))


def _wrong_labels(name: str, count: Any, num_rows: int, num_classes: int, one: Any) -> str:
    return (
        f"{name}: {count} of {num_rows} labels are not among the {num_classes} classes, {one} is"
        " one; give ignored examples weight 0."
    )


# --------------------------------------------------------------------------------------------
# Probabilities passed as logits.


@contextlib.contextmanager
def probabilities_checked() -> Iterator[None]:
    """Skip `refuse_unchecked_probabilities` inside, which receives parts of a checked input.

    >>> rows = np.full((20, 2), 0.5)
    >>> with probabilities_checked():
    ...     refuse_unchecked_probabilities("nll", rows)
    """
    reset = _checked.set(True)
    try:
        yield
    finally:
        _checked.reset(reset)


def refuse_unchecked_probabilities(name: str, logits: Any, weights: Any = None) -> None:
    """Call `refuse_probabilities`, except inside `probabilities_checked`."""
    if not _checked.get():
        refuse_probabilities(name, logits, weights)


def refuse_probabilities(name: str, logits: Any, weights: Any = None) -> None:
    """Raise an error if the rows of positive weight, 20 or more, look like probabilities.

    A few of these rows are checked on the host, and the others only if half of the few look like
    probabilities, so the check costs next to nothing for logits.

    Args:
      name: the name of the caller, for the error message.
      logits: `[*batch, classes]`, not traced.
      weights: the weight of each row, not traced.
    """
    suspicion = Suspicion()
    suspicion.add(logits, weights)
    suspicion.refuse(name)


class Suspicion:
    """The number of rows that look like probabilities, for rows that arrive in parts.

    Rows of zeros and ones are not judged: predictions of a tree and one-hot logits have them.
    """

    def __init__(self) -> None:
        self.num_judged = 0
        self.num_alike = 0
        self.is_readable = True

    def add(self, logits: Any, weights: Any = None) -> None:
        """Add rows, not traced; it costs nothing once most rows look like logits."""
        settled = self.num_judged >= LEAST_ROWS and 2 * self.num_alike < self.num_judged
        if settled or logits.shape[-1] == 1:
            return
        rows = _present_rows(logits, weights)
        if rows is None:
            self.is_readable = False
            return
        if not len(rows):
            return
        few = np.asarray(rows[np.unique(np.linspace(0, len(rows) - 1, _FEW).astype(int))])
        alike, judged = _judged(few)
        if 2 * np.sum(alike) >= np.sum(judged):
            alike, judged = _judged(np.asarray(rows))
        self.num_alike += int(np.sum(alike))
        self.num_judged += int(np.sum(judged))

    def refuse(self, name: str) -> None:
        """Raise an error if nearly all rows look like probabilities and there are enough rows."""
        alike, judged = self.num_alike, self.num_judged
        if self.is_readable and judged >= LEAST_ROWS and alike > _SHARE * judged:
            count = f"all {judged}" if alike == judged else f"{alike} of {judged}"
            raise ValueError(
                f"{name}: {count} rows of the logits look like probabilities: they have no"
                " negative entry, and sum to 1.\nIf they are probabilities, give their logarithms,"
                " or in a report use probabilities=True (--probabilities).\nIf they are logits,"
                " subtract 1 from all of them: the softmax stays the same."
            )


def refuse_probability_column(name: str, column: Any, weights: Any = None) -> None:
    """Raise an error if all values of positive weight, 20 or more, lie in [0, 1]."""
    rows = _present_rows(column.reshape(-1, 1), weights)
    rows = np.empty((0, 1)) if rows is None else np.asarray(rows)
    if len(rows) >= LEAST_ROWS and np.all((rows >= 0) & (rows <= 1)):
        raise ValueError(
            f"{name}: all {len(rows)} values of the one column lie in [0, 1], so they may be"
            " probabilities.\nIf so, use probabilities=True (--probabilities). If they are logits"
            " z, give the two columns -1 and z - 1."
        )


def look_like_probabilities(rows: np.ndarray) -> np.ndarray:
    """Check for each row of `[n, classes]` whether it is non-negative and sums to 1.

    A sum may be off by .008, the rounding of 16-bit types, or by the rounding of printed digits if
    all entries of the row are multiples of .1, .01, ...
    """
    tolerance: Any = max(_TOLERANCE, float(jnp.finfo(rows.dtype).eps))
    rows = rows.astype(numerics.wide(rows.dtype))
    inside = np.all((rows >= 0) & (rows <= 1 + tolerance), axis=-1)
    if not np.any(inside):
        return inside  # the usual case, logits
    for digits in (4, 3, 2, 1):  # the coarsest rounding that fits all entries comes last
        with np.errstate(invalid="ignore", over="ignore"):  # logits may be -inf or 1e38
            units = rows * 10**digits
            near = np.all(np.abs(units - np.round(units)) <= 10**digits * 1e-6, axis=-1)
        # Each entry may be off by half of its last digit; the cap of 0.5 excludes a sum of 0.
        printed = min(0.5, rows.shape[-1] * 0.5 * 10**-digits)
        tolerance = np.where(near, max(_TOLERANCE, printed), tolerance)
    with np.errstate(over="ignore"):
        return inside & (np.abs(np.sum(rows, axis=-1) - 1) <= tolerance)


def _judged(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mark the rows that look like probabilities, and the rows that are not zeros and ones."""
    judged = ~np.all((rows == 0) | (rows == 1), axis=-1)
    return look_like_probabilities(rows) & judged, judged


def _present_rows(logits: Any, weights: Any) -> Any:
    """Return the rows of positive weight; None if another process holds rows."""
    if not getattr(logits, "is_fully_addressable", True):
        return None
    counts = np.ones(logits.shape[:-1], bool) if weights is None else np.asarray(weights) > 0
    if counts.shape != logits.shape[:-1]:
        return None  # another check reports a wrong shape
    # An array on the CPU is read in place; from another device only the requested rows are copied.
    on_cpu = not isinstance(logits, jax.Array) or all(d.platform == "cpu" for d in logits.devices())
    rows = (np.asarray(logits) if on_cpu else logits).reshape(-1, logits.shape[-1])
    return rows if np.all(counts) else rows[np.flatnonzero(counts)]


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

    __repr__ = short_repr

    def columns(self, name: str) -> tuple[Float[Array, "*batch 1"], Array]:
        """Validate the pair; return the confidences as one column, and the labels.

        Args:
          name: the name of the caller, for error messages.
        """
        confidence, correct = (
            jnp.asarray(as_numbers(name, what, values))
            for what, values in (("confidence", self.confidence), ("correct", self.correct))
        )
        if confidence.shape != correct.shape or confidence.ndim == 0:
            raise ValueError(
                f"{name}: confidence and correct need one value for each answer, got the shapes"
                f" {confidence.shape} and {correct.shape}."
            )
        if concrete(confidence, correct):
            _refuse_values(name, np.asarray(confidence), np.asarray(correct))
        return at_least_float32(confidence)[..., None], correct.astype(jnp.int32)


def _refuse_values(name: str, confidence: np.ndarray, correct: np.ndarray) -> None:
    outside = ~((confidence >= 0) & (confidence <= 1))
    if np.any(outside):
        one = confidence[outside].flat[0]
        hint = ": divide percent by 100" if np.all((confidence >= 0) & (confidence <= 100)) else ""
        raise ValueError(
            f"{name}: {np.sum(outside)} of {confidence.size} confidences are outside [0, 1],"
            f" {one:g} is one{hint}."
        )
    neither = (correct != 0) & (correct != 1)
    if np.any(neither):
        raise ValueError(
            f"{name}: correct must be True or False, 1 or 0, got {correct[neither].flat[0]:g}."
        )


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
    confidence = at_least_float32(logits)
    return jnp.concatenate([jnp.log1p(-confidence), jnp.log(confidence)], axis=-1)


jax.tree_util.register_dataclass(Stated)


def flat_rows(
    name: str,
    logits: Any,
    labels: Any,
    weights: Any,
    *,
    is_part: bool = False,
    merges: bool = False,
    stays_sharded: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Validate the arguments and convert them to arrays with one batch axis.

    Outside `jit`, also raise an error for labels beyond 32 bits, which JAX would narrow, and for
    probabilities passed as logits, unless the rows are a part of an input. Weights that cannot
    count copies are scaled, see `rows.counted`, unless the statistics of the rows merge with those
    of other rows. Arrays that are spread over devices are gathered, unless they may stay sharded.
    """
    labels = as_array(labels)
    if not stays_sharded:
        logits, labels, weights = (
            gathered(name, what, values)
            for what, values in (("logits", logits), ("labels", labels), ("weights", weights))
        )
    given_labels = host_integers(labels)
    logits, labels = batch_of(name, logits, labels, soft_labels=False)
    weights = weights_for(logits, weights)
    if labels.size == 0:
        raise ValueError(f"{name}: there are no examples, the labels have shape {labels.shape}.")
    if concrete(logits, labels, weights):
        if given_labels is not None and np.any((given_labels < -(2**31)) | (given_labels >= 2**31)):
            refuse_labels(name, given_labels, weights, num_classes_of(logits.shape))
        if not is_part:
            refuse_unchecked_probabilities(name, logits, weights)
    flat_weights = None if weights is None else weights.reshape(-1)
    if flat_weights is not None and not (is_part or merges):
        flat_weights = rows.counted(flat_weights)
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), flat_weights


def of_one_kind(array: np.ndarray) -> np.ndarray:
    """Convert a column of objects that are all strings or all integers; return others unchanged."""
    if array.dtype == object:
        for kind, dtype in ((str, str), (int | np.integer, np.int64)):
            if all(isinstance(entry, kind) for entry in array.flat):
                return array.astype(dtype)
    return array


def cluster_ids(clusters: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Validate the clusters of examples of this shape; return them along one axis."""
    # `as_array` takes only columns of numbers.
    clusters = gathered("", "clusters", unmasked("clusters", clusters))
    ids = np.asarray(clusters if hasattr(clusters, "to_numpy") else as_array(clusters))
    if ids.shape != shape:
        raise ValueError(
            f"clusters must have shape {shape}, one for each example, got {ids.shape}."
        )
    ids = of_one_kind(ids)
    if ids.dtype.kind not in "iuUS":
        raise TypeError(f"clusters must be integers or strings, got {ids.dtype}.")
    return ids.reshape(-1)
