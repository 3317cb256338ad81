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

import functools
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from calib_jax.core import arrays, checks
from calib_jax.core.statistics import Joint, Rows, merged
from calib_jax.core.values import count_alike, flat_rows, refuse, refuse_alike, rows_of
from calib_jax.metrics import contract
from calib_jax.metrics.contract import Metric

_checked_stats = functools.partial(jax.jit, static_argnums=0)(contract.checked_stats)


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
        self.metrics = dict(contract.members_of(metrics))
        self.row_limit = row_limit
        self.reset()

    def reset(self) -> None:
        """Remove all batches and notes, to begin again with the same metrics."""
        self.num_rows = 0
        self.notes: list[str] = []
        self._stats: Joint | None = None  # sums in float64
        self._seen = [0, 0]  # rows that look like probabilities, and all

    def update(self, logits: Any, labels: Any = None, weights: Any = None) -> None:
        """Add a batch; if values would make a metric NaN, raise and add nothing."""
        logits, labels = rows_of(", ".join(self.metrics), logits, labels)
        arrays.with_auto_axes(self._update, logits, labels, weights)

    def _update(self, logits: Any, labels: Any, weights: Any) -> None:
        name = ", ".join(self.metrics)
        logits, labels, weights = flat_rows(name, logits, labels, weights, merges=True)
        stats, invalid = _checked_stats(tuple(self.metrics.items()), logits, labels, weights)
        refuse(name, invalid, logits.shape, weightless=True)
        self._add(stats, len(labels))
        self._seen = [a + b for a, b in zip(self._seen, count_alike(logits, weights), strict=True)]

    def update_stats(self, stats: Joint, *, num_rows: int = 0) -> None:
        """Add statistics of `metrics.stats_of`, reduced over devices.

        Args:
          stats: the statistics of the same metrics.
          num_rows: number of examples in the statistics, added to the attribute `num_rows`.
        """
        self._add(stats, num_rows)

    def compute(self) -> dict[str, Any]:
        """Compute every metric over all batches; NaN where the total weight is 0.

        Raise an error if the rows of all batches, 20 or more, look like probabilities.
        """
        if self._stats is None:
            raise ValueError("the stream is empty: add a batch before computing values.")
        refuse_alike(", ".join(self.metrics), *self._seen)
        return contract.values_of_stats(self.metrics, self._stats)

    def _add(self, stats: Joint, num_rows: int) -> None:
        known = [] if self._stats is None else [self._stats]
        total = merged([*known, jax.device_get(stats)])
        self._stats = Joint({k: self._within_limit(k, stat) for k, stat in total.parts.items()})
        self.num_rows += num_rows

    def _within_limit(self, name: str, stat: Any) -> Any:
        """Merge the rows of each cell if there are too many rows, or raise an error."""
        if not isinstance(stat, Rows) or len(stat["weight"]) <= self.row_limit:
            return stat
        owner = contract.owners(tuple(self.metrics.items()))
        names = ", ".join(member for member in self.metrics if owner[member] == name)
        if "score" not in stat.columns:
            raise ValueError(
                f"{names}: {len(stat['weight'])} examples exceed row_limit={self.row_limit}, and"
                " every example is needed. Use fewer examples or raise row_limit."
            )
        note = (
            f"{names}: more than {self.row_limit} rows, computed from a fine histogram, where"
            " scores that differ by less than a thousandth count as equal."
        )
        if note not in self.notes:
            self.notes.append(note)
            warnings.warn(note, stacklevel=5)
        return _merged_by_cell(stat)


def _merged_by_cell(rows: Rows) -> Rows:
    """Merge the rows of each fine cell: the sum of the weights, and the means of the columns."""
    present = rows["weight"] > 0
    weight = rows["weight"][present].astype(np.float64)
    cells, cell = np.unique(fine_cell(rows["score"][present]), return_inverse=True)
    total = np.bincount(cell, weight, len(cells))
    columns = {
        name: (np.bincount(cell, weight * column[present], len(cells)) / total).astype(np.float32)
        for name, column in rows.columns.items()
    }
    return Rows(columns | {"weight": total})


# --------------------------------------------------------------------------------------------
# The fine histogram: 1,024 cells per power of two, the leading bits of a float32.

_MANTISSA_BITS = 10


def _leading_bits(size: Float[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    return size.astype(np.float32).view(np.int32).astype(np.int64) >> (23 - _MANTISSA_BITS)


def fine_cell(score: Float[np.ndarray, " rows"]) -> Int[np.ndarray, " rows"]:
    """Compute the cell of each score in a grid that is finest near 0 and just inside 1 and -1.

    The confidences of saturated networks lie there and differ by little. Cells are in the order of
    the scores; their width is at most a thousandth of |s|, or of 1 - |s| for |s| from 1/2 to 1.
    """
    size = np.abs(score.astype(np.float32))
    half, one = _leading_bits(np.array([0.5, 1.0]))
    near_one = 2 * half - _leading_bits(np.where(size < 1, 1 - size, 0))
    large = 2 * half - one + _leading_bits(size) + 1
    cell = np.where(size < 0.5, _leading_bits(size), np.where(size < 1, near_one, large))
    return np.where(score < 0, -1 - cell, cell)
