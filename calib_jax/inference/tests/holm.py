"""Several tests at once: p-values that are valid for all tests together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from calib_jax.core.inputs.arrays import as_numbers, unmasked


def holm(p_values: Any) -> Float[np.ndarray, "*shape"]:
    r"""Adjust p-values for their number, by the method of Holm.

    If every adjusted p-value below 5 % is called a finding, the probability of one false finding
    or more is at most 5 %, however the tests depend on each other:

    $$\tilde p_{(k)} = \min\Bigl(1, \max_{j \le k} (m - j + 1)\, p_{(j)}\Bigr)$$

    for m p-values in ascending order. It is never weaker than Bonferroni's $m p$.

    Args:
      p_values: `[*shape]`. NaN is no test: it stays NaN and is not counted in m.

    References:
      Holm, A simple sequentially rejective multiple test procedure, 1979.

    >>> from calib_jax import inference
    >>> inference.holm([0.01, 0.04, float("nan"), 0.03])
    array([0.03, 0.06,  nan, 0.06])
    """
    if isinstance(p_values, Mapping):
        raise TypeError(
            "p_values must be an array or a list, got a dict: give [*p_values.values()]."
        )
    p = np.asarray(as_numbers("holm", "p_values", unmasked("p_values", p_values)), np.float64)
    tested = ~np.isnan(p)
    if np.any((p[tested] < 0) | (p[tested] > 1)):
        raise ValueError(
            f"p-values must lie in [0, 1], got {p[tested].min()} to {p[tested].max()}."
        )
    values = p[tested]
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate((len(values) - np.arange(len(values))) * values[order])
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1, steps)
    result = np.full(p.shape, np.nan)
    result[tested] = adjusted
    return result
