"""calib_jax: train classifiers whose confidence can be believed, and measure whether it can.

The rooms are loaded eagerly: several functions bear the name of their file, and a lazy lookup
would hand out the module instead of the function.
"""

from calib_jax import calibrators, core, data, losses, metrics, models, plots, report, train
from calib_jax.core.binary import binary
from calib_jax.core.checks import label_checked

__all__ = [
    "binary",
    "calibrators",
    "core",
    "data",
    "label_checked",
    "losses",
    "metrics",
    "models",
    "plots",
    "report",
    "train",
]
__version__ = "0.1.0"
