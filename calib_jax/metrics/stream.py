r"""Metrics over batches, in memory that does not grow with the number of batches.

    stream = metrics.Stream({"ece": metrics.ece, "nll": metrics.nll})
    for logits, labels, weights in batches:
        stream.update(logits, labels, weights)
    stream.compute()

Statistics are summed over batches; metric values are not averaged. For 2,000 calibrated points the
pooled ECE is 0.013, but the mean ECE of 50 batches is 0.131. The sums are in float64 on the
host, because a float32 count stops at 16.8 million.

Metrics that rank examples keep one row per example. Above `row_limit` rows they keep one row per
cell of a fine histogram of the scores (`fine_cell`): sums stay exact, and scores that differ by
less than a thousandth (of the score, or of its distance from 1) count as equal: every row takes the
means of its cell. The stream records this in `notes` and warns once.

`auroc` and `average_precision`, which rank all rows once for each class, and
`kde_calibration_error`, which compares all pairs of rows, need every row: above `row_limit`
they raise an error.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from calib_jax.core import checks, values
from calib_jax.core.arrays import with_auto_axes
from calib_jax.core.statistics import Joint, Rows, Sums
from calib_jax.core.values import refuse, refuse_alike, rows_of
from calib_jax.metrics.contract.metric import (
    Metric,
    checked_stats,
    members_of,
    owners,
    values_of_stats,
)

# Limit of rows per compiled pass; its float32 sums would still count twice as many rows exactly.
_MOST_ROWS = 2**23

_checked_stats = functools.partial(jax.jit, static_argnums=0)(checked_stats)
_Columns = dict[str, np.ndarray]


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
        self.reset()

    def reset(self) -> None:
        """Remove all batches and notes, to begin again with the same metrics."""
        self.num_rows = 0
        self.notes: list[str] = []
        self._sums: dict[str, Sums] = {}  # in float64
        self._rows: dict[str, list[_Columns]] = {}
        self._num_classes: int | None = None
        self._alike = self._judged = 0  # rows that look like probabilities, and all

    def update(self, logits: Any, labels: Any = None, weights: Any = None) -> None:
        """Add a batch; if values would make a metric NaN, raise and add nothing."""
        logits, labels = rows_of(", ".join(self.metrics), logits, labels)
        with_auto_axes(self._update, logits, labels, weights)

    def _update(self, logits: Any, labels: Any, weights: Any) -> None:
        name = ", ".join(self.metrics)
        logits, labels, weights = values.flat_rows(
            name, logits, labels, weights, merges=True, stays_sharded=True
        )
        num_classes = logits.shape[-1]
        if self._num_classes not in (None, num_classes):
            raise ValueError(
                f"{name}: this batch has {num_classes} classes, and the stream {self._num_classes}."
            )
        parts, alike, judged = [], 0, 0
        for start in range(0, len(labels), _MOST_ROWS):
            rows = slice(start, start + _MOST_ROWS)
            of_part = logits[rows], labels[rows], None if weights is None else weights[rows]
            stats, invalid = _checked_stats(tuple(self.metrics.items()), *of_part)
            alike, judged = alike + int(invalid.alike), judged + int(invalid.judged)
            invalid = invalid._replace(alike=0, judged=0)
            refuse(name, invalid, of_part[0].shape, weightless=True)
            parts.append(jax.device_get(stats))
        self._add(parts, len(labels))
        self._num_classes = num_classes
        self._alike, self._judged = self._alike + alike, self._judged + judged

    def update_stats(self, stats: Joint, *, num_rows: int = 0) -> None:
        """Add statistics of `metrics.stats_of`, reduced over devices.

        Args:
          stats: the statistics of the same metrics.
          num_rows: number of examples in the statistics, added to the attribute `num_rows`.
        """
        self._add([jax.device_get(stats)], num_rows)

    def compute(self) -> dict[str, Any]:
        """Compute every metric over all batches; NaN where the total weight is 0.

        Raise an error if the rows of all batches, 20 or more, look like probabilities.
        """
        if not (self._sums or self._rows):
            raise ValueError("the stream is empty: add a batch before computing values.")
        refuse_alike(", ".join(self.metrics), self._alike, self._judged)
        rows = {name: Rows(_joined(several)) for name, several in self._rows.items()}
        return values_of_stats(self.metrics, Joint(self._sums | rows))

    def _add(self, parts: Sequence[Joint], num_rows: int) -> None:
        added: dict[str, list[_Columns]] = {}
        for stats in parts:
            for name, stat in stats.parts.items():
                if isinstance(stat, Rows):
                    added.setdefault(name, []).append(dict(stat.columns))
        rows = {
            name: self._within_limit(name, [*self._rows.get(name, []), *several])
            for name, several in added.items()
        }
        for stats in parts:
            for name, stat in stats.parts.items():
                if isinstance(stat, Sums):
                    known = self._sums.get(name)
                    self._sums[name] = stat.host() if known is None else known + stat
        self._rows |= rows
        self.num_rows += num_rows

    def _within_limit(self, name: str, several: list[_Columns]) -> list[_Columns]:
        """Merge the rows of a cell if there are too many rows, or raise an error."""
        count = sum(len(part["weight"]) for part in several)
        if count <= self.row_limit:
            return several
        owner = owners(tuple(self.metrics.items()))
        names = ", ".join(member for member in self.metrics if owner[member] == name)
        if "score" not in several[0]:
            raise ValueError(
                f"{names}: {count} examples exceed row_limit={self.row_limit}, and every example"
                " is needed. Use fewer examples or raise row_limit."
            )
        note = (
            f"{names}: more than {self.row_limit} rows, computed from a fine histogram, where"
            " scores that differ by less than a thousandth count as equal."
        )
        if note not in self.notes:
            self.notes.append(note)
            warnings.warn(note, stacklevel=5)
        return [_merged_by_cell(_joined(several))]


def _joined(several: list[_Columns]) -> _Columns:
    return {k: np.concatenate([part[k] for part in several]) for k in several[0]}


def _merged_by_cell(rows: _Columns) -> _Columns:
    """Merge the rows of each fine cell: the sum of the weights, and the means of the columns."""
    present = rows["weight"] > 0
    weight = rows["weight"][present].astype(np.float64)
    cells, cell = np.unique(fine_cell(rows["score"][present]), return_inverse=True)
    total = np.bincount(cell, weight, len(cells))
    means = {
        name: np.bincount(cell, weight * column[present], len(cells)) / total
        for name, column in rows.items()
    }
    return {name: column.astype(np.float32) for name, column in means.items()} | {"weight": total}


# --------------------------------------------------------------------------------------------
# The fine histogram: 1,024 cells per power of two.

_CELLS_AN_OCTAVE = 2**10
# Exponents of 2; scores closer to 0 (or to 1), or larger, are clipped.
_SMALLEST, _LARGEST = -24, 32
_BELOW_HALF = (-1 - _SMALLEST) * _CELLS_AN_OCTAVE
_BELOW_ONE = _BELOW_HALF - _SMALLEST * _CELLS_AN_OCTAVE
_POSITIVE = _BELOW_ONE + _LARGEST * _CELLS_AN_OCTAVE


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
