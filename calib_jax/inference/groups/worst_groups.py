r"""In which groups of examples is the model the most over- or underconfident?

The groups are the values of given columns, and all pairs of values of two columns. The largest
of many gaps may be noise, so the examples are split at random:

1. On the first half, every group of at least `least` examples gets the score
   $|\sum_i (c_i - a_i)| / \sqrt{\sum_i c_i (1 - c_i)}$, and the groups of the largest scores are
   kept. A group of the same examples as a kept group is left out.
2. On the second half, which the search has not seen, the kept groups get a gap and an exact
   p-value of $\sum_i (c_i - a_i)$ by draws of a calibrated model, corrected by Holm.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Integer

from calib_jax.core.display import short
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.arrays import unmasked
from calib_jax.core.types import Array
from calib_jax.inference.bounds import null_draws
from calib_jax.inference.clusters import Clusters, flipped, sums_of
from calib_jax.inference.evaluation import evaluated
from calib_jax.inference.groups.errors import group_ids
from calib_jax.inference.normal import Column
from calib_jax.inference.tests.holm import holm

_QUARTERS = (0.25, 0.5, 0.75)


class WorstGroup(NamedTuple):
    """A group that the search kept, with its gap on the other half of the examples.

    Attributes:
      conditions: the value of each column of the group.
      size: the number of examples on which the group was tested.
      gap: mean confidence minus accuracy of these examples; positive if overconfident.
      p_value: two-sided, of the hypothesis that the model is calibrated; NaN without examples.
      p_holm: the p-value corrected for the number of kept groups.
      gap_in_search: the gap on the examples of the search, which is too large on average.
    """

    conditions: dict[str, str]
    size: int
    gap: float
    p_value: float
    p_holm: float
    gap_in_search: float

    def __str__(self) -> str:
        group = " & ".join(f"{name}={value}" for name, value in self.conditions.items())
        return f"{group}: {self.gap:+.3f}, n = {self.size:,}, p = {self.p_holm:.3f}"


@checks.needs_key
def worst_groups(
    logits: Any,
    labels: Any = None,
    groups: Mapping[str, Any] | None = None,
    weights: Any = None,
    *,
    key: Any,
    num_groups: int = 5,
    least: int = 30,
    num_resamples: int = 1000,
    clusters: Any = None,
) -> list[WorstGroup]:
    """Search for groups with a gap between confidence and accuracy, and test them.

    No calibrator may have been fitted on these examples.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      groups: columns by name, `[*batch]` each: integers, strings or booleans, whose values are
        groups, or floats, which are cut at the quartiles of the examples of the search.
      weights: `[*batch]`, counts: weight k is the same as k copies.
      key: PRNG key of the split and of the draws.
      num_groups: the largest number of groups to keep.
      least: the fewest examples of a group, among the examples of the search.
      num_resamples: number of draws; the smallest `p_holm` is the number of groups / draws.
      clusters: `[*batch]`, the cluster of each example, as integers or strings, if examples depend
        on each other. Whole clusters are in one half, and draws flip their signs.

    Returns:
      The groups, in descending order of their scores in the search; none if no group has `least`
      examples.

    >>> from calib_jax import inference
    >>> logits = jax.numpy.tile(jax.numpy.array([[2.0, 1.0]]), (800, 1))  # 73 % confident
    >>> row = np.arange(800)
    >>> labels = np.where(row % 8 == 0, 1, row % 4 == 1).astype(int)  # right in 62 %
    >>> groups = {"site": row % 8 % 3, "new": row % 8 == 0}  # but never where new
    >>> worst = inference.worst_groups(logits, labels, groups, key=jax.random.key(0))
    >>> worst[0].conditions, worst[0].p_holm < 0.01
    ({'new': 'True'}, True)
    """
    caller = "worst_groups"
    checks.random_key(key)
    for name, value in (
        ("num_groups", num_groups),
        ("least", least),
        ("num_resamples", num_resamples),
    ):
        checks.whole(name, value)
    if not isinstance(groups, Mapping) or not groups:
        raise TypeError(f"{caller}: groups must map names to columns, got {short(groups)}.")
    evaluation = evaluated(caller, logits, labels, weights, clusters)
    shape = evaluation.labels.shape if labels is None else np.shape(labels)
    given = {name: _column(name, column, shape) for name, column in groups.items()}
    rows, cluster = evaluation.copies.row, evaluation.cluster
    confidence, hit = evaluation.top_label()
    residual, spread = confidence - hit, confidence * (1 - confidence)

    key_of_split, key_of_draws = jax.random.split(key)
    search = _half(key_of_split, rows if cluster is None else cluster)
    levels = {name: _levels(column[rows], search) for name, column in given.items()}
    kept = _searched(levels, search, residual, spread, cluster, num_groups, least)
    if not kept or np.all(search):  # one cluster leaves nothing to test on
        return []
    masks = np.stack([group.mask for group in kept], axis=1)
    design = masks[~search].astype(np.float64)
    totals = residual[~search] @ design
    if cluster is None:
        hits = null_draws.hit_sums(key_of_draws, confidence[~search], design, num_resamples)
        null = confidence[~search] @ design - hits
    else:
        numbers = np.unique(cluster[~search], return_inverse=True)[1]
        null = flipped(
            key_of_draws, num_resamples, sums_of(numbers, design * residual[~search, None])
        )
    sizes = np.sum(design, axis=0)
    p_values = np.array(
        [
            null_draws.p_of_draws(abs(total), np.abs(draws)) if size else np.nan
            for total, draws, size in zip(totals, null.T, sizes, strict=True)
        ]
    )
    return [
        WorstGroup(
            conditions=group.conditions,
            size=int(size),
            gap=float(total / size) if size else float("nan"),
            p_value=float(p_value),
            p_holm=float(p_holm),
            gap_in_search=float(np.mean(residual[search & group.mask])),
        )
        for group, size, total, p_value, p_holm in zip(
            kept, sizes, totals, p_values, holm(p_values), strict=True
        )
    ]


class _Levels(NamedTuple):
    """A column as the number of each row's value, and the names of the values."""

    code: Integer[np.ndarray, " rows"]
    names: list[str]


class _Group(NamedTuple):
    conditions: dict[str, str]
    mask: Bool[np.ndarray, " rows"]


def _column(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    column = np.asarray(unmasked(name, values))
    if column.dtype.kind != "f":
        return group_ids(f"groups[{name!r}]", values, shape)
    if column.shape != shape:
        group_ids(f"groups[{name!r}]", np.zeros(column.shape, int), shape)
    if not np.all(np.isfinite(column)):
        raise ValueError(f"groups[{name!r}] has values that are not finite: name them by strings.")
    return column.reshape(-1)


def _half(key: Array, units: Integer[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Select a random half of the rows, or of the clusters; copies of a row stay together."""
    names, unit = np.unique(units, return_inverse=True)
    chosen = np.asarray(jax.random.permutation(key, len(names))) < (len(names) + 1) // 2
    return chosen[unit]


def _levels(column: np.ndarray, search: Bool[np.ndarray, " rows"]) -> _Levels:
    if column.dtype.kind != "f":
        values, code = np.unique(column, return_inverse=True)
        return _Levels(code, [str(value) for value in values])
    edges = np.unique(np.quantile(column[search], _QUARTERS))
    numbers = [f"{edge:.4g}" for edge in edges]
    between = [f"({low}, {high}]" for low, high in itertools.pairwise(numbers)]
    names = [f"<= {numbers[0]}", *between, f"> {numbers[-1]}"]
    return _Levels(np.searchsorted(edges, column, side="left"), names)


def _searched(
    levels: Mapping[str, _Levels],
    search: Bool[np.ndarray, " rows"],
    residual: Column,
    spread: Column,
    cluster: Clusters | None,
    num_groups: int,
    least: int,
) -> list[_Group]:
    """Return the groups of the largest scores among the rows of the search."""
    candidates: list[tuple[float, tuple[str, ...], int]] = []
    pairs: list[tuple[str, ...]] = list(itertools.combinations(levels, 2))
    for names in [*((name,) for name in levels), *pairs]:
        code = _code(levels, names)[search]
        size = np.bincount(code)
        total = np.bincount(code, residual[search])
        if cluster is None:
            variance = np.bincount(code, spread[search])
        else:
            variance = _variance_of_clusters(code, cluster[search], residual[search], len(size))
        scores = np.abs(total) / np.sqrt(np.maximum(variance, 1e-12))
        candidates += [(-scores[k], names, int(k)) for k in np.flatnonzero(size >= least)]
    kept: list[_Group] = []
    for _, names, value in sorted(candidates):
        mask = _code(levels, names) == value
        if any(np.array_equal(mask[search], group.mask[search]) for group in kept):
            continue
        kept.append(_Group(_conditions(levels, names, value), mask))
        if len(kept) == num_groups:
            break
    return kept


def _code(levels: Mapping[str, _Levels], names: tuple[str, ...]) -> Integer[np.ndarray, " rows"]:
    """Number the values of one column, or the pairs of values of two."""
    first, *others = (levels[name] for name in names)
    code = first.code
    for other in others:
        code = code * len(other.names) + other.code
    return code


def _conditions(
    levels: Mapping[str, _Levels], names: tuple[str, ...], value: int
) -> dict[str, str]:
    conditions = {}
    for name in reversed(names):
        value, index = divmod(value, len(levels[name].names))
        conditions[name] = levels[name].names[index]
    return dict(reversed(conditions.items()))


def _variance_of_clusters(
    code: Integer[np.ndarray, " rows"], cluster: Clusters, residual: Column, num_codes: int
) -> Float[np.ndarray, " codes"]:
    """Sum the squares of the clusters' sums in every group."""
    pairs, inverse = np.unique(cluster * num_codes + code, return_inverse=True)
    sums = np.bincount(inverse, residual)
    return np.bincount(pairs % num_codes, np.square(sums), num_codes)
