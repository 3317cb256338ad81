"""calib_jax: train classifiers whose confidence can be believed, and measure whether it can.

A subpackage is imported when it is first used, so that plots do not wait for networks. Inside a
subpackage everything is imported at once: several functions bear the name of their file, and a
lazy lookup would return the module instead of the function.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_FUNCTIONS = {"binary": "calib_jax.core.binary", "label_checked": "calib_jax.core.checks"}


if not TYPE_CHECKING:  # a type checker knows all names, and is to find wrong ones

    def __getattr__(name: str) -> Any:
        """Import a subpackage, or a function of one, when it is first asked for."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _FUNCTIONS:
            value = getattr(importlib.import_module(_FUNCTIONS[name]), name)
        else:
            value = importlib.import_module(f"{__name__}.{name}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names, those that are not imported yet included."""
    return __all__
