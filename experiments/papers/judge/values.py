"""A measured value with its standard deviation, interval and numbers of seeds and examples."""

import math
from typing import Any, NamedTuple

import scipy.optimize
import scipy.special

LEVEL = 0.9


class Value(NamedTuple):
    r"""A number that a verdict rests on.

    Its variance has two parts: one between a few seeds, with few degrees of freedom f, and one
    between many examples, which is known well. The interval of Howe (1974) adds both,

    $$\theta \pm \sqrt{t_f^2 \, \sigma_{seeds}^2 + z^2 \, \sigma_{rows}^2},$$

    and the p-value is the one at which it begins to contain the margin. A true hypothesis is
    rejected no more often than that, whatever the ratio of both parts, and also far in the tail,
    where p-values are adjusted for many claims. Degrees of freedom after Satterthwaite, which a few
    seeds estimate badly, reject many times as often there.

    Attributes:
      value: the estimate.
      deviation: its standard deviation; None for a number without uncertainty.
      freedom: degrees of freedom of the part between seeds; infinite if there is none.
      of_rows: the part of the variance that is between examples, if `freedom` is finite.
      seeds: number of trained networks, or of draws of a toy; 0 if there are none.
      rows: number of examples; 0 if there are none.
      note: what the reader must know beside it.
    """

    value: float
    deviation: float | None = None
    freedom: float = math.inf
    of_rows: float = 0.0
    seeds: int = 0
    rows: int = 0
    note: str = ""

    def quantile(self, share: float) -> float:
        """Return a quantile of the confidence distribution; the value itself if it is exact."""
        if not self.deviation:
            return self.value
        distance = self._distance(min(share, 1 - share))
        return self.value + (distance if share > 0.5 else -distance)

    def _distance(self, p: float) -> float:
        """Return the distance from the value to the margin whose one-sided p-value is p < 1/2."""
        assert self.deviation is not None
        normal = float(scipy.special.ndtri(p))
        if math.isinf(self.freedom):
            return -normal * self.deviation
        student = float(scipy.special.stdtrit(self.freedom, p))
        of_seeds = max(0.0, self.deviation**2 - self.of_rows)
        return math.sqrt(student**2 * of_seeds + normal**2 * self.of_rows)

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
        p = self._p(abs(self.value - margin))
        return p if self.value > margin else 1 - p

    def p_below(self, margin: float = 0.0) -> float:
        """Return the one-sided p-value of the hypothesis that the truth is at least `margin`."""
        return self._replace(value=-self.value).p_above(-margin)

    def _p(self, distance: float) -> float:
        """Invert `_distance`."""
        if math.isinf(self.freedom):
            assert self.deviation is not None
            return float(scipy.special.ndtr(-distance / self.deviation))
        least, most = math.log(1e-100), math.log(0.5)
        if distance >= self._distance(math.exp(least)):
            return 0.0
        root = scipy.optimize.brentq(
            lambda log_p: self._distance(math.exp(log_p)) - distance, least, most
        )
        return math.exp(root)

    def times(self, factor: float) -> "Value":
        """Multiply the value, and what is known of its variance, by a positive number."""
        deviation = None if self.deviation is None else factor * self.deviation
        of_rows = factor**2 * self.of_rows
        return self._replace(value=factor * self.value, deviation=deviation, of_rows=of_rows)

    def percent(self) -> str:
        """Format 100 times the value with its interval.

        >>> Value(0.1284, 0.043, 2.0).percent()
        '12.8 [0.3, 25.4]'
        """
        digits = 1 if abs(self.value) >= 0.01 else 2
        low, middle, high = (f"{100 * x:.{digits}f}" for x in (self.low, self.value, self.high))
        return f"{middle} [{low}, {high}]"

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
