"""A measured value with its standard deviation, interval and numbers of seeds and examples."""

import math
from typing import Any, NamedTuple

import scipy.special

LEVEL = 0.9


class Value(NamedTuple):
    """A number that a verdict rests on.

    Attributes:
      value: the estimate.
      deviation: its standard deviation; None for a number without uncertainty.
      freedom: degrees of freedom of the deviation; infinite for a normal interval.
      seeds: number of trained networks, or of draws of a toy; 0 if there are none.
      rows: number of examples; 0 if there are none.
      note: what the reader must know beside it.
    """

    value: float
    deviation: float | None = None
    freedom: float = math.inf
    seeds: int = 0
    rows: int = 0
    note: str = ""

    def quantile(self, share: float) -> float:
        """Return a quantile of the confidence distribution; the value itself if it is exact."""
        if not self.deviation:
            return self.value
        return self.value + self.deviation * _quantile(share, self.freedom)

    @property
    def low(self) -> float:
        """The lower end of the 90 % interval."""
        return self.quantile((1 - LEVEL) / 2)

    @property
    def high(self) -> float:
        """The upper end of the 90 % interval."""
        return self.quantile((1 + LEVEL) / 2)

    def p_above(self, margin: float = 0.0) -> float:
        """Return the one-sided p-value of the hypothesis that the truth is at most `margin`."""
        if not self.deviation:
            return 0.0 if self.value > margin else 1.0
        return _survival((self.value - margin) / self.deviation, self.freedom)

    def p_below(self, margin: float = 0.0) -> float:
        """Return the one-sided p-value of the hypothesis that the truth is at least `margin`."""
        return Value(-self.value, self.deviation, self.freedom).p_above(-margin)

    def text(self) -> str:
        """Format the value with its interval and n.

        >>> Value(0.25).text()
        '0.25'
        """
        number = f"{self.value:.4g}"
        if self.deviation is not None:
            number += f" [{self.low:.4g}, {self.high:.4g}]"
        named = {"seed": self.seeds, "row": self.rows}
        counts = [f"{n:,} {name}{'s' * (n > 1)}" for name, n in named.items() if n]
        parts = [*counts, *[self.note] * bool(self.note)]
        return number + (f" ({', '.join(parts)})" if parts else "")

    def plain(self) -> dict[str, Any]:
        """Convert to what JSON holds; infinite degrees of freedom become None."""
        record = self._asdict() | {"low": self.low, "high": self.high}
        return record | {"freedom": None if math.isinf(self.freedom) else self.freedom}

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Value":
        """Read a value that `plain` wrote."""
        fields = {name: record[name] for name in cls._fields}
        return cls(**fields | {"freedom": fields["freedom"] or math.inf})


def _quantile(share: float, freedom: float) -> float:
    if math.isinf(freedom):
        return float(scipy.special.ndtri(share))
    return float(scipy.special.stdtrit(freedom, share))


def _survival(score: float, freedom: float) -> float:
    if math.isinf(freedom):
        return float(scipy.special.ndtr(-score))
    return float(scipy.special.stdtr(freedom, -score))
