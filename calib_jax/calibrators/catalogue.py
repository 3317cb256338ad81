"""Calibrators by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

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
from calib_jax.core import checks

_MODULES: tuple[ModuleType, ...] = (
    temperature,
    platt,
    vector,
    matrix,
    dirichlet,
    beta,
    histogram,
    isotonic,
)
_CATALOGUE: dict[str, Any] = {module.__name__.rsplit(".", 1)[-1]: module for module in _MODULES}


def catalogue() -> Mapping[str, Any]:
    """List every calibrator: a module with `Params`, `fit` and `apply`."""
    return _CATALOGUE


def named(name: str) -> Any:
    """Find a calibrator by its name."""
    checks.one_of("calibrator", name, _CATALOGUE)
    return _CATALOGUE[name]
