r"""Which classes and which groups of examples are miscalibrated?

    inference.class_errors(logits, labels, key=key)            the probability of every class
    inference.group_errors(logits, labels, groups, key=key)    the top label in every group

Every class and every group has the binned error of `ece`, the noise floor of its size, and an
exact p-value by draws of a calibrated model. Small groups have large errors by noise alone, so
compare each error with its floor, not with the error of a group of another size.
`p_holm` is corrected for the number of classes or groups: if all values below 5 % are called
miscalibrated, the probability of one mistake or more is at most 5 %.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from calib_jax.core import checks
from calib_jax.core.arrays import as_array
from calib_jax.inference.draws import hits_in_chunks, p_of_draws
from calib_jax.inference.evaluation import evaluated, of_classes
from calib_jax.inference.gaps import gaps_of_classes, memberships
from calib_jax.inference.normal import flipped, holm
from calib_jax.metrics.fixed_bins import ece
from calib_jax.metrics.reliability import classwise_ece

_DRAWS_AT_A_TIME = 1000
_MOST_OUTCOMES = 2 * 10**8


class PartError(NamedTuple):
    """The calibration error of a class or a group, with its test, as Python numbers.

    Attributes:
      name: the name of the class or group.
      size: the number of examples of the class or group.
      gap: mean probability minus share of occurrences; positive if overconfident.
      error: the binned calibration error.
      floor: the mean error of a calibrated model.
      p_value: the p-value of the hypothesis that the model is calibrated there.
      p_holm: the p-value corrected for the number of classes or groups.
    """

    name: str
    size: int
    gap: float
    error: float
    floor: float
    p_value: float
    p_holm: float


@checks.needs_key
def group_errors(
    logits: Any,
    labels: Any = None,
    groups: Any = None,
    weights: Any = None,
    *,
    key: Any,
    num_bins: int = 15,
    num_resamples: int | None = None,
    clusters: Any = None,
) -> list[PartError]:
    """Compute the ECE of every group with its noise floor and p-values.

    No calibrator may have been fitted on these examples, and no group chosen by their labels.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      groups: `[*batch]`, the group of each example, as integers, strings or booleans.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the draws.
      num_bins: number of bins of equal width.
      num_resamples: number of draws R. The smallest `p_holm` of m groups is m / (R + 1); the
        default is 40 m, but at least 1,000 and at most 2e8 outcomes.
      clusters: `[*batch]`, the cluster of each example, as integers or strings, if examples depend
        on each other. Draws then flip the signs of whole clusters; use some 30 or more per group.

    Returns:
      One record per group, in ascending order of the groups.

    >>> import jax
    >>> from calib_jax import inference
    >>> logits = jax.numpy.tile(jax.numpy.array([[2.0, 1.0]]), (200, 1))  # 73 % confident
    >>> labels = (jax.numpy.arange(200) % 4 == 0).astype(int)  # right in 75 %
    >>> labels = labels.at[100:150].set(1)  # but not among these
    >>> groups = ["new" if row >= 100 else "old" for row in range(200)]
    >>> parts = inference.group_errors(logits, labels, groups, key=jax.random.key(0))
    >>> [(part.name, part.size, round(part.gap, 2), part.p_holm < 0.01) for part in parts]
    [('new', 100, 0.35, True), ('old', 100, -0.02, False)]
    """
    checks.random_key(key)
    checks.num_bins(num_bins)
    evaluation = evaluated("group_errors", logits, labels, weights, clusters)
    shape = evaluation.labels.shape if labels is None else np.shape(labels)
    of_row, cluster = group_ids("groups", groups, shape), evaluation.cluster
    names, group = np.unique(of_row[evaluation.copies.row], return_inverse=True)
    members = memberships(ece.with_options(num_bins=num_bins), evaluation)
    confidence, hit = evaluation.top_label()
    cell = group * num_bins + np.argmax(members, axis=1)
    order = np.lexsort((hit, confidence, cell))
    cell, confidence, hit = cell[order], confidence[order], hit[order]
    first = np.flatnonzero(np.append(True, cell[1:] != cell[:-1]))
    of_cell = cell[first] // num_bins
    sizes = np.bincount(group)

    def errors(sums: Float[np.ndarray, "draws cells"]) -> Float[np.ndarray, "draws groups"]:
        starts = np.searchsorted(of_cell, np.arange(len(names)))
        return np.add.reduceat(np.abs(sums), starts, axis=1) / sizes

    residual = confidence - hit
    gaps = np.add.reduceat(residual, first)
    draws = _num_resamples(num_resamples, len(names), len(hit))
    if cluster is None:
        null = [
            errors(np.add.reduceat(confidence - hits, first, axis=1))
            for hits in hits_in_chunks(key, confidence, draws)
        ]
    else:
        index = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(cell))))
        sums = np.zeros((int(np.max(cluster)) + 1, len(first)))
        np.add.at(sums, (cluster[order], index), residual)
        null = [errors(flipped(key, draws, sums))]
    gap = np.bincount(of_cell, gaps) / sizes
    return _parts([str(name) for name in names], sizes, gap, errors(gaps[None])[0], null, null)


@checks.needs_key
def class_errors(
    logits: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    key: Any,
    num_bins: int = 15,
    num_resamples: int | None = None,
    clusters: Any = None,
) -> list[PartError]:
    """Compute `per_class_ece` of every class with its noise floor and p-values.

    The hypothesis of each test is that the probabilities of all classes are calibrated together.
    The `size` is the number of examples of the class; its error is a mean over all examples.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the draws.
      num_bins: number of bins of equal width.
      num_resamples: number of draws; see `group_errors`.
      clusters: `[*batch]`, the cluster of each example; see `group_errors`.

    Returns:
      One record per class, named "0", "1", ...

    >>> import jax
    >>> from calib_jax import inference
    >>> logits = jax.numpy.tile(jax.numpy.array([[1.0, 1.0, 0.0]]), (300, 1))
    >>> labels = (jax.numpy.arange(300) < 90).astype(int)  # class 2, of 16 %, never occurs
    >>> parts = inference.class_errors(logits, labels, key=jax.random.key(0))
    >>> [round(part.gap, 2) for part in parts]
    [-0.28, 0.12, 0.16]
    """
    checks.random_key(key)
    checks.num_bins(num_bins)
    evaluation = evaluated("class_errors", logits, labels, weights, clusters)
    of_classes("class_errors", evaluation)
    logits, labels, *_ = evaluation.copies
    metric = classwise_ece.with_options(num_bins=num_bins)
    num_classes = logits.shape[-1]
    null: list[np.ndarray] = []
    ranked: list[np.ndarray] = []
    for gaps in gaps_of_classes(
        metric,
        evaluation,
        key=key,
        num_resamples=_num_resamples(num_resamples, num_classes, len(labels)),
        draws_at_a_time=_DRAWS_AT_A_TIME,
    ):
        for errors, draws in ((null, gaps.null), (ranked, gaps.ranked)):
            errors.append(np.sum(np.abs(draws).reshape(-1, num_classes, num_bins), axis=-1))
    gap = gaps.gap.reshape(num_classes, num_bins)
    sizes = np.bincount(np.asarray(labels), minlength=num_classes)
    names = [str(name) for name in range(num_classes)]
    return _parts(names, sizes, np.sum(gap, axis=1), np.sum(np.abs(gap), axis=1), null, ranked)


def group_ids(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Validate a column of groups, and return it along one axis."""
    column = np.asarray(as_array(values))
    if column.shape != shape:
        raise ValueError(
            f"{name} must have shape {shape}, one for each example, got {column.shape}."
        )
    if column.dtype == object:
        column = column.astype(str)
    if column.dtype.kind not in "biuUS":
        raise TypeError(f"{name} must be integers, strings or booleans, got {column.dtype}.")
    return column.reshape(-1)


def _num_resamples(given: int | None, num_parts: int, num_rows: int) -> int:
    if given is not None:
        checks.whole("num_resamples", given)
        return given
    return max(1000, min(40 * num_parts, _MOST_OUTCOMES // num_rows))


def _parts(
    names: list[str],
    sizes: Integer[np.ndarray, " parts"],
    gap: Float[np.ndarray, " parts"],
    error: Float[np.ndarray, " parts"],
    null: list[Float[np.ndarray, "draws parts"]],
    ranked: list[Float[np.ndarray, "draws parts"]],
) -> list[PartError]:
    draws = np.concatenate(ranked).T
    p_values = [p_of_draws(value, column) for value, column in zip(error, draws, strict=True)]
    floor = np.mean(np.concatenate(null), axis=0)
    columns = (names, sizes, gap, error, floor, p_values, holm(p_values))
    return [
        PartError(name, int(size), *map(float, numbers))
        for name, size, *numbers in zip(*columns, strict=True)
    ]
