"""Console output of training: lines, and a progress bar on a terminal."""

from __future__ import annotations

import sys
from typing import Any

from calib_jax.core.files import escaping


class Console:
    """Console output: lines, and a progress bar on a terminal.

    Args:
      total_steps: the total number of steps of all runs.
      progress: whether to show a progress bar; only lines are printed outside a terminal.
      quiet: print nothing.
    """

    def __init__(self, total_steps: int, *, progress: bool = True, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Any = None
        if progress and not quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total_steps, unit="step", dynamic_ncols=True, smoothing=0.1)

    def print(self, text: str) -> None:
        """Print a line and flush."""
        if self._quiet:
            return
        text = escaping.printable(text)
        if self._bar is not None:
            self._bar.write(text)
        else:
            print(text, flush=True)

    def advance(self, step: int, loss: float | None = None) -> None:
        """Set the progress bar to the number of steps done."""
        if self._bar is not None:
            if loss is not None:
                self._bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            self._bar.update(step - self._bar.n)

    def close(self) -> None:
        """Close the progress bar and leave it visible."""
        if self._bar is not None:
            self._bar.close()
