r"""Temperature scaling: z / T. It changes confidence and no prediction.

$$\min_{T > 0} -\frac1n \sum_i \log \mathrm{softmax}(z_i / T)_{y_i}$$

References:
  Guo et al., On calibration of modern neural networks, ICML 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from calib_jax.calibrators import contract
from calib_jax.core import checks
from calib_jax.core import temperature as solver
from calib_jax.core.probabilities import cross_entropy_and_view
from calib_jax.core.temperature import TemperatureFit as Params
from calib_jax.core.types import Logits, Scalar

__all__ = ["Params", "apply", "fit", "fit_grid"]


def fit(logits: Any, labels: Any, weights: Any = None) -> Params:
    """Find the temperature of least NLL, by safeguarded Newton steps in log T.

    The NLL is never worse than at T = 1. Where it has no minimum (every prediction right, or
    none better than chance), `converged` is False.

    >>> import jax
    >>> from calib_jax import calibrators
    >>> logits = 3 * jax.random.normal(jax.random.key(0), (2000, 5))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 3)
    >>> params = calibrators.temperature.fit(logits, labels)
    >>> bool(params.converged), bool(abs(params.temperature - 3) < 0.3)
    (True, True)
    """
    data = contract.data_of("temperature", logits, labels, weights)
    return solver.fit_nll(*data)


def fit_grid(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    objective: Callable[..., Scalar],
    start: float = 0.1,
    stop: float = 10.0,
    step: float = 0.1,
) -> Params:
    """Try a grid of temperatures, as the papers do, by any objective; the first minimum wins.

    Args:
      logits: `[*batch, classes]`.
      labels: `[*batch]`.
      weights: `[*batch]`.
      objective: `(logits / T, labels, weights) -> scalar`, such as an ECE.
      start: the first temperature.
      stop: the last one, within half a step.
      step: between two; added up, as the released loops do (T += 0.1).
    """
    for name, value in {"start": start, "step": step}.items():
        checks.above(name, value, 0)
    checks.at_least("stop", stop, start)
    data = contract.data_of("temperature", logits, labels, weights)
    count = round((stop - start) / step) + 1
    grid = np.cumsum(np.append(start, np.full(count - 1, step)))
    temperature, _ = solver.fit_grid(*data, objective, grid)
    before, after = (_nll(data, t) for t in (jnp.ones_like(temperature), temperature))
    inside = (temperature > grid[0] * 1.0001) & (temperature < grid[-1] * 0.9999)
    return Params(temperature, inside, before, after)


def apply(params: Params, logits: Any) -> Logits:
    """Divide logits by the temperature."""
    return contract.checked_logits(logits) / params.temperature


def _nll(data: contract.Data, temperature: Scalar) -> Scalar:
    losses, _ = cross_entropy_and_view("loss", data.logits / temperature, data.labels)
    return jnp.sum(data.weights * losses)
