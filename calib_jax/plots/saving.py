"""Figures as files."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from calib_jax.core import checks
from calib_jax.plots.style import settings

if TYPE_CHECKING:
    import matplotlib.figure

__all__ = ["save"]

# What would differ from one run to the next: the time. None leaves it out.
_METADATA: dict[str, dict[str, str | None]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


def save(
    figure: "matplotlib.figure.Figure", path: str | os.PathLike[str], *, dpi: int = 200
) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of the path.

    Equal figures give equal files: there is no time and nothing random in them. The fonts of a
    PDF are embedded as TrueType, since some conferences refuse matplotlib's usual Type 3.

    Args:
      figure: a picture of this room; other figures get its settings.
      path: ends in .png, .svg or .pdf; its folder exists.
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
