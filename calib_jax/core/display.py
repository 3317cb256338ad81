"""Short texts of records that hold arrays, for consoles and notebooks."""

from collections.abc import Mapping
from typing import Any

import jax

_MOST_LEAVES = 8


def short_repr(record: Any) -> str:
    """Format a dataclass or a named tuple in a few lines: arrays by dtype and shape.

    No value of an array is read, so the arrays may be on a device, traced or donated.

    >>> import numpy as np
    >>> from calib_jax import metrics
    >>> metrics.Stated(np.full(9, 0.5), [True] * 9)
    Stated(confidence=float64[9], correct=<list of 9>)
    """
    fields: Mapping[str, Any] = record._asdict() if hasattr(record, "_asdict") else vars(record)
    shown = ", ".join(f"{name}={short(value)}" for name, value in fields.items())
    return f"{type(record).__name__}({shown})"


def short(value: Any) -> str:
    """Format a value in one line: arrays by dtype and shape, other long values by length.

    >>> import numpy as np
    >>> short(np.zeros((2, 3)))
    'float64[2,3]'
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if hasattr(value, "_asdict"):
        return short_repr(value)
    if isinstance(value, dict | list | tuple):
        leaves = jax.tree.leaves(value)
        plain = all(isinstance(leaf, bool | int | float | str) for leaf in leaves)
        if len(leaves) > _MOST_LEAVES or not plain:
            return f"<{type(value).__name__} of {len(value)}>"
    return repr(value)
