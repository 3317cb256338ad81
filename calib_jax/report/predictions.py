"""One record for everything that is scored, how it becomes logits, and which rows two sets share.

A record holds logits, log-probabilities or probabilities of classes with their labels, or one
number for each answer, a confidence or a score, with whether the answer is right.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, metrics
from calib_jax.core import checks
from calib_jax.core.arrays import as_array, as_numbers, binary, on_device
from calib_jax.core.files.reading import Unreadable
from calib_jax.core.texts import one_line
from calib_jax.core.types import Logits
from calib_jax.core.values import LEAST_ROWS, refuse_probabilities

# Smaller probabilities are raised to this value, so that their logarithm is finite.
FLOOR = 1e-38
# Sums of single-precision probabilities differ from 1 by less than this.
_ROUNDED = 1e-5
# Sums of a softmax that was computed in bfloat16 or float16 differ from 1 by less than this.
_OF_16_BITS = 2**-7
_FAR = 1e4  # an offset of logits that costs digits in single precision
_GRIDS = (0.1, 0.01, 0.001, 0.0001)
_ENOUGH_ROWS = 20  # of which all entries lie on a grid by rounding, and not by chance


class Predictions(NamedTuple):
    """The predictions of one model.

    Attributes:
      logits: `[*batch, classes]`, or `[n]` of a binary model; or `[n]` confidences or scores.
      labels: `[*batch]`, counted from 0; labels of weight 0 that are out of range are -1. Of
        confidences and scores, 1 where the answer is right, else 0.
      weights: `[*batch]`, or None.
      groups: `[*batch]`, several such columns by name, or None.
      clusters: `[*batch]`, or None.
      class_names: one name per class; empty if the file has none.
      notes: sentences on how the file was interpreted, and what was not read.
      kind: "logits", "probabilities", "confidence" or "score": what `logits` holds.
      questions: `[n]`, or None.
      model: the name of the model; empty if the file does not name it.
      ordinal: `[n]`, whether the options of each row have an order; None if the columns are
        classes, which are the same in every row.
      file: the name of the file.
      least: what smaller probabilities are raised to, if it is chosen.
    """

    logits: Any
    labels: Any
    weights: Any = None
    groups: Any = None
    clusters: Any = None
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    kind: str = "logits"
    questions: np.ndarray | None = None
    model: str = ""
    ordinal: np.ndarray | None = None
    file: str = ""
    least: float | None = None

    @property
    def of_classes(self) -> bool:
        """Whether there is a number for each class, and not one for each answer."""
        return self.kind in ("logits", "probabilities")

    def rows(self, rows: Any) -> Predictions:
        """Select examples by a mask or by indices."""

        def select(column: Any) -> Any:
            if isinstance(column, dict):
                return {name: select(each) for name, each in column.items()}
            return column[rows] if hasattr(column, "shape") else column

        return Predictions(*map(select, self))

    @property
    def present(self) -> np.ndarray:
        """The numbers of the rows of positive weight, without those of absent options."""
        numbers = np.asarray(self.logits)
        if self.weights is not None:
            counts = np.ravel(self.weights) > 0
            numbers = numbers.reshape(len(counts), -1)[counts]
        return numbers[~np.isnan(numbers)] if self.ordinal is not None else numbers

    @property
    def floor(self) -> float | None:
        """The value to which smaller probabilities are raised; None without probabilities.

        Of rounded ones it is half a step, or of more than three classes K a step / (K - 1): more
        than a step of a row can hardly be hidden in its zeros.
        """
        if self.kind != "probabilities":
            return None
        if self.least is not None:
            return self.least
        step, size = grid_of(self.present), (2, *np.shape(self.logits)[1:])[-1]
        return FLOOR if step is None else step / max(2, size - 1)

    def values(self, name: str = "score") -> Any:
        """Return what metrics and calibrators read: logits, a `Stated` or a `Scored`."""
        if not self.of_classes:
            kind = metrics.Stated if self.kind == "confidence" else calibrators.Scored
            column, correct = kind(self.logits, self.labels).columns(name)
            return kind(column.ravel(), correct.ravel())
        how: dict[str, Any] = {"probabilities": self.kind == "probabilities", "name": name}
        how |= {"floor": self.floor, "weights": self.weights}
        if self.ordinal is None:
            return as_logits(self.logits, **how)
        absent = np.isnan(self.logits)
        rows = np.where(absent, 0 if how["probabilities"] else -np.inf, self.logits)
        return jnp.where(absent, -jnp.inf, as_logits(rows, **how))


def listed(names: Sequence[str], most: int = 20) -> str:
    """List names from a file, up to a maximum number."""
    more = [f"... ({len(names):,} in all)"] if len(names) > most else []
    return ", ".join([*(shown(name) or "one without a name" for name in names[:most]), *more])


def shown(text: str, most: int = 40) -> str:
    r"""Quote a text from a file, without control characters and shortened if it is long.

    >>> shown("cat\x1b[2J", most=9), shown("\0" * 40, most=8)
    ('cat\\x1b[2...', '\\x00\\x00...')
    """
    text = one_line(text)  # first: it makes texts longer
    return text if len(text) <= most else f"{text[:most]}..."


def counted(number: int, noun: str) -> str:
    """Write a number with a noun in singular or plural.

    >>> counted(1, "example"), counted(2, "class")
    ('1 example', '2 classes')
    """
    ending = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending * (number != 1)}"


def as_logits(
    predictions: Any,
    *,
    probabilities: bool = False,
    floor: float | None = FLOOR,
    weights: Any = None,
    name: str = "score",
) -> Logits:
    """Convert predictions to logits `[*batch, classes]`.

    Args:
      predictions: `[n, classes]`; `[n]` or `[n, 1]` for a binary model.
      probabilities: if True, predictions are probabilities: divide each row by its sum and take the
        logarithm. If False, raise for predictions that look like probabilities: rows that all sum
        to 1, or one column within [0, 1].
      floor: smaller probabilities are raised to this value; 0 keeps them, and log 0 is -inf. None
        is that of rounded probabilities, see `Predictions.floor`, and `FLOOR` for others.
      weights: weight of each example; rows of weight 0 may contain anything.
      name: name of the caller, for error messages.
    """
    if probabilities:
        rows = probability_rows(predictions, weights=weights, name=name)
        if floor is None:
            floor = Predictions(predictions, (), weights, kind="probabilities").floor or FLOOR
        checks.between("floor", floor, 0, 0.1)
        with np.errstate(divide="ignore"):
            return jax.device_put(np.maximum(np.log(rows), np.log(floor)).astype(np.float32))
    predictions = _floating(predictions)
    if predictions.ndim > 1 and predictions.shape[-1] > 1:
        if isinstance(predictions, np.ndarray) and predictions.dtype == np.float64:
            # Single precision would round logits with a large offset to equal numbers.
            offset = predictions.max(axis=-1, keepdims=True)
            far = np.isfinite(offset) & (np.abs(offset) > _FAR)
            predictions = predictions - np.where(far, offset, 0)
        refuse_probabilities(name, predictions, weights)
        return on_device(predictions)
    column = np.ravel(predictions)
    present = column if weights is None else column[np.ravel(weights) > 0]
    if len(present) >= LEAST_ROWS and np.all((present >= 0) & (present <= 1)):
        raise ValueError(
            f"{name}: all {len(present)} values of the one column lie in [0, 1].\nOf probabilities,"
            " use probabilities=True (--probabilities); of logits z, the two columns -1 and z - 1."
        )
    return binary(jnp.asarray(column))


def grid_of(numbers: Any) -> float | None:
    """Return the step .1, .01, .001 or .0001 of which all probabilities are multiples, or None.

    >>> grid_of([[0.25, 0.75]] * 20), grid_of([[1.0, 0.0]] * 20), grid_of([[1 / 3, 2 / 3]] * 20)
    (0.01, None, None)
    """
    p = np.asarray(as_array(numbers), np.float64)
    if len(p) < _ENOUGH_ROWS or np.all((p == 0) | (p == 1)):
        return None
    return next((step for step in _GRIDS if np.all(_on_grid(p, step))), None)


def probability_rows(predictions: Any, *, weights: Any = None, name: str = "score") -> np.ndarray:
    """Validate probabilities `[n, classes]`, or `[n]` of class 1, and divide rows by their sums.

    Args:
      predictions: the probabilities; a row's sum may differ from 1 by the rounding error of a
        softmax in 16 bits (1/128), or by that of its displayed digits.
      weights: weight of each example; a row of weight 0 becomes uniform.
      name: name of the caller, for error messages.
    """
    p = np.asarray(_floating(predictions))
    one_column = p.ndim == 1 or p.shape[-1] == 1
    if one_column:
        p = np.stack([1 - p.ravel(), p.ravel()], axis=-1)
    rows = p.reshape(-1, p.shape[-1])
    counts = np.full(len(rows), True) if weights is None else np.ravel(weights) > 0
    if len(counts) != len(rows):
        raise ValueError(f"{name}: {len(rows)} rows need as many weights, got {len(counts)}.")
    present = rows[counts].astype(np.promote_types(rows.dtype, np.float32))
    sums = present.sum(axis=-1, dtype=np.float64)
    tolerance = np.full(len(present), _OF_16_BITS)
    for step in reversed(_GRIDS):  # every entry may be off by half a step
        on_grid = np.all(_on_grid(present, step), axis=-1)
        tolerance[on_grid] = np.maximum(_OF_16_BITS, min(0.5, p.shape[-1] * step / 2))
    right = np.all(present >= 0, axis=-1) & (np.abs(sums - 1) <= tolerance)
    if not np.all(right):
        values = present[np.argmin(right)][int(one_column) :]
        hint = ""
        if values.min() < 0:
            hint = " These are logarithms, or logits: leave probabilities out."
        if abs(values.sum() - 100) < 1 or (one_column and 2 < values[0] <= 100):
            hint = " These are percentages: divide them by 100."
        row = ", ".join(f"{value:.4g}" for value in values[:6])
        raise ValueError(
            f"{name}: probabilities must not be negative and must sum to 1 in every row, and"
            f" {row} have the sum {values.sum():.4g}.{hint}"
        )
    result = np.full(rows.shape, 1 / rows.shape[-1], present.dtype)
    result[counts] = present / present.sum(axis=-1, keepdims=True)
    return result.reshape(p.shape)


def _on_grid(p: np.ndarray, step: float) -> np.ndarray:
    """Mark multiples of a step, up to the rounding of single precision; only 0 is 0 steps."""
    return np.abs(p - step * np.maximum(np.round(p / step), p > 0)) < 2e-7


def _floating(predictions: Any) -> Any:
    """Raise if predictions are empty or not floating point."""
    predictions = as_numbers("score", "predictions", predictions)
    if not jnp.issubdtype(predictions.dtype, jnp.floating):
        raise TypeError(f"predictions must be floating point, got {predictions.dtype}.")
    if predictions.ndim == 0 or predictions.size == 0:
        raise ValueError(f"there are no predictions, their shape is {predictions.shape}.")
    return predictions


def at_floor(given: Predictions, logits: Logits) -> np.ndarray:
    """Mark the rows of positive weight whose true class has a probability of at most the floor.

    Args:
      given: the predictions as given.
      logits: the output of `as_logits`, along one batch axis.
    """
    labels = np.ravel(given.labels)
    counts = np.full(len(labels), True) if given.weights is None else np.ravel(given.weights) > 0
    inside = np.where(counts, labels, 0)[:, None]  # labels of weight 0 may be out of range
    of_true = np.take_along_axis(np.asarray(logits), inside, axis=-1)[:, 0]
    # One unit in the last place of single precision is 8e-6 at log 1e-38.
    return counts & (of_true <= (math.log(given.floor) + 1e-5 if given.floor else -math.inf))


def notes_on(given: Predictions, logits: Logits) -> list[str]:
    """Report changes to predictions: normalised rows, and true classes of probability 0.

    Args:
      given: the predictions as given.
      logits: the output of `as_logits`, along one batch axis.
    """
    notes, numbers, floor = [], given.present, given.floor
    if given.kind == "probabilities" and numbers.ndim > 1 and numbers.shape[-1] > 1:
        sums = numbers.sum(axis=-1, dtype=np.float64)
        if np.any(np.abs(sums - 1) > _ROUNDED):
            ends = f"{sums.min():.4g} to {sums.max():.4g}"
            notes.append(f"The rows of probabilities sum to {ends}: each was divided by its sum.")
    impossible = at_floor(given, logits)
    weights = np.ones(len(impossible)) if given.weights is None else given.weights
    number, total = int(np.sum(impossible)), int(np.sum(weights > 0))
    if not number:
        return notes
    what = "probability 0" if floor in (None, FLOOR) else f"a probability of at most {floor:.3g}"
    nll = f"takes them as {floor:.3g}; --floor sets another value" if floor else "is infinite"
    return [*notes, f"{number:,} of {total:,} true classes have {what}: NLL {nll}."]


def average(models: Sequence[Any]) -> Logits:
    r"""Average the probabilities of several models, $\log \frac1M \sum_m p_m$."""
    logits = [jnp.asarray(as_numbers("average", "logits", z), jnp.float32) for z in models]
    log_p = jax.nn.log_softmax(jnp.stack(logits))
    return jax.nn.logsumexp(log_p, axis=0) - jnp.log(len(models))


def same_kind(one: Predictions, other: Predictions) -> None:
    """Raise an error for a confidence, a score or classes beside another of these kinds."""
    kinds = ["classes" if each.of_classes else each.kind for each in (one, other)]
    if kinds[0] != kinds[1]:
        both = f"{one.file or 'one'} holds {kinds[0]}, and {other.file or 'another'} {kinds[1]}"
        raise ValueError(f"{both}: compare models, and fit calibrators, on the same kind.")


def on_grid(given: Predictions) -> str:
    """Write a sentence that the probabilities are rounded, and what replaces 0; else ""."""
    step = grid_of(given.present) if given.kind == "probabilities" else None
    if step is None or (floor := given.floor) is None:
        return ""
    why = f" ({floor / step:.2g} of a step; --floor sets another value)" * (given.least is None)
    return f"The probabilities are rounded to {step:g}; 0 is read as {floor:.3g}{why}."


def mean_of(models: Sequence[Predictions]) -> Predictions:
    """Average the probabilities of several models of the same examples, each above its floor.

    The average has no grid, so it would have another floor: it becomes logits.
    """
    values = [np.asarray(each.values()) for each in models]
    if models[0].ordinal is not None:  # files differ in the largest number of options
        absent = np.full_like(max(values, key=np.size), -np.inf)
        values = [np.concatenate([z, absent[:, z.shape[-1] :]], axis=-1) for z in values]
    notes = tuple(dict.fromkeys(filter(None, map(on_grid, models))))
    return models[0]._replace(logits=np.asarray(average(values)), kind="logits", notes=notes)


def match_classes(contents: Predictions, baseline: Predictions) -> Predictions:
    """Put the columns and labels of predictions into the order of another file's classes.

    Raise an error for other classes. If one of the files does not name its classes, match them by
    position; `notes` reports this.

    Args:
      contents: the predictions to reorder.
      baseline: the predictions whose order is used.

    >>> ours = Predictions(np.array([[2.0, 0.0]]), np.array([0]), class_names=("cat", "dog"))
    >>> theirs = Predictions(np.array([[0.5, 3.0]]), np.array([1]), class_names=("dog", "cat"))
    >>> matched = match_classes(theirs, ours)
    >>> matched.logits, matched.labels
    (array([[3. , 0.5]]), array([0]))
    """
    names, wanted = contents.class_names, baseline.class_names
    name, baseline_name = contents.file or "these predictions", baseline.file or "the others"
    if names == wanted or contents.ordinal is not None or baseline.ordinal is not None:
        return contents
    if not names or not wanted:
        named, unnamed = (name, baseline_name) if names else (baseline_name, name)
        note = f"{unnamed} does not name its classes, and {named} does: matched by position."
        return contents._replace(notes=(*contents.notes, note))
    counts, known = collections.Counter(names), collections.Counter(wanted)
    both = (name, counts, baseline_name, known), (baseline_name, known, name, counts)
    for owner, its, other, theirs in both:
        if strange := [each for each in its if its[each] > 1 or each not in theirs]:
            what = f"the class {shown(strange[0])}, which {other} does not have"
            what = f"two classes {shown(strange[0])}" if strange[0] in theirs else what
            raise Unreadable(f"{owner} has {what}: give predictions of the same classes and names.")
    order = np.array([names.index(each) for each in wanted])
    logits, labels = contents.logits, contents.labels
    if logits.ndim == 1 or logits.shape[-1] == 1:
        column = logits.ravel()
        other = 1 - column if contents.kind == "probabilities" else np.zeros_like(column)
        logits = np.stack([other, column], axis=-1)
    # Labels of weight 0 that are out of range are -1.
    labels = np.where(labels >= 0, np.argsort(order)[labels], labels)
    note = f"{name} lists its classes in another order than {baseline_name}:"
    notes = (*contents.notes, f"{note} they are matched by name.")
    contents = contents._replace(logits=logits[..., order], labels=labels, notes=notes)
    return contents._replace(class_names=wanted)


def on_same_rows(models: Sequence[Predictions], used: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Select the questions that all models share, in one order; return notes, too.

    Without questions, all models must have the same examples in the same order. Of several answers
    to a question, all models keep as many as the model with the fewest.

    Args:
      models: the models, with their names.
      used: the columns that must agree, beside the labels of classes.
    """
    first, paired, notes = models[0], list(models), list[str]()
    asked = any(each.questions is not None for each in models)
    if len(models) > 1 and (asked or not first.of_classes):
        answers = [_rows_by_answer(each) for each in models]
        shared = [answer for answer in answers[0] if all(answer in of for of in answers)]
        if not shared:
            names = listed([each.model for each in models], 5)
            raise Unreadable(f"{names} share no question: give a column question of the same ids.")
        both = list(zip(models, answers, strict=True))
        paired = [each.rows([of[answer] for answer in shared]) for each, of in both]
        left = [(len(of) - len(shared), each.model) for each, of in both if len(of) > len(shared)]
        if left:
            size = counted(len({question for question, _ in shared}), "question")
            out = ", ".join(f"{count:,} of {model}" for count, model in left)
            notes.append(f"Compared on the {size} that all models share: answers left out: {out}.")
    for column in [*["labels"] * first.of_classes, *used]:
        for other in paired[1:]:
            if not _are_equal(getattr(paired[0], column), getattr(other, column)):
                raise Unreadable(
                    f"{first.model} and {other.model} differ in the {column.removesuffix('s')} of"
                    " the same example: compare and average the same examples in the same order."
                )
    return paired, notes


def _rows_by_answer(given: Predictions) -> dict[tuple[str, int], int]:
    """Return the row of each answer, which is the k-th one to its question."""
    rows: dict[str, list[int]] = {}
    questions = [] if given.questions is None else given.questions.tolist()
    for row, question in enumerate(map(str, questions)):
        rows.setdefault(question, []).append(row)
    return {(question, k): row for question, of in rows.items() for k, row in enumerate(of)}


def _are_equal(one: Any, other: Any) -> bool:
    """Compare two columns; ids that are numbers in one file can be text in a table."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_equal(one[k], other[k]) for k in one)
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is other  # both are None
    if one.dtype.kind != other.dtype.kind:
        one, other = (np.array([*map(str, each.ravel().tolist())], object) for each in (one, other))
    return np.array_equal(one, other)


def shared_rows(scored: tuple[Any, ...], fitted: tuple[Any, ...]) -> tuple[int, int, int]:
    """Count the scored rows that also are rows of a fit, up to a constant in each row.

    Rounded confidences are equal by chance. The shares of rows that have a twin in their own set
    estimate this chance, and only a count that exceeds it by 4 standard deviations is returned. A
    copy in another order is found also where most rows are equal by chance, unless it has fewer
    than ten different rows.

    Args:
      scored: logits, probabilities or confidences, labels, and weights or None.
      fitted: the same of the examples of a fit.

    Returns:
      the number of shared rows, of scored rows and of rows of the fit.
    """
    (rows, reach), (others, other_reach) = (_present_rows(*each) for each in (scored, fitted))
    n, m, reach = len(rows), len(others), max(reach, other_reach)
    if not n or not m or rows.shape[1] != others.shape[1]:
        return 0, n, m
    if rows.shape == others.shape:
        few = len(np.unique(rows, axis=0)) < 10
        one, other = (each if few else each[np.lexsort(each.T)] for each in (rows, others))
        if np.allclose(one, other, 1e-4, 1e-5):
            return n, n, m
    number = int(np.sum(_found(rows, others, reach)))
    twins = (others, 1, 1.0), (others, 100, 0.01), (rows, 1, min(1, m / n))
    chance = max(part * np.mean(_found(of, of, k * reach, 2)) for of, k, part in twins)
    by_chance = n * chance + 4 * math.sqrt(n * chance * (1 - chance) * (1 + n / m))
    return number if number > by_chance else 0, n, m


def _present_rows(logits: Any, labels: Any, weights: Any) -> tuple[np.ndarray, float]:
    """Return the rows of positive weight, up to a constant, with their labels; and their rounding.

    The maximum of a row is subtracted, unless it has one entry.
    """
    logits, labels, weights = map(as_array, (logits, labels, weights))
    labels = np.asarray(labels, np.float32).ravel()
    rows = np.asarray(logits, np.float32).reshape(len(labels), -1)
    kept = slice(None) if weights is None else np.ravel(weights) > 0
    largest = float(np.max(np.abs(rows[kept]), where=np.isfinite(rows[kept]), initial=1))
    kinds = [np.float32, *[logits.dtype] * jnp.issubdtype(logits.dtype, jnp.floating)]
    if rows.shape[1] > 1:
        with np.errstate(invalid="ignore"):
            rows = np.maximum(rows - rows.max(axis=1, keepdims=True), -1e4)
    eps = max(float(jnp.finfo(kind).eps) for kind in kinds)
    return np.nan_to_num(np.column_stack([rows, labels])[kept]), 4 * eps * largest


def _found(rows: np.ndarray, others: np.ndarray, reach: float, nearest: int = 1) -> np.ndarray:
    """Mark the rows that have so many others within `reach`, in four random directions."""
    from scipy.spatial import cKDTree

    lines = np.random.default_rng(0).standard_normal((rows.shape[1], 4))
    far = reach * np.abs(lines).sum(axis=0).max()
    options: dict[str, Any] = {"p": np.inf, "distance_upper_bound": far}
    distances = cKDTree(others @ lines).query(rows @ lines, [nearest], **options)[0]
    return np.isfinite(distances[:, 0])
