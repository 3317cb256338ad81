r"""Matrix scaling: any affine map of the logits, $W z + b$.

It has K² + K parameters and overfits where there are many classes; with penalties on what is off
the diagonal and on the offsets (ODIR) it need not.

References:
  Guo et al., On calibration of modern neural networks, ICML 2017.
  Kull et al., Beyond temperature scaling, NeurIPS 2019 (the penalties).
"""

from __future__ import annotations

from typing import Any

from calib_jax.calibrators import contract, linear
from calib_jax.calibrators.linear import Params
from calib_jax.calibrators.vector import apply
from calib_jax.core import checks

__all__ = ["Params", "apply", "fit"]


def fit(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    off_diagonal: float = 0.0,
    intercept: float = 0.0,
) -> Params:
    """Find the map of least NLL.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`.
      off_diagonal: how much the mean square of the entries off the diagonal adds to the NLL.
      intercept: how much the mean square of the offsets adds.
    """
    checks.at_least("off_diagonal", off_diagonal, 0)
    checks.at_least("intercept", intercept, 0)
    data = contract.data_of("matrix", logits, labels, weights)
    penalties = {"off_diagonal": off_diagonal, "intercept": intercept}
    return linear.fit(data, data.logits, diagonal=False, **penalties)
