r"""Metrics over batches, in memory that does not grow with the number of batches.

    stream = metrics.Stream({"ece": metrics.ece, "nll": metrics.nll})
    for logits, labels, weights in batches:
        stream.update(logits, labels, weights)
    stream.compute()

Statistics are summed over batches; metric values are not averaged. For 2,000 calibrated points the
pooled ECE is 0.013, but the mean ECE of 50 batches is 0.131. The sums are in float64 on the
host, because a float32 count stops at 16.8 million.

Metrics that rank examples keep one row per example. Above `row_limit` rows they switch to a fine
histogram of the scores (`fine_cell`): sums stay exact, and scores that differ by less than a
thousandth (of the score, or of its distance from 1) count as equal: every row takes the
means of its cell. The stream records this in `notes` and warns once.

`auroc` and `average_precision`, which rank all rows once for each class, and
`kde_calibration_error`, which compares all pairs of rows, need every row: above `row_limit`
they raise an error.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from calib_jax.core.inputs import checks
from calib_jax.core.inputs.arrays import with_auto_axes
from calib_jax.core.inputs.invalid_values import InvalidValues, Suspicion, refuse
from calib_jax.core.inputs.stated import rows_of
from calib_jax.core.statistics import Joint, Rows, Sums
from calib_jax.core.types import Labels, Logits, Weights
from calib_jax.metrics.contract.metric import (
    Members,
    Metric,
    checked_stats,
    members_of,
    owners,
    values_of_stats,
)

# Limit of rows per compiled pass; its float32 sums would still count twice as many rows exactly.
_MOST_ROWS = 2**23


class Stream:
    """Accumulator of several metrics over batches.

    >>> from calib_jax import metrics
    >>> import jax.numpy as jnp
    >>> stream = Stream({"accuracy": metrics.accuracy})
    >>> stream.update(jnp.array([[2.0, 1.0], [3.0, 0.0]]), jnp.array([0, 1]))
    >>> stream.update(jnp.array([[2.0, 1.0]]), jnp.array([0]))
    >>> stream.compute()
    {'accuracy': Array(0.667, dtype=float32)}

    Args:
      metrics: metrics by name.
      row_limit: number of rows above which a ranking metric switches to a histogram.
    """

    def __init__(
        self, metrics: Metric[..., Any] | Mapping[str, Metric[..., Any]], *, row_limit: int = 2**22
    ) -> None:
        checks.at_least("row_limit", row_limit, 0)
        self.metrics = dict(members_of(metrics))
        self.row_limit = row_limit
        self.num_rows = 0
        self.notes: list[str] = []
        self._members = tuple(self.metrics.items())
        self._parts: dict[str, _Total | _Kept] = {}
        self._num_classes: int | None = None
        self._suspicion = Suspicion()  # checks the rows of `update`

    def update(self, logits: Any, labels: Any = None, weights: Any = None) -> None:
        """Add a batch; if values would make a metric NaN, raise and add nothing."""
        logits, labels = rows_of(", ".join(self.metrics), logits, labels)
        with_auto_axes(self._update, logits, labels, weights)

    def _update(self, logits: Any, labels: Any, weights: Any) -> None:
        name = ", ".join(self.metrics)
        logits, labels, weights = checks.flat_rows(
            name, logits, labels, weights, is_part=True, stays_sharded=True
        )
        num_classes = logits.shape[-1]
        if self._num_classes not in (None, num_classes):
            raise ValueError(
                f"{name}: this batch has {num_classes} classes, and the stream {self._num_classes}."
            )
        parts = []
        for rows in _cut(logits, labels, weights):
            stats, invalid = _checked_stats(self._members, *rows)
            refuse(name, invalid, rows[0].shape, weightless=True)
            parts.append((jax.device_get(stats), len(rows[1])))
        self._refuse_beyond_limit(stats for stats, _ in parts)
        self._num_classes = num_classes
        self._suspicion.add(logits, weights)
        for stats, num_rows in parts:
            self._add(stats, num_rows)

    def update_stats(self, stats: Joint, *, num_rows: int = 0) -> None:
        """Add statistics of `metrics.stats_of`, reduced over devices.

        Args:
          stats: the statistics of the same metrics.
          num_rows: number of examples in the statistics, added to the attribute `num_rows`.
        """
        stats = jax.device_get(stats)
        self._refuse_beyond_limit([stats])
        self._add(stats, num_rows)

    def _add(self, stats: Joint, num_rows: int) -> None:
        for name, stat in stats.parts.items():
            if isinstance(stat, Rows):
                self._part(name, _Kept).add(stat.columns)
                self._hold_to_limit(name)
            else:
                self._part(name, _Total).add(stat)
        self.num_rows += num_rows

    def compute(self) -> dict[str, Any]:
        """Compute every metric over all batches; NaN where the total weight is 0.

        Raise an error if the rows of all batches, 20 or more, look like probabilities.
        """
        if not self._parts:
            raise ValueError("the stream is empty: add a batch before computing values.")
        self._suspicion.refuse(", ".join(self.metrics))
        stats = Joint({name: part.stat() for name, part in self._parts.items()})
        return values_of_stats(self.metrics, stats)

    def reset(self) -> None:
        """Remove all batches and notes, to begin again with the same metrics."""
        self.num_rows = 0
        self.notes = []
        self._parts = {}
        self._num_classes = None
        self._suspicion = Suspicion()

    def across_processes(self) -> Stream:
        """Return the merged stream of all processes; every process must call it."""
        if jax.process_count() == 1:
            return self
        if not _gathered(np.array([float(bool(self._parts))])).all():
            raise ValueError(
                "a process has received no batch: give every process one, of weight 0 if it has no"
                " examples."
            )
        merged = Stream(self.metrics, row_limit=self.row_limit)
        merged.notes, merged._num_classes = self.notes, self._num_classes
        merged._suspicion = self._suspicion
        merged.num_rows = int(_gathered(np.array([float(self.num_rows)])).sum())
        for name, part in self._parts.items():
            merged._parts[name] = part.gathered()
            if isinstance(part, _Kept):
                merged._hold_to_limit(name)
        merged._refuse_beyond_limit([])
        return merged

    def _part(self, name: str, kind: type[Any]) -> Any:
        return self._parts.setdefault(name, kind())

    def _refuse_beyond_limit(self, added: Iterable[Joint]) -> None:
        """Raise an error if a metric that needs every row gets too many; nothing is added yet."""
        rows = {
            name: part.num_rows
            for name, part in self._parts.items()
            if isinstance(part, _Kept) and not part.histogram and not part.ranks
        }
        for stats in added:
            for name, stat in stats.parts.items():
                if isinstance(stat, Rows) and "score" not in stat.columns:
                    rows[name] = rows.get(name, 0) + len(stat.columns["weight"])
        for name, count in rows.items():
            if count > self.row_limit:
                raise ValueError(
                    f"{self._names(name)}: {count} examples exceed row_limit={self.row_limit}, and"
                    " every example is needed. Use fewer examples or raise row_limit."
                )

    def _names(self, part: str) -> str:
        """List the metrics that are computed from a part."""
        owner = owners(self._members)
        return ", ".join(member for member, _ in self._members if owner[member] == part)

    def _hold_to_limit(self, name: str) -> None:
        kept = self._parts[name]
        if not isinstance(kept, _Kept) or kept.histogram or kept.num_rows <= self.row_limit:
            return
        if not kept.ranks:  # too many of them were refused before
            return
        kept.condense()
        note = (
            f"{self._names(name)}: more than {self.row_limit} rows, computed from a fine histogram,"
            " where scores that differ by less than a thousandth count as equal."
        )
        self.notes.append(note)
        warnings.warn(note, stacklevel=4)


def _cut(
    logits: Logits, labels: Labels, weights: Weights | None
) -> Iterator[tuple[Logits, Labels, Weights | None]]:
    """Cut a batch into parts of at most `_MOST_ROWS` rows; a smaller batch is not copied."""
    if len(labels) <= _MOST_ROWS:
        yield logits, labels, weights
        return
    for start in range(0, len(labels), _MOST_ROWS):
        rows = slice(start, start + _MOST_ROWS)
        yield logits[rows], labels[rows], None if weights is None else weights[rows]


@functools.partial(jax.jit, static_argnums=0)
def _checked_stats(
    members: Members, logits: Logits, labels: Labels, weights: Weights | None
) -> tuple[Joint, InvalidValues]:
    return checked_stats(members, logits, labels, weights)


class _Total:
    """Sums in float64."""

    def __init__(self) -> None:
        self.sums: Sums | None = None

    def add(self, sums: Sums) -> None:
        self.sums = sums.host() if self.sums is None else self.sums + sums

    def stat(self) -> Sums:
        assert self.sums is not None
        return self.sums

    def gathered(self) -> _Total:
        gathered = _Total()
        gathered.sums = jax.tree.map(lambda value: _gathered(value).sum(axis=0), self.stat())
        return gathered


class _Kept:
    """Rows, replaced by a histogram of sums after `condense`."""

    def __init__(self) -> None:
        self.batches: list[dict[str, np.ndarray]] = []
        self.histogram: dict[str, Float[np.ndarray, " cells"]] = {}
        self.num_rows = 0  # in the batches

    @property
    def ranks(self) -> bool:
        return "score" in self.batches[0]

    def add(self, columns: dict[str, np.ndarray]) -> None:
        self.batches.append(columns)
        self.num_rows += len(columns["weight"])
        if self.histogram:
            self.condense()

    def condense(self) -> None:
        """Move the rows into the histogram: sums of weight and of weight x each other column."""
        for batch in self.batches:
            present = batch["weight"] > 0
            weight = batch["weight"][present].astype(np.float64)
            cell = fine_cell(batch["score"][present])
            for name, column in batch.items():
                value = weight if name == "weight" else weight * column[present]
                total = np.bincount(cell, value, NUM_CELLS)
                self.histogram[name] = self.histogram.get(name, 0) + total
        self.batches = []
        self.num_rows = 0

    def stat(self) -> Rows:
        if not self.histogram:
            names = self.batches[0]
            return Rows({k: np.concatenate([batch[k] for batch in self.batches]) for k in names})
        weight = self.histogram["weight"]
        filled = weight > 0
        means = {k: v[filled] / weight[filled] for k, v in self.histogram.items()}
        rows = {**means, "weight": weight[filled]}
        return Rows({name: column.astype(np.float32) for name, column in rows.items()})

    def gathered(self) -> _Kept:
        gathered = _Kept()
        if _gathered(np.array([float(bool(self.histogram))])).any():
            self.condense()
            gathered.histogram = {
                name: _gathered(total).sum(axis=0) for name, total in self.histogram.items()
            }
            return gathered
        columns = self.stat().columns
        sizes = _gathered(np.array([float(self.num_rows)]))[:, 0].astype(int)
        most_rows = int(sizes.max())
        for name in sorted(columns):  # in the same order in every process
            column = columns[name]
            padded = np.zeros((most_rows, *column.shape[1:]), column.dtype)
            padded[: len(column)] = column
            parts = _gathered(padded)
            whole_column = np.concatenate([p[:n] for p, n in zip(parts, sizes, strict=True)])
            columns = {**columns, name: whole_column}
        gathered.add(columns)
        return gathered


def _gathered(array: Shaped[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "processes *shape"]:
    """Gather an array of every process as raw bits, because JAX would round float64 to float32."""
    from jax.experimental import multihost_utils

    array = np.asarray(array)
    words = np.atleast_1d(array).view(np.uint32)
    gathered = np.asarray(multihost_utils.process_allgather(words))
    return np.ascontiguousarray(gathered).view(array.dtype).reshape(-1, *array.shape)


# --------------------------------------------------------------------------------------------
# The fine histogram: 1,024 cells per power of two.

_CELLS_AN_OCTAVE = 2**10
# Exponents of 2; scores closer to 0 (or to 1), or larger, are clipped.
_SMALLEST, _LARGEST = -24, 32
_BELOW_HALF = (-1 - _SMALLEST) * _CELLS_AN_OCTAVE
_BELOW_ONE = _BELOW_HALF - _SMALLEST * _CELLS_AN_OCTAVE
_POSITIVE = _BELOW_ONE + _LARGEST * _CELLS_AN_OCTAVE
NUM_CELLS = 2 * _POSITIVE + 2


def fine_cell(score: Float[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """Compute the cell of each score in a grid that is finest near 0 and just inside 1 and -1.

    The confidences of saturated networks lie there and differ by little. Cells are in the order of
    the scores; their width is at most a thousandth of |s|, or of 1 - |s| for |s| from 1/2 to 1.
    """
    size = np.abs(score.astype(np.float64))
    small = _octaves(size, _SMALLEST, -1)
    near_one = _BELOW_ONE - 1 - _octaves(1 - size, _SMALLEST, -1)
    large = _BELOW_ONE + _octaves(size, 0, _LARGEST)
    cell = np.where(size < 0.5, small, np.where(size < 1, near_one, large))
    return np.where(score < 0, _POSITIVE - 1 - cell, _POSITIVE + 1 + cell).astype(np.int64)


def _octaves(size: Float[np.ndarray, " rows"], low: int, high: int) -> Int[np.ndarray, " rows"]:
    """Compute the cell above 2**low, with equal cells per octave; clip to [2**low, 2**high)."""
    fraction, exponent = np.frexp(np.clip(size, 2.0**low, 2.0**high * (1 - 2**-30)))
    within = np.floor((2 * fraction - 1) * _CELLS_AN_OCTAVE)
    return ((exponent - 1 - low) * _CELLS_AN_OCTAVE + within).astype(np.int64)
