"""Calibrate predictions before scoring, on held-out examples or by cross-fitting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import calibrators, metrics
from calib_jax.core import checks
from calib_jax.core.checks import is_path, name_and_options, object_at
from calib_jax.core.types import Array
from calib_jax.inference import Evaluation
from calib_jax.report import predictions as records
from calib_jax.report.predictions import Predictions, counted

# Logits, labels and weights of held-out examples; or answers, None and weights.
Evidence: TypeAlias = tuple[Any, Any, Any]
Groups: TypeAlias = tuple[Any, Any]  # the groups of the examples, and of those of the fit
EXACT = "nll"  # the criterion that needs no grid
MOST_SHARED = 0.03  # of the scored examples, or of the fitted ones
SETTLED = "converged"  # the state of a fit whose parameters are the optimum
# Calibrators whose parameters have one shape for any number of rows: rows of weight 0 are added, so
# that sets of similar sizes share compiled programs.
PADDED = ("temperature", "platt", "vector", "matrix", "dirichlet", "beta")


def requested(
    calibrate: str | None, criterion: str | Sequence[str], per: str | None = None, **sources: Any
) -> dict[str, str]:
    """Validate the request of a calibrator; return the columns of a report, with their criteria.

    A column is named after the calibrator, or after its criterion if there are several. Without a
    calibrator there are none.

    Args:
      calibrate: NAME, NAME:option=value:option=value, or the same with an import path MODULE:NAME;
        None or "" for no calibrator.
      criterion: what a temperature minimises, or several.
      per: the column of groups that have a temperature each, or None.
      **sources: the examples of the fit, `fit_on` and `cross_fit`, of which one is given; without
        any, they are chosen later.

    >>> requested("temperature", "ece"), requested("temperature", ["nll", "ece"])
    ({'temperature': 'ece'}, {'T by nll': 'nll', 'T by ece': 'ece'})
    """
    criteria = [criterion] if isinstance(criterion, str) else [*dict.fromkeys(criterion)] or [EXACT]
    given = [name for name, source in sources.items() if source is not None]
    if not calibrate:
        if given := [*given, *["criterion"] * (criteria != [EXACT]), *["per"] * (per is not None)]:
            raise ValueError(f"{' and '.join(given)} needs calibrate, the name of a calibrator.")
        return {}
    if sources and len(given) != 1:
        has = " and ".join(given) or "none"
        raise ValueError(f"calibrate needs one of {', '.join(sources)}, and has {has}.")
    for each in criteria:  # before anything is fitted
        functions(calibrate, each)
    alone = len(criteria) == 1
    return {calibrate if alone else f"T by {each}": each for each in criteria}


def check_distinct(names: Sequence[str]) -> None:
    """Raise an error if two columns of the report would have one name."""
    if len(set(names)) < len(names):
        raise ValueError(f"name, compare_name and calibrate must differ, got {[*names]}.")


def columns_of(
    models: Sequence[str], columns: Mapping[str, str], fit_on: Collection[str], of_scores: bool
) -> dict[str, dict[str, str]]:
    """Name the columns of each model that is calibrated, with the criterion of each column.

    Args:
      models: the names of the models.
      columns: the columns of one model, see `requested`; {} without a calibrator.
      fit_on: the models with other examples to fit on; without any, all are cross-fitted.
      of_scores: whether the models are scores, which a calibrator replaces.
    """
    chosen = list(fit_on or models) if columns else []
    if {*chosen} - {*models} or (of_scores and {*models} - {*chosen}):
        raise ValueError(f"fit_on has {chosen}: name {'all' if of_scores else 'some'} of {models}.")
    if of_scores:
        return {model: {model: EXACT} for model in models}
    ending = "" if chosen == [models[0]] else " of {}"
    named = {
        model: {name + ending.format(model): by for name, by in columns.items()} for model in chosen
    }
    check_distinct([*models, *(column for each in named.values() for column in each)])
    return named


def _values_of(rows: Any) -> Array:
    """Return the logits, the confidences or the scores."""
    return jnp.asarray(getattr(rows, "score", getattr(rows, "confidence", rows)))


def evidence(
    scored: Predictions, given: Predictions, values: Any, padded: bool = False
) -> Evidence:
    """Validate the examples of a fit; return logits, labels and weights, or answers, None, weights.

    Args:
      scored: the examples that are calibrated.
      given: the examples of the fit.
      values: the logits, confidences or scores of the scored examples.
      padded: whether rows of weight 0 are added, as by `Evaluation`.
    """
    records.same_kind(scored, given)
    examples = given.values("fit_on")
    if not given.of_classes:
        return examples, None, given.weights
    of_classes = scored.ordinal is None and given.ordinal is None
    if of_classes and examples.shape[-1] != values.shape[-1]:
        raise ValueError(f"fit_on has {examples.shape[-1]} classes, and not {values.shape[-1]}.")
    return Evaluation(examples, given.labels, given.weights, padded=padded, name="fit_on").rows


def on_shared(scored: Predictions, given: Predictions) -> str:
    """Count the scored examples that a calibrator would be fitted on; "" without any.

    Raise an error if they are more than `MOST_SHARED` of the scored or the fitted examples. Files
    may number their questions from 1 each, so numbers of questions are not compared.
    """
    kind, both = "example" if scored.of_classes else "answer", (scored, given)
    asked = [{*map(str, each.questions)} for each in both if each.questions is not None]
    if len(asked) == 2 and not all(map(str.isdecimal, asked[0] | asked[1])):
        kind, number, n = "question", len(asked[0] & asked[1]), [*map(len, asked)]
    else:
        number, *n = records.shared_rows(scored[:3], given[:3])
    if not number:
        return ""
    among = f"{n[1]:,} of {given.file or 'fit_on'}"
    found = f"{number:,} of {n[0]:,} scored {kind}s are also among the {among}"
    if number > MOST_SHARED * min(n):
        raise ValueError(f"score: {found}: give other examples for the fit, or cross_fit=5.")
    return f"{found}: the calibrated numbers look better than they are."


def decided_by_zeros(given: Predictions, logits: Any) -> str:
    """Return a warning if a few true classes of probability 0 decide a temperature; else "".

    They decide it if the floor of rounded probabilities, or half of the least one, changes it.

    Args:
      given: the examples of the fit.
      logits: their logits, along one batch axis, perhaps with rows of weight 0 at the end.
    """
    p, floor = given.present, given.floor
    logits = jax.device_put(np.asarray(logits)[: np.size(given.labels)])
    zeros, other = records.at_floor(given, logits), given._replace(least=None).floor
    if other == records.FLOOR:
        other = float(np.min(p, where=p > 0, initial=0.2)) / 2
    if floor is None or other is None or floor >= other or np.all(p == 0) or not np.any(zeros):
        return ""
    others = given._replace(least=other).values()
    found, with_other = (
        float(calibrators.temperature.fit(z, given.labels, given.weights).temperature)
        for z in (logits.reshape(others.shape), others)
    )
    if 1 / 1.25 < found / with_other < 1.25:
        return ""
    return (
        f"{np.sum(zeros):,} of {len(zeros):,} true classes have probability 0 and decide the fit:"
        f" T = {found:.3g}, and {with_other:.3g} with --floor={other:.3g}."
    )


def calibrated(
    name: str, criterion: str, scored: Evidence, fit_on: Any, groups: Groups | None
) -> tuple[Any, dict[str, Any]]:
    """Fit a calibrator and apply it; return the logits and a description of the fit.

    Instead of logits and labels, answers and None give the answers with calibrated confidences.

    Args:
      name: NAME or NAME:option=value of the calibrator.
      criterion: what it minimises.
      scored: the examples that are calibrated, with labels and weights.
      fit_on: the evidence of other examples; or the fold of each row, to calibrate each fold by a
        fit to the others.
      groups: the groups of the examples and of those of the fit, each of which gets a temperature
        of its own; or None.
    """
    logits, labels, weights = scored
    if labels is not None and weights is not None:
        # Calibrators cannot be applied to NaN, which rows of weight 0 may hold.
        rows = np.asarray(logits)
        rows = np.where(np.asarray(weights)[:, None] > 0, rows, rows.dtype.type(0))
        logits = jax.device_put(rows)
    if groups is not None:  # rows of weight 0 at the end are in the last group
        fit_rows = logits if isinstance(fit_on, np.ndarray) else fit_on[0]
        sizes = (len(_values_of(each)) for each in (logits, fit_rows))
        both = zip(groups, sizes, strict=True)
        scored_groups, others = (np.pad(of, (0, n - len(of)), mode="edge") for of, n in both)
        groups = scored_groups, others
    if not isinstance(fit_on, np.ndarray):
        apply, described = fitted(name, criterion, fit_on, groups)
        return apply(logits), described
    values, number = _values_of(logits), int(fit_on.max()) + 1
    fold = np.pad(fit_on, (0, len(values) - len(fit_on)), constant_values=-1)
    result = np.zeros(values.shape, jnp.promote_types(values.dtype, jnp.float32))
    fits = []
    for i in range(number):
        # Select the other folds by weight, so that all fits have one shape and compile once.
        kept = (fold != i).astype(np.float32)
        kept = kept if weights is None else kept * np.asarray(weights)
        apply, described = fitted(name, criterion, (logits, labels, jax.device_put(kept)), groups)
        result[fold == i] = np.asarray(apply(values))[fold == i]
        fits.append(described)
    states = dict.fromkeys(state for fit in fits for state in fit["state"].split(", "))
    described = fits[0] | {
        "fitted_on": f"the rest of the examples, in {number} folds",
        "params": [fit["params"] for fit in fits],
        "state": ", ".join(filter(None, states)),
    }
    return metrics.Stated(result, logits.correct) if labels is None else result, described


def folds_of(num_rows: int, cross_fit: Any, clusters: Any, seed: int) -> np.ndarray:
    """Draw the fold of each row.

    All rows of a cluster lie in one fold, so no fold is fitted on examples that depend on its own.
    """
    what, unit = "examples", np.arange(num_rows)
    if clusters is not None:
        what, unit = "clusters", np.unique(clusters, return_inverse=True)[1].ravel()
    checks.whole("cross_fit", cross_fit, 2)
    most = int(unit.max()) + 1
    checks.between(f"cross_fit, at most the number of {what},", cross_fit, 2, most)
    return np.asarray(np.random.default_rng(seed).permutation(most)[unit] % cross_fit)


def fitted(
    name: str, criterion: str, fit_on: Evidence, groups: Groups | None = None
) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """Fit a calibrator; return the function that applies it and a description of the fit.

    The state of the description lists how the fit ended, and is "" if the calibrator has no state.
    """
    fit, apply = functions(name, criterion, groups)
    examples, labels, weights = fit_on
    params = fit(examples, labels, weights=weights)
    present = len(_values_of(examples)) if weights is None else np.sum(np.asarray(weights) > 0)
    states = np.ravel(getattr(getattr(params, "state", None), "name", [])).tolist()
    return functools.partial(apply, params), {
        "name": name,
        "criterion": criterion,
        "fitted_on": counted(int(present), "other example"),
        "params": _plain(params),
        "state": ", ".join(dict.fromkeys(states)),
    }


def functions(name: str, criterion: str = EXACT, groups: Groups | None = None) -> tuple[Any, Any]:
    """Return the functions that fit and apply a calibrator.

    Args:
      name: NAME or NAME:option=value:option=value; an import path MODULE:NAME is registered.
      criterion: "nll" for the calibrator's own fit. A temperature may also be the first minimum
        of a metric on a grid up to 10: METRIC for the papers' step 0.1, or METRIC:STEP.
      groups: the groups, each of which has a temperature of its own, or None.

    >>> functions("histogram:num_bins=20")[0].keywords
    {'num_bins': 20}
    """
    short, options = name_and_options(name)
    if is_path(short) and short not in calibrators.catalogue():
        calibrators.register(short)(object_at("calibrator", short))
    calibrator: Any = calibrators.named(short, **options)
    if groups is not None:
        if name != "temperature" or criterion != EXACT:
            raise ValueError("per is for calibrate=temperature by the NLL: leave it out.")
        fit = functools.partial(calibrator.fit_by_group, groups=groups[1])
        return fit, functools.partial(calibrator.apply_by_group, groups=groups[0])
    if criterion == EXACT:
        return calibrator.fit, calibrator.apply
    if name != "temperature":
        raise ValueError(f"criterion={criterion!r} is for a temperature, and {name!r} takes nll.")
    metric, step = _parsed(criterion)
    grid = {"start": step, "step": step, "criterion": metrics.named(metric)}
    return functools.partial(calibrator.fit_grid, **grid), calibrator.apply


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
    params = calibrator["params"]
    folds = params if isinstance(params, list) else [params]
    found = np.ravel([fold["temperature"] for fold in folds])
    return " to ".join(dict.fromkeys(f"{end:.4g}" for end in (found.min(), found.max())))


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

    >>> search("adaptive_ece:0.01")
    'adaptive_ece on 0.01, 0.02, ..., 10'
    """
    metric, step = _parsed(criterion)
    return f"{metric} on {step:g}, {2 * step:g}, ..., 10"


def _parsed(criterion: str) -> tuple[str, float]:
    """Split a criterion METRIC or METRIC:STEP into the metric and the step of the grid."""
    metric, colon, text = criterion.partition(":")
    try:
        step = float(text) if colon else 0.1  # the step of the papers
    except ValueError:
        raise ValueError(
            f"criterion {criterion!r} must be a metric and a step, such as adaptive_ece:0.01."
        ) from None
    checks.between(f"the step of criterion {criterion!r}", step, 0.001, 1)
    return metric, step


def _plain(params: Any) -> Any:
    """Convert parameters to lists for JSON; reduce a State to its name and NLLs."""
    if hasattr(params, "fitted"):  # of an event, whose fit may keep the scores
        scores = getattr(params, "scores", None)
        return _plain(params.fitted) | ({} if scores is None else {"scores": _plain(scores)})
    if isinstance(params, calibrators.State):
        ends = {"nll_before": params.nll_before, "nll_after": params.nll_after}
        return {"name": params.name} | {k: float(v) for k, v in ends.items()}
    if hasattr(params, "_asdict"):
        return {name: _plain(value) for name, value in params._asdict().items()}
    return np.asarray(params).tolist()
