"""Format rows as JSON and CSV."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def without_nan(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not support, by null.

    >>> without_nan({"ece": float("nan"), "ends": (0.5, float("inf"))})
    {'ece': None, 'ends': [0.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def csv_lines(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, header: bool = True
) -> str:
    r"""Format rows as CSV lines; values of other columns are left out, missing values are empty.

    >>> csv_lines([{"metric": "ece", "value": 0.1, "bins": 15}], ["metric", "value", "low"])
    'metric,value,low\nece,0.1,\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
