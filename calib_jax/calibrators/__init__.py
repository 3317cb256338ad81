"""Calibrators: learn on held-out examples how far a model's confidence can be believed.

params = calibrators.temperature.fit(logits, labels)      arrays, by name
calibrators.temperature.apply(params, new_logits)         logits, or log-probabilities
calibrators.catalogue()                                   every calibrator by name
calibrators.save("t.npz", "temperature", params)          plain arrays, no pickle
"""

from calib_jax.calibrators import (
    beta,
    dirichlet,
    histogram,
    isotonic,
    matrix,
    platt,
    temperature,
    vector,
)
from calib_jax.calibrators.catalogue import catalogue, named
from calib_jax.calibrators.saving import load, save

__all__ = [
    "beta",
    "catalogue",
    "dirichlet",
    "histogram",
    "isotonic",
    "load",
    "matrix",
    "named",
    "platt",
    "save",
    "temperature",
    "vector",
]
