"""What the rooms share: array types, numerics, rows and weights, statistics, bins, catalogues."""

from calib_jax.core import (
    binning,
    catalogue,
    checks,
    numerics,
    probabilities,
    rows,
    statistics,
    temperature,
    trouble,
    types,
)
from calib_jax.core.probabilities import Probabilities
from calib_jax.core.statistics import Joint, Rows, Stat, Sums

__all__ = [
    "Joint",
    "Probabilities",
    "Rows",
    "Stat",
    "Sums",
    "binning",
    "catalogue",
    "checks",
    "numerics",
    "probabilities",
    "rows",
    "statistics",
    "temperature",
    "trouble",
    "types",
]
