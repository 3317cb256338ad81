"""Code shared by the subpackages: array types, numerics, weights, statistics, bins, catalogues.

The types that other subpackages take and return are public. The files are internal: a file of
another subpackage imports the file it needs, such as `from calib_jax.core import numerics`.
"""

from calib_jax.core import checks as _checks
from calib_jax.core.examples import Examples as Examples
from calib_jax.core.examples import InMemory as InMemory
from calib_jax.core.examples import Source as Source
from calib_jax.core.probabilities import Probabilities as Probabilities
from calib_jax.core.statistics import Joint as Joint
from calib_jax.core.statistics import Rows as Rows
from calib_jax.core.statistics import Sums as Sums
from calib_jax.core.types import Stat as Stat

_checks.export(__name__)
