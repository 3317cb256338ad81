"""Plots: matplotlib figures from plain arrays, returned and never shown.

    figure = plots.reliability_diagram(metrics.reliability(logits, labels))
    plots.save(figure, "reliability.pdf")

Arrays may be from NumPy or JAX; tables are any objects with the fields of `plots.BinTable`. Each
file of this subpackage defines one family of figures. matplotlib is imported when the first figure
is drawn. pyplot is never imported, so no window opens and no figure stays registered.
"""

from calib_jax.core import checks as _checks
from calib_jax.plots.bins import Bins as Bins
from calib_jax.plots.bins import BinTable as BinTable
from calib_jax.plots.curves import roc as roc
from calib_jax.plots.histograms import bin_strength as bin_strength
from calib_jax.plots.histograms import confidence_histogram as confidence_histogram
from calib_jax.plots.histograms import log_histograms as log_histograms
from calib_jax.plots.intervals import intervals as intervals
from calib_jax.plots.reliability import reliability_before_after as reliability_before_after
from calib_jax.plots.reliability import reliability_diagram as reliability_diagram
from calib_jax.plots.reliability import reliability_grid as reliability_grid
from calib_jax.plots.saving import DARK_COLORS as DARK_COLORS
from calib_jax.plots.saving import inline_svg as inline_svg
from calib_jax.plots.saving import save as save
from calib_jax.plots.segmentation import segmentation as segmentation
from calib_jax.plots.training import training_curves as training_curves

_checks.export(__name__)
