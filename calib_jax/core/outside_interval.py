"""Mark values that lie outside their own interval, and explain the mark.

Percentiles of a resampled calibration error may all lie above the error of the data. Tables,
figures and files show such a value with this mark and this reason.
"""

from collections.abc import Iterable

MARK = "†"
REASON = (
    f"{MARK} outside its own interval: the resamples are not centered on it. Resampling adds noise,"
    " which raises calibration errors; and a few resamples can miss any value."
)


def is_outside(value: float, low: float | None, high: float | None) -> bool:
    """Check whether a value lies outside its interval by more than float32 rounding.

    The difference of two float32 averages of size 1, such as NLLs, is 0 only up to 1e-6.

    >>> is_outside(0.02, 0.03, 0.05), is_outside(0.04, 0.03, 0.05), is_outside(0.04, None, None)
    (True, False, False)
    >>> is_outside(5e-7, 0.0, 0.0)
    False
    """
    if low is None or high is None:
        return False
    slack = 1e-6 * (max(abs(low), abs(high)) + 1)
    return value < low - slack or value > high + slack  # both are False for NaN


def mark(value: float, low: float | None, high: float | None) -> str:
    """Return the mark of a value outside its interval; an empty string if the value is inside."""
    return MARK if is_outside(value, low, high) else ""


def reasons(estimates: Iterable[tuple[float, float | None, float | None]]) -> list[str]:
    """Return the reason, once, if any (value, low, high) is marked, else an empty list."""
    return [REASON] if any(is_outside(*one) for one in estimates) else []
