"""Saving figures to files."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from calib_jax.core.inputs import checks
from calib_jax.plots.style import settings

if TYPE_CHECKING:
    import matplotlib.figure


# Time stamps would differ between runs; None omits them.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def save(
    figure: "matplotlib.figure.Figure", path: str | os.PathLike[str], *, dpi: int = 200
) -> None:
    """Save a figure as PNG, SVG or PDF, according to the ending of the path.

    Equal figures give equal files, without time stamps or random identifiers. The fonts of a PDF
    are embedded as TrueType, because some conferences reject matplotlib's default Type 3.

    Args:
      figure: figure to save; any figure is saved with this subpackage's settings.
      path: path that ends in .png, .svg or .pdf, in an existing folder.
      dpi: dots per inch of a PNG.
    """
    path = Path(path)
    checks.at_least("dpi", dpi, 1)
    ending = path.suffix.lower()
    if ending not in _METADATA:
        raise ValueError(
            f"save: {path.name!r} has the ending {ending!r}: end it in .png, .svg or .pdf."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save: there is no folder {path.parent}: make it first.")
    buffer = io.BytesIO()
    with settings(**{"svg.hashsalt": "calib_jax", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=ending[1:], dpi=dpi, metadata=_METADATA[ending])
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise type(error)(
            f"save: cannot write {path} ({error.strerror}): choose another path."
        ) from None
