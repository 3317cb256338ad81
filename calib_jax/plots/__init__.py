"""Plots: matplotlib figures from plain arrays, returned and never shown.

    figure = plots.reliability_diagram(metrics.reliability(logits, labels))
    plots.save(figure, "reliability.pdf")

Arrays may be from NumPy or JAX; tables are any objects with the fields of `plots.BinTable`. Each
file of this subpackage defines one family of figures. matplotlib is imported when the first figure
is drawn. pyplot is never imported, so no window opens and no figure stays registered.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_subpackage
from calib_jax.core.names import no_attribute

_names = load_subpackage(sys.modules[__name__])
globals().update(_names)
__all__ = sorted(_names)


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


def __getattr__(name: str) -> Any:
    # Also lets type checkers accept the names that are added at import time.
    raise no_attribute(__name__, name, __all__)
