"""Code shared by the subpackages: array types, numerics, weights, statistics, bins, catalogues."""

from calib_jax.core.packages import require

require("jax", "jaxtyping", "numpy")

from calib_jax.core import (
    binning,
    catalogue,
    checks,
    examples,
    machine,
    numerics,
    probabilities,
    reading,
    rows,
    statistics,
    temperature,
    trouble,
    types,
)
from calib_jax.core.examples import Examples, InMemory, Source
from calib_jax.core.probabilities import Probabilities
from calib_jax.core.statistics import Joint, Rows, Stat, Sums

__all__ = [
    "Examples",
    "InMemory",
    "Joint",
    "Probabilities",
    "Rows",
    "Source",
    "Stat",
    "Sums",
    "binning",
    "catalogue",
    "checks",
    "examples",
    "machine",
    "numerics",
    "probabilities",
    "reading",
    "rows",
    "statistics",
    "temperature",
    "trouble",
    "types",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__
