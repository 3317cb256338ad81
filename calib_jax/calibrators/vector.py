r"""Vector scaling: a factor and an offset for every class, $a \odot z + b$.

References:
  Guo et al., On calibration of modern neural networks, ICML 2017.
"""

from __future__ import annotations

from typing import Any

from calib_jax.calibrators import contract, linear
from calib_jax.calibrators.linear import Params
from calib_jax.core import checks
from calib_jax.core.types import Logits

__all__ = ["Params", "apply", "fit"]


def fit(logits: Any, labels: Any, weights: Any = None, *, intercept: float = 0.0) -> Params:
    """Find factors and offsets of least NLL.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`.
      intercept: how much the mean square of the offsets adds to the NLL.
    """
    checks.at_least("intercept", intercept, 0)
    data = contract.data_of("vector", logits, labels, weights)
    return linear.fit(data, data.logits, diagonal=True, off_diagonal=0.0, intercept=intercept)


def apply(params: Params, logits: Any) -> Logits:
    """Compute factors times logits plus offsets."""
    rows = contract.checked_logits(logits)
    contract.same_classes(params.bias.shape[-1], rows)
    return linear.affine(params.weight, params.bias, rows)
