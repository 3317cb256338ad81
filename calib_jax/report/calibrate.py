"""Calibrate predictions before scoring, on held-out examples or by cross-fitting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

import calib_jax.metrics as metrics_package
from calib_jax import calibrators
from calib_jax.core import checks, rows
from calib_jax.core.names import is_path, name_and_options, object_at
from calib_jax.core.types import Array, Labels, Logits, Weights
from calib_jax.inference import Evaluation
from calib_jax.metrics import Stated
from calib_jax.report.predictions import (
    Predictions,
    as_logits,
    at_floor,
    counted,
    grid_of,
    shared_rows,
)

# Logits, labels and weights of held-out examples; or answers, None and weights.
Evidence: TypeAlias = tuple[Any, Any, Any]
Groups: TypeAlias = tuple[Any, Any]  # the groups of the examples, and of those of the fit
EXACT = "nll"  # the criterion that needs no grid
PAPERS_STEP = 0.1
MOST_SHARED = 0.03  # of the scored examples, or of the fitted ones
SETTLED = "converged"  # the state of a fit whose parameters are the optimum


def registered(name: str | None) -> str | None:
    """Register the calibrator of an import path MODULE:NAME, and return its name.

    Options in the text are kept. Other names, and None, are returned unchanged.
    """
    if not name:
        return name
    path, _ = name_and_options(name)
    if not is_path(path):
        return name
    value, short = object_at("calibrator", path), path.partition(":")[2]
    if calibrators.catalogue().get(short) is not value:
        calibrators.register(short)(value)
    return short + name.removeprefix(path)


def named(text: str) -> Any:
    """Return the calibrator of a text NAME or NAME:option=value:option=value.

    >>> named("histogram:num_bins=20").fit.keywords
    {'num_bins': 20}
    """
    name, options = name_and_options(text)
    return calibrators.named(name, **options)


def check_request(
    calibrate: str | None, fit_on: Any, cross_fit: int | None, criterion: str | Sequence[str]
) -> None:
    """Raise an error for options of a calibrator that would have no effect."""
    is_exact = criterion == EXACT or list(criterion) == [EXACT]
    options = {"fit_on": fit_on is None, "cross_fit": cross_fit is None, "criterion": is_exact}
    given = [name for name, is_left_out in options.items() if not is_left_out]
    if calibrate is None and given:
        raise ValueError(f"{' and '.join(given)} needs calibrate, the name of a calibrator.")
    if not isinstance(calibrate, str | None):
        raise TypeError(f"calibrate must be the name of a calibrator, got {calibrate!r}.")
    if fit_on is not None and cross_fit is not None:
        raise ValueError("give fit_on or cross_fit, not both: they are two ways to fit.")


def chosen(calibrate: str | None, criterion: str | Sequence[str]) -> str | None:
    """Register a calibrator, return its name, and raise an error for a criterion without effect."""
    name = registered(calibrate)
    if name:
        columns(name, criterion)
    else:
        check_request(None, None, None, criterion)
    return name


def check_distinct(names: Sequence[str]) -> None:
    """Raise an error if two columns of the report would have one name."""
    if len(set(names)) < len(names):
        raise ValueError(
            f"name, compare_name and calibrate must differ, got {', '.join(map(repr, names))}."
        )


def columns_of(
    models: Sequence[str],
    calibrate: str | None,
    fit_on: Collection[str],
    criterion: str | Sequence[str],
    of_scores: bool,
) -> dict[str, dict[str, str]]:
    """Name the columns of each model that is calibrated, with the criterion of each column.

    Args:
      models: the names of the models.
      calibrate: the name of the calibrator, or None.
      fit_on: the models with other examples to fit on; without any, all are cross-fitted.
      criterion: what a temperature minimises, or several.
      of_scores: whether the models are scores, which a calibrator replaces.
    """
    if calibrate is None:
        return {}
    criteria, fitted_models = columns(calibrate, criterion), list(fit_on or models)
    is_other = set(fitted_models) != set(models) if of_scores else set(fitted_models) - set(models)
    if is_other:
        raise ValueError(
            f"score: fit_on has {', '.join(map(repr, fitted_models))}, and the predictions are"
            f" called {', '.join(map(repr, models))}: use these names; scores need all of them."
        )
    if of_scores:
        return {model: {model: EXACT} for model in models}
    ending = "" if fitted_models == [models[0]] else " of {}"
    named_columns = {
        model: {name + ending.format(model): by for name, by in criteria.items()}
        for model in fitted_models
    }
    check_distinct([*models, *(column for each in named_columns.values() for column in each)])
    return named_columns


def held_out(
    logits: Any, labels: Any, weights: Any = None, *, num_classes: int, **understood: Any
) -> tuple[Logits, Labels, Weights | None]:
    """Validate the examples on which a calibrator is fitted."""
    logits = as_logits(logits, weights=weights, name="fit_on", **understood)
    if logits.shape[-1] != num_classes:
        raise ValueError(
            f"fit_on has {logits.shape[-1]} classes, and the predictions to score have"
            f" {num_classes}: a calibrator is fitted on predictions of the same model."
        )
    one = Evaluation(logits, labels, weights, name="fit_on")
    return one.logits, one.labels, one.weights


def _values_of(rows: Any) -> Array:
    """Return the logits, the confidences or the scores."""
    return jnp.asarray(getattr(rows, "score", getattr(rows, "confidence", rows)))


def evidence(scored: Predictions, given: Predictions, floor: float | None, values: Any) -> Evidence:
    """Return the examples of a fit: logits, labels and weights, or answers, None and weights.

    Args:
      scored: the examples that are calibrated.
      given: the examples of the fit.
      floor: what smaller probabilities are raised to.
      values: the logits, confidences or scores of the scored examples.
    """
    kinds = ["classes" if each.of_classes else each.kind for each in (scored, given)]
    if kinds[0] != kinds[1]:
        raise TypeError(
            f"score: fit_on must be numbers of the same kind, {kinds[0]}, and it has {kinds[1]}; of"
            " answers it is a Stated or a Scored, or with weights (answers, None, weights)."
        )
    if not given.of_classes:
        return given.values(name="fit_on"), None, given.weights
    logits = given.values(floor, name="fit_on")
    return held_out(logits, given.labels, given.weights, num_classes=values.shape[-1])


def on_shared(scored: Predictions, given: Predictions, where: str = "fit_on") -> str:
    """Count the scored examples that a calibrator would be fitted on; "" without any.

    Raise an error if they are more than `MOST_SHARED` of the scored or the fitted examples. Files
    may number their questions from 1 each, so numbers of questions are not compared.
    """
    kind, both = "example" if scored.of_classes else "answer", (scored, given)
    asked = [{*map(str, each.questions)} for each in both if each.questions is not None]
    if len(asked) == 2 and not all(map(str.isdecimal, asked[0] | asked[1])):
        kind, number, sizes = "question", len(asked[0] & asked[1]), [*map(len, asked)]
    else:
        number = shared_rows(*((each.logits, each.labels, each.weights) for each in both))
        sizes = [
            np.size(each.labels if each.weights is None else np.flatnonzero(each.weights > 0))
            for each in both
        ]
    if not number:
        return ""
    found = (
        f"{number:,} of {sizes[0]:,} scored {kind}s {'is' if number == 1 else 'are'} also among the"
        f" {sizes[1]:,} of {where}"
    )
    if number > MOST_SHARED * min(sizes):
        raise ValueError(
            f"score: {found}, and a calibrator is never fitted on the examples that are scored.\n"
            "Give other examples, or cross_fit=5."
        )
    return f"{found}: the calibrated numbers look better than they are."


def decided_by_zeros(given: Predictions, logits: Any, floor: float | None) -> str:
    """Return a warning if a few true classes of probability 0 decide a temperature; else "".

    They decide it if a floor of half the smallest step of the probabilities changes it.

    Args:
      given: the examples of the fit.
      logits: their logits, along one batch axis.
      floor: the value to which smaller probabilities were raised.
    """
    zeros, p = at_floor(given, logits, floor), given.present
    if given.kind != "probabilities" or not np.any(zeros) or not np.any(p > 0):
        return ""
    other = (grid_of(p) or float(np.min(p[p > 0]))) / 2
    if floor is None or floor >= other:
        return ""
    labels, weights = np.ravel(given.labels), given.weights
    weights = None if weights is None else jnp.ravel(weights)
    found, with_other = (
        float(calibrators.temperature.fit(z, labels, weights).temperature)
        for z in (logits, given.values(min(other, 0.1)).reshape(logits.shape))
    )
    if 1 / 1.25 < found / with_other < 1.25:
        return ""
    return (
        f"{np.sum(zeros):,} of {len(zeros):,} true classes have probability 0 and decide the fit:"
        f" T = {found:.3g}, and {with_other:.3g} with --floor={other:.3g}."
    )


def calibrated(
    name: str,
    logits: Any,
    labels: Labels | None,
    weights: Weights | None,
    fit_on: Evidence | None,
    cross_fit: int | None,
    criterion: str,
    seed: int,
    clusters: Shaped[np.ndarray, " rows"] | None = None,
    groups: Groups | None = None,
) -> tuple[Any, dict[str, Any]]:
    """Fit a calibrator and apply it; return the logits and a description of the fit.

    With the groups of the examples and of those of the fit, each group has its own temperature.

    Folds contain whole clusters, so no fold is fitted on examples that depend on its examples.
    Instead of logits and labels, answers and None give the answers with calibrated confidences.
    """
    if labels is not None:
        # Calibrators cannot be applied to NaN, which rows of weight 0 may hold.
        logits, *_ = rows.present(logits, labels, weights)
    if fit_on is not None:
        apply, described = fitted(name, fit_on, criterion, groups)
        return apply(logits), described
    fit, apply = _functions(name, criterion, groups)
    values = _values_of(logits)
    fold = _folds_of(len(values), cross_fit, clusters, seed)
    result = jnp.zeros(values.shape, jnp.promote_types(values.dtype, jnp.float32))
    all_params = []
    for i in range(int(fold.max()) + 1):
        # Select the other folds by weight, so that all fits have one shape and compile once.
        kept = jnp.asarray(fold != i, jnp.float32)
        params = fit(logits, labels, weights=kept if weights is None else kept * weights)
        all_params.append(_plain(params))
        scored = (fold == i).reshape(-1, *[1] * (values.ndim - 1))
        result = jnp.where(scored, apply(params, values), result)
    whole = "" if clusters is None else " of whole clusters"
    fitted_on = f"the rest of the examples, in {cross_fit} folds{whole}"
    described = _described(name, criterion, fitted_on, all_params)
    return Stated(result, logits.correct) if labels is None else result, described


def _folds_of(num_rows: int, cross_fit: int | None, clusters: Any, seed: int) -> np.ndarray:
    """Return the fold of each row; the rows of a cluster have one fold."""
    if cross_fit is None:
        raise ValueError(
            "a calibrator is never fitted on the examples that are scored.\nGive fit_on (other"
            " examples), or cross_fit=5 to fit on all folds but the scored one."
        )
    what, unit = "examples", np.arange(num_rows)
    if clusters is not None:
        what, unit = "clusters", np.unique(clusters, return_inverse=True)[1].reshape(-1)
    checks.whole("cross_fit", cross_fit, 2)
    most = int(unit.max()) + 1
    if cross_fit > most:
        raise ValueError(
            f"cross_fit must lie in [2, {most}], the number of {what}, got {cross_fit}."
        )
    fold: np.ndarray = np.random.default_rng(seed).permutation(most)[unit] % cross_fit
    return fold


def fitted(
    name: str, fit_on: Evidence, criterion: str, groups: Groups | None = None
) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """Fit a calibrator; return the function that applies it and a description of the fit."""
    fit, apply = _functions(name, criterion, groups)
    examples, labels, weights = (*fit_on, None)[:3]
    params = fit(examples, labels, weights=weights)
    present = len(_values_of(examples)) if weights is None else np.sum(np.asarray(weights) > 0)
    others = counted(int(present), "other example")
    return functools.partial(apply, params), _described(name, criterion, others, _plain(params))


def _functions(name: str, criterion: str, groups: Groups | None) -> tuple[Any, Any]:
    """Return the functions that fit and apply a calibrator, or a temperature for each group."""
    if groups is None:
        return fit_of(name, criterion), named(name).apply
    if name != "temperature" or criterion != EXACT:
        raise ValueError("per is for calibrate=temperature by the NLL: leave it out.")
    of_groups = calibrators.temperature
    return (
        functools.partial(of_groups.fit_by_group, groups=groups[1]),
        functools.partial(of_groups.apply_by_group, groups=groups[0]),
    )


def columns(name: str, criterion: str | Sequence[str]) -> dict[str, str]:
    """Name the column of each criterion: the calibrator, or the criteria if there are several.

    Criteria that the calibrator cannot minimise raise an error, before anything is fitted.

    >>> columns("temperature", "ece"), columns("temperature", ["nll", "ece"])
    ({'temperature': 'ece'}, {'T by nll': 'nll', 'T by ece': 'ece'})
    """
    criteria = [criterion] if isinstance(criterion, str) else list(criterion)
    if not criteria or len(set(criteria)) < len(criteria):
        raise ValueError(
            f"criterion must be one name or several different ones, got {', '.join(criteria)}."
        )
    for each in criteria:
        fit_of(name, each)
    alone = len(criteria) == 1
    return {name if alone else f"T by {each}": each for each in criteria}


def sentence(calibrator: dict[str, Any]) -> str:
    """Format the name of the calibrator, the data of the fit, and T for temperature scaling.

    A fit that did not converge is followed by its state.

    >>> fit = {"name": "temperature", "fitted_on": "9 others", "params": {"temperature": 1.5}}
    >>> sentence({**fit, "criterion": "nll"})
    'temperature fitted on 9 others, T = 1.5.'
    >>> sentence({**fit, "criterion": "ece", "file": "val.csv"})
    'temperature fitted on 9 others of val.csv by ece on 0.1, 0.2, ..., 10, T = 1.5.'
    """
    described = f"{calibrator['name']} fitted on {calibrator['fitted_on']}"
    described += f" of {calibrator['file']}" if "file" in calibrator else ""
    if calibrator["name"] == "temperature":
        if calibrator["criterion"] != EXACT:
            described += f" by {search(calibrator['criterion'])}"
        described += f", T = {temperature(calibrator)}"
    state = unsettled(calibrator)
    return f"{described} ({state})." if state else f"{described}."


def temperature(calibrator: dict[str, Any]) -> str:
    """Format the fitted temperature, or the smallest and largest temperature of several folds."""
    temperatures = np.ravel([each["temperature"] for each in _folds(calibrator["params"])]).tolist()
    ends = dict.fromkeys(f"{end:.4g}" for end in (min(temperatures), max(temperatures)))
    return " to ".join(ends)


def unsettled(calibrator: dict[str, Any]) -> str:
    """List the states of the fits that did not converge; empty if all did.

    >>> unsettled({"name": "temperature", "state": "converged, no_optimum"})
    'no_optimum'
    """
    zeros = ["decided by zeros"] * bool(calibrator.get("decided_by"))
    return not_converged([*zeros, *calibrator.get("state", "").split(", ")])


def not_converged(names: Iterable[str]) -> str:
    """List the different states of fits that are not `converged`."""
    return ", ".join(dict.fromkeys(name for name in names if name not in ("", SETTLED)))


def search(criterion: str) -> str:
    """Describe the criterion of a temperature and the temperatures that were tried.

    >>> search("nll"), search("adaptive_ece:0.01")
    ('nll', 'adaptive_ece on 0.01, 0.02, ..., 10')
    """
    metric, step = _parsed(criterion)
    return metric if step is None else f"{metric} on {step:g}, {2 * step:g}, ..., 10"


def _folds(params: Any) -> list[Any]:
    return params if isinstance(params, list) else [params]


def _described(name: str, criterion: str, fitted_on: str, params: Any) -> dict[str, Any]:
    """Describe a fit, and list how it ended; "" for a calibrator that does not report it."""
    folds = [fold for fold in _folds(params) if isinstance(fold, dict)]
    ends = [fold["state"] for fold in folds if isinstance(fold.get("state"), dict)]
    names = dict.fromkeys(name for end in ends for name in np.ravel(end["name"]).tolist())
    described = {"name": name, "criterion": criterion, "fitted_on": fitted_on, "params": params}
    return described | {"state": ", ".join(names)}


def _parsed(criterion: str) -> tuple[str, float | None]:
    """Split a criterion into the metric and the step of the grid; None means no grid."""
    if criterion == EXACT:
        return criterion, None
    metric, colon, text = criterion.partition(":")
    try:
        step = float(text) if colon else PAPERS_STEP
    except ValueError:
        raise ValueError(
            f"criterion {criterion!r} must be a metric and a step, such as adaptive_ece:0.01."
        ) from None
    checks.between(f"the step of criterion {criterion!r}", step, 0.001, 1)
    return metric, step


def fit_of(name: str, criterion: str = EXACT) -> Any:
    """Return the function (logits, labels, weights) -> params of a calibrator.

    Args:
      name: the name of the calibrator.
      criterion: "nll" for the calibrator's own fit. A temperature may also be the first minimum
        of a metric on a grid up to 10: METRIC for the papers' step 0.1, or METRIC:STEP.
    """
    calibrator = named(name)
    if criterion == EXACT:
        return calibrator.fit
    if name != "temperature":
        raise ValueError(
            f"criterion={criterion!r} is for a temperature, and {name!r} minimises the NLL.\n"
            "Leave criterion out, or calibrate by temperature."
        )
    metric, step = _parsed(criterion)
    value_of = _value_of(metrics_package.named(metric))
    return functools.partial(calibrator.fit_grid, start=step, step=step, criterion=value_of)


@functools.cache  # a new function would be compiled again for every fit
def _value_of(
    metric: metrics_package.Metric[..., Any],
) -> Callable[[Logits, Labels, Weights | None], Any]:
    def value_of(logits: Logits, labels: Labels, weights: Weights | None) -> Any:
        return metric.value(metric.stat(logits, labels, weights))

    return value_of


def _plain(params: Any) -> Any:
    """Convert parameters to lists for JSON; reduce a State to its name and NLLs."""
    if isinstance(params, calibrators.OfProbability):
        return _plain(params.fitted)
    if isinstance(params, calibrators.OfScore):
        scores = {} if params.scores is None else {"scores": _plain(params.scores)}
        return _plain(params.fitted) | scores
    if isinstance(params, calibrators.State):
        ends = {"nll_before": params.nll_before, "nll_after": params.nll_after}
        return {"name": params.name} | {k: float(v) for k, v in ends.items()}
    if hasattr(params, "_asdict"):
        return {name: _plain(value) for name, value in params._asdict().items()}
    return np.asarray(params).tolist()
