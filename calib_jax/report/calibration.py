"""Calibrate predictions before scoring, on held-out examples or by cross-fitting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

import calib_jax.metrics as metrics_package
from calib_jax import calibrators
from calib_jax.core import rows
from calib_jax.core.types import Labels, Logits, Weights

# Logits, labels and weights of held-out examples.
Evidence: TypeAlias = tuple[Any, Any, Any]


def calibrated(
    name: str,
    logits: Logits,
    labels: Labels,
    weights: Weights | None,
    fit_on: Evidence | None,
    cross_fit: int | None,
    criterion: str,
    seed: int,
    clusters: Shaped[np.ndarray, " rows"] | None = None,
) -> tuple[Logits, dict[str, Any]]:
    """Fit a calibrator and apply it; return the logits and a description of the fit.

    Folds contain whole clusters, so no fold is fitted on examples that depend on it.
    """
    # Calibrators cannot be applied to NaN, which rows of weight 0 may hold.
    logits, _ = rows.present(logits, labels, weights)
    if fit_on is not None:
        apply_fitted, described = fitted(name, fit_on, criterion)
        return apply_fitted(logits), described
    if cross_fit is None:
        raise ValueError(
            "a calibrator is never fitted on the examples that are scored.\nGive fit_on (other"
            " examples), or cross_fit=5 to fit on all folds but the scored one."
        )
    unit = np.arange(len(labels))
    if clusters is not None:
        unit = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    num_units = int(unit.max()) + 1
    if not 2 <= cross_fit <= num_units:
        what = "examples" if clusters is None else "clusters"
        raise ValueError(
            f"cross_fit must lie in [2, {num_units}], the number of {what}, got {cross_fit}."
        )
    apply, fit = calibrators.named(name).apply, _fit(name, criterion)
    fold = np.random.default_rng(seed).permutation(num_units)[unit] % cross_fit
    result = jnp.zeros(logits.shape, jnp.promote_types(logits.dtype, jnp.float32))
    all_params = []
    for i in range(cross_fit):
        # Select the other folds by weight, so that all fits have one shape and compile once.
        fold_weights = jnp.asarray(fold != i, jnp.float32)
        params = fit(logits, labels, fold_weights if weights is None else fold_weights * weights)
        all_params.append(_plain(params))
        result = jnp.where((fold_weights == 0)[:, None], apply(params, logits), result)
    fitted_on = f"the rest of the examples, in {cross_fit} folds"
    if clusters is not None:
        fitted_on += " of whole clusters"
    return result, _described(name, criterion, fitted_on, all_params)


def fitted(
    name: str, fit_on: Evidence, criterion: str
) -> tuple[Callable[[Logits], Logits], dict[str, Any]]:
    """Fit a calibrator; return the function that applies it and a description of the fit."""
    params = _fit(name, criterion)(*fit_on)
    _, labels, weights = fit_on
    count = len(labels) if weights is None else int(np.sum(np.asarray(weights) > 0))
    described = _described(name, criterion, f"{count:,} other examples", _plain(params))
    return functools.partial(calibrators.named(name).apply, params), described


def sentence(calibrator: dict[str, Any]) -> str:
    """Format the calibrator's name and the data of its fit; for temperature scaling also T.

    >>> sentence({"name": "temperature", "fitted_on": "9 others", "params": {"temperature": 1.5}})
    'temperature fitted on 9 others, T = 1.5.'
    """
    fitted = f"{calibrator['name']} fitted on {calibrator['fitted_on']}"
    if calibrator["name"] != "temperature":
        return f"{fitted}."
    params = calibrator["params"]
    folds = params if isinstance(params, list) else [params]
    temperatures = [fold["temperature"] for fold in folds]
    ends = dict.fromkeys(f"{end:.4g}" for end in (min(temperatures), max(temperatures)))
    return f"{fitted}, T = {' to '.join(ends)}."


def _described(name: str, criterion: str, fitted_on: str, params: Any) -> dict[str, Any]:
    return {"name": name, "criterion": criterion, "fitted_on": fitted_on, "params": params}


def _fit(name: str, criterion: str) -> Any:
    module = calibrators.named(name)
    if criterion == "nll":
        return module.fit
    if name != "temperature":
        raise ValueError(
            f"criterion={criterion!r} is for a temperature, and {name!r} minimises the NLL.\n"
            "Leave criterion out, or calibrate by temperature."
        )
    metric = metrics_package.named(criterion)

    def value_of(logits: Logits, labels: Labels, weights: Weights | None) -> Any:
        return metric.value(metric.stat(logits, labels, weights))

    return functools.partial(module.fit_grid, criterion=value_of)


def _plain(params: Any) -> Any:
    """Convert parameters to lists for JSON; reduce a State to its name and NLLs."""
    if isinstance(params, calibrators.State):
        ends = {"nll_before": params.nll_before, "nll_after": params.nll_after}
        return {"name": params.name} | {k: float(v) for k, v in ends.items()}
    if hasattr(params, "_asdict"):
        return {name: _plain(value) for name, value in params._asdict().items()}
    return np.asarray(params).tolist()
