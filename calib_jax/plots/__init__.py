"""Plots: matplotlib figures from plain arrays, returned and never shown.

    figure = plots.reliability_diagram(metrics.reliability(logits, labels))
    plots.save(figure, "reliability.pdf")

Arrays are NumPy's or JAX's, tables whatever has the fields of `plots.Table`. Every file of this
folder is one family of pictures. matplotlib is imported when the first picture is drawn, and
pyplot never: no window opens and no figure is left behind.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_room
from calib_jax.core.checks import nearest

_names = load_room(sys.modules[__name__])
globals().update(_names)
__all__ = sorted(_names)


def __dir__() -> list[str]:
    """List the public names; files of this folder are not among them."""
    return __all__


def __getattr__(name: str) -> Any:
    # Also tells a type checker that there are more names than it can see.
    raise AttributeError(f"calib_jax.plots has no {name!r}{nearest(name, __all__)}")
