"""Tables of bins, the input of reliability diagrams and bin-strength plots."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from calib_jax.plots.style import add_hover, count, of_same_length, vector

FEW = 10  # bins with fewer examples are drawn faint
NARROW = 0.002  # narrower bins look like a line, or are invisible


@runtime_checkable
class BinTable(Protocol):
    """Input of a figure of bins: arrays `[bins]`, as returned by `metrics.reliability`.

    `low` and `high`, the ends of an interval around the accuracy, may be None or missing.

    Attributes:
      lower: lower edges.
      upper: upper edges.
      weight: total weight of the examples in the bin.
      confidence: mean confidence of the examples; ignored in an empty bin.
      accuracy: the share of hits among the examples; ignored in an empty bin.
    """

    lower: Any
    upper: Any
    weight: Any
    confidence: Any
    accuracy: Any


class Bins(NamedTuple):
    """A table built from arrays of any source.

    Attributes:
      lower: lower edges.
      upper: upper edges.
      weight: total weight of the examples.
      confidence: mean confidence.
      accuracy: share of hits.
      low: lower end of the accuracy's interval.
      high: upper end of the accuracy's interval.
    """

    lower: Any
    upper: Any
    weight: Any
    confidence: Any
    accuracy: Any
    low: Any = None
    high: Any = None


class CheckedBins(Bins):
    """A validated table in float64, with the summaries that figures print."""

    @property
    def filled(self) -> np.ndarray:
        """Whether each bin holds an example."""
        return self.weight > 0

    @property
    def few(self) -> np.ndarray:
        """Whether each bin holds an example, but fewer than `FEW`; weights must be counts.

        Bins of equal mass split examples, so they have equal weights in place of whole ones.
        """
        whole = np.array_equal(self.weight, np.round(self.weight))
        of_examples = whole or (self._equal_mass and self.weight.sum() >= len(self.weight))
        return self.filled & (self.weight < FEW) & of_examples

    @property
    def share(self) -> np.ndarray:
        """The percentage of all examples that each bin holds."""
        return 100 * self.weight / self.weight.sum()

    @property
    def ece(self) -> float:
        """The mean absolute gap between confidence and accuracy over the examples."""
        return self.mean(np.abs(self.confidence - self.accuracy))

    def mean(self, values: np.ndarray) -> float:
        """Average per-bin values over the examples."""
        filled = self.filled
        return float(np.average(values[filled], weights=self.weight[filled]))

    @property
    def n(self) -> str:
        """The number of examples, as text."""
        return f"n = {count(self.weight.sum())}"

    def described(self, number: int) -> str:
        """Describe one bin in lines of text."""
        ends = ""
        if self.low is not None and self.high is not None:
            ends = f" [{self.low[number]:.4f}, {self.high[number]:.4f}]"
        return (
            f"bin {self.lower[number]:.3f} to {self.upper[number]:.3f}\n"
            f"n = {count(self.weight[number])}, {self.share[number]:.1f}% of all\n"
            f"mean confidence {self.confidence[number]:.4f}\n"
            f"accuracy {self.accuracy[number]:.4f}{ends}"
        )

    def add_hover(self, axes: Any) -> None:
        """Attach the description of every bin with an example to its part of the axes."""
        for number in np.flatnonzero(self.filled).tolist():
            edges = {"left": self.lower[number], "right": self.upper[number]}
            add_hover(axes, self.described(number), **edges)

    @property
    def cut(self) -> str:
        """The number and kind of bins, as text."""
        width = self.upper - self.lower
        if len(width) == 1:
            return "1 bin"
        kind = ""
        if width[0] > 0 and np.allclose(width, width[0], atol=1e-6):
            kind = " of equal width"
        elif self._equal_mass or self._differ_by_rounding:
            kind = " of equal mass"
        return f"{len(width)} bins{kind}"

    @property
    def _equal_mass(self) -> bool:
        return np.allclose(self.weight, self.weight[0], rtol=1e-4)

    @property
    def _differ_by_rounding(self) -> bool:
        """Whether the weights are counts that are as equal as whole numbers allow."""
        counts = np.array_equal(self.weight, np.round(self.weight)) and np.all(self.filled)
        return bool(counts and np.ptp(self.weight) <= 1)


def note_on_narrow(panels: Mapping[str, CheckedBins]) -> str:
    """Count the bins of each panel that are too narrow to see, such as equal-mass bins near 1."""
    notes = []
    for name, bins in panels.items():
        narrow = bins.filled & (bins.upper - bins.lower < NARROW)
        if narrow.any():
            share = bins.share[narrow].sum()
            notes.append(
                f"{name}: ".removeprefix(": ")
                + f"{narrow.sum()} of {len(narrow)} bins, with {share:.1f}% of the examples, are"
                " too narrow to see."
            )
    return " ".join(notes)


_FIELDS = ("lower", "upper", "weight", "confidence", "accuracy")


def checked(picture: str, table: Any) -> CheckedBins:
    """Validate a table and convert it to float64; errors name the function `picture`."""
    if not isinstance(table, BinTable):
        missing = ", ".join(name for name in _FIELDS if not hasattr(table, name))
        raise TypeError(
            f"{picture}: a {type(table).__name__} has no {missing}: give what"
            " metrics.reliability returns, or plots.Bins."
        )
    ends = ("low", "high") if getattr(table, "low", None) is not None else ()
    one_axis = "one value a bin; draw one class at a time"
    arrays = {
        name: vector(f"{picture}: {name}", getattr(table, name), one_axis)
        for name in (*_FIELDS, *ends)
    }
    of_same_length(**arrays)
    bins = CheckedBins(**arrays)
    if not (np.all(bins.weight >= 0) and 0 < bins.weight.sum() < np.inf):
        raise ValueError(f"{picture}: weight must be finite, not negative, and not 0 in all bins.")
    if not np.all((bins.lower >= 0) & (bins.lower <= bins.upper) & (bins.upper <= 1)):
        raise ValueError(f"{picture}: edges must satisfy 0 <= lower <= upper <= 1.")
    for name in (*_FIELDS[3:], *ends):
        values = arrays[name][bins.filled]
        if not np.all((values >= -1e-6) & (values <= 1 + 1e-6)):
            raise ValueError(
                f"{picture}: {name} must lie in [0, 1], got {values}: NaN comes of labels out of"
                " range or NaN logits."
            )
    return bins
