"""calib_jax: train calibrated classifiers and measure their calibration.

Each subpackage is imported on first use, so that plotting does not import the networks. Inside a
subpackage all files are imported at once: several functions share the name of their file, and a
lazy lookup would return the module instead of the function.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calib_jax import (
        calibrators,
        core,
        data,
        inference,
        losses,
        metrics,
        models,
        plots,
        report,
        train,
    )
    from calib_jax.core.arrays import binary

__all__ = [
    "binary",
    "calibrators",
    "core",
    "data",
    "inference",
    "losses",
    "metrics",
    "models",
    "plots",
    "report",
    "train",
]
__version__ = "1.0.0"

if not TYPE_CHECKING:  # type checkers see all names above and must report unknown ones

    def __getattr__(name: str) -> Any:
        """Import a subpackage, or a function of one, on first access."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "binary":
            value = importlib.import_module("calib_jax.core.arrays").binary
        else:
            value = importlib.import_module(f"{__name__}.{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names, including those not imported yet."""
    return __all__
