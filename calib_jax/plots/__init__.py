"""Plots: matplotlib figures from plain arrays, returned and never shown.

    figure = plots.reliability_diagram(metrics.reliability(logits, labels))
    plots.save(figure, "reliability.pdf")

Arrays may be from NumPy or JAX; tables are any objects with the fields of `plots.BinTable`. Each
file of this subpackage defines one family of figures. matplotlib is imported when the first figure
is drawn. pyplot is never imported, so no window opens and no figure stays registered.
"""

from typing import TYPE_CHECKING, Any

from calib_jax.core.names import no_attribute
from calib_jax.plots.bins import Bins, BinTable
from calib_jax.plots.curves import roc
from calib_jax.plots.decades import log_histograms
from calib_jax.plots.inline import DARK_COLORS, inline_svg
from calib_jax.plots.intervals import intervals
from calib_jax.plots.reliability import (
    reliability_before_after,
    reliability_diagram,
    reliability_grid,
)
from calib_jax.plots.saving import save
from calib_jax.plots.segmentation import segmentation
from calib_jax.plots.strength import bin_strength, confidence_histogram
from calib_jax.plots.training import training_curves

__all__ = [
    "DARK_COLORS",
    "BinTable",
    "Bins",
    "bin_strength",
    "confidence_histogram",
    "inline_svg",
    "intervals",
    "log_histograms",
    "reliability_before_after",
    "reliability_diagram",
    "reliability_grid",
    "roc",
    "save",
    "segmentation",
    "training_curves",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


if not TYPE_CHECKING:  # type checkers see all names above and report unknown ones

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
