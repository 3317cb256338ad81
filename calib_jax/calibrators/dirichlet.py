r"""Dirichlet calibration: an affine map of the log-probabilities, $W \log p + b$.

References:
  Kull et al., Beyond temperature scaling: obtaining well-calibrated multi-class probabilities
  with Dirichlet calibration, NeurIPS 2019.
"""

from __future__ import annotations

from typing import Any

import jax

from calib_jax.calibrators import contract, linear
from calib_jax.calibrators.linear import Params
from calib_jax.core import checks
from calib_jax.core.types import Logits

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
    data = contract.data_of("dirichlet", logits, labels, weights)
    inputs = jax.nn.log_softmax(data.logits)
    penalties = {"off_diagonal": off_diagonal, "intercept": intercept}
    return linear.fit(data, inputs, diagonal=False, **penalties)


def apply(params: Params, logits: Any) -> Logits:
    """Compute W log p + b."""
    rows = jax.nn.log_softmax(contract.checked_logits(logits))
    contract.same_classes(params.bias.shape[-1], rows)
    return linear.affine(params.weight, params.bias, rows)
