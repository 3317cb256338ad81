"""calib_jax: train classifiers whose confidence can be believed, and measure whether it can.

The rooms are loaded eagerly: several functions bear the name of their file, and a lazy lookup
would hand out the module instead of the function.
"""

from calib_jax import core, losses

__all__ = ["core", "losses"]
__version__ = "0.1.0"
