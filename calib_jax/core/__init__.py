"""Code shared by the subpackages: array types, numerics, weights, statistics, bins, catalogues.

The types that other subpackages take and return are public. The files are internal: a file of
another subpackage imports the file it needs, such as `from calib_jax.core import numerics`.
"""

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
]


def __dir__() -> list[str]:
    """Return the public names, without the files of this subpackage."""
    return __all__
