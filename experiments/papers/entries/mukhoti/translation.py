"""Mukhoti et al., appendix K: a Transformer with focal loss over tokens, on Multi30k."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calib_jax import plots
from experiments.papers.entries import compared
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.estimates import Estimate
from experiments.papers.judge.rules import FAILS, HOLDS, SIZE, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained
from experiments.translation import bleu

if TYPE_CHECKING:
    import matplotlib.figure

MEASURE = "translation"
NAMES = {"ce": "CE", "ls": "LS-0.1", "fl1": "FL-1"}
PHASES = ("before", "after")
RESAMPLES = 1_000
CORRELATION = "rank correlation of BLEU and validation ECE over T"
DISTANCE = "largest distance of the best T of BLEU and of the validation ECE"


def statistic(runs: Runs) -> dict[str, Value]:
    """Compare calibration, NLL, temperatures and BLEU."""
    values = {"seeds": Value(min(map(len, runs.values())))}
    for key, name in (("ce", "CE"), ("ls", "LS-0.1")):
        both = runs[key], runs["fl1"]
        for phase in PHASES:
            values[_error(name, phase)] = comparisons.ce2_of_all_images(*both, MEASURE, phase)
            nll = functools.partial(_nll, phase=phase)
            values[f"token NLL({name}) - NLL(FL-1), {phase}"] = comparisons.change(*both, nll)
    for key, name in NAMES.items():
        for kind in ("temperature", "temperature_by_nll"):
            chosen = [float(run.measured[MEASURE][kind]) for run in runs[key]]
            how = "by NLL" if kind.endswith("nll") else "on the ECE grid"
            values[f"T({name}) {how}, least of seeds"] = Value(min(chosen), seeds=len(chosen))
            values[f"T({name}) {how}, largest of seeds"] = Value(max(chosen), seeds=len(chosen))
    return values | _translations(runs)


def _error(name: str, phase: str) -> str:
    return f"CE2({name}) - CE2(FL-1) of tokens, {phase}"


def _nll(run: Trained, phase: str) -> Estimate:
    """Compute the NLL of a token, with the influence of every sentence."""
    arrays = run.measured[MEASURE]
    sums = {"nll": arrays[f"{phase}_nll"], "tokens": arrays[f"{phase}_weight"].sum(axis=1)}
    return estimates.of_images(sums, lambda total: float(total["nll"] / total["tokens"]))


def _translations(runs: Runs) -> dict[str, Value]:
    """Describe BLEU over temperatures; intervals resample whole test sentences."""
    first = runs["ce"][0].measured[MEASURE]
    temperatures = first["temperatures"]
    sentences = first["bleu"].shape[1]
    draws = np.random.default_rng(0).multinomial(sentences, [1 / sentences] * sentences, RESAMPLES)
    draws = np.concatenate([np.ones((1, sentences), draws.dtype), draws])  # the first is the data
    values, correlations, distances = {}, [], []
    for key, name in NAMES.items():
        for run in runs[key]:
            arrays = run.measured[MEASURE]
            curves = bleu_curves(arrays, draws)
            ece = arrays["validation_ece"]
            correlations.append([comparisons.rank_correlation(curve, ece) for curve in curves])
            best = temperatures[np.argmax(curves[0])]
            distances.append(abs(best - temperatures[np.argmin(ece)]))
            for label, at in (("T = 1", 1.0), (f"T = {best:g}, its best", best)):
                (place,) = np.flatnonzero(np.isclose(temperatures, at))
                seed = f", seed {run.seed}" * (len(runs[key]) > 1)
                values[f"BLEU({name}) at {label}{seed}"] = _resampled(curves[:, place], sentences)
    mean = np.mean(correlations, axis=0)
    return {
        CORRELATION: _resampled(mean, sentences),
        DISTANCE: Value(float(np.round(max(distances), 9))),
        **values,
    }


def bleu_curves(arrays: Mapping[str, np.ndarray], draws: np.ndarray) -> np.ndarray:
    """Compute BLEU at every temperature from the counts of sentences, `[draws, T]`.

    Args:
      arrays: what `translations.measured` returns.
      draws: `[draws, sentences]`, how often each sentence is counted.
    """
    return np.stack([bleu.of_counts(draws @ at.astype(np.int64)) for at in arrays["bleu"]], axis=1)


def _resampled(values: np.ndarray, rows: int) -> Value:
    """Return the first value with the standard deviation of the others."""
    return Value(float(values[0]), float(np.std(values[1:], ddof=1)), rows=rows)


def _on_grid(name: str) -> tuple[str, ...]:
    return tuple(f"T({name}) on the ECE grid, {end} of seeds" for end in ("least", "largest"))


def _ends(values: Values) -> list[list[float]]:
    return [[values[end].value for end in _on_grid(name)] for name in ("FL-1", "LS-0.1")]


NEAR_ONE = rules.decided(
    "holds if T of FL-1 and of LS-0.1 lie in [0.9, 1.1] in every seed; does not hold if one is"
    " below 0.8 or above 1.2 in every seed; undecided otherwise",
    lambda values: all(a >= 0.9 - 1e-6 and b <= 1.1 + 1e-6 for a, b in _ends(values)),
    lambda values: any(b < 0.8 - 1e-6 or a > 1.2 + 1e-6 for a, b in _ends(values)),
    (*_on_grid("FL-1"), *_on_grid("LS-0.1")),
)


def _at_low_error(values: Values) -> Judgement:
    correlation = values[CORRELATION]
    if correlation.p_above() < SIZE:
        return Judgement(FAILS, correlation.p_above())
    p = correlation.p_below()
    is_near = values[DISTANCE].value <= 0.2 + 1e-6
    return Judgement(HOLDS if is_near and p < SIZE else UNDECIDED, p)


AT_LOW_ERROR = Rule(
    "holds if the 90 % interval of the rank correlation lies below 0 and the best temperatures"
    " differ by at most 0.2; does not hold if the interval lies above 0; undecided otherwise",
    _at_low_error,
    (CORRELATION, DISTANCE),
)


def figures(runs: Runs) -> "dict[str, matplotlib.figure.Figure]":
    """Draw test BLEU and the validation ECE against the temperature, as figure K.1."""
    temperatures = runs["ce"][0].measured[MEASURE]["temperatures"]
    panels: dict[str, dict[str, list[float]]] = {"test BLEU": {}, "validation ECE of tokens": {}}
    for key, name in NAMES.items():
        arrays = runs[key][0].measured[MEASURE]
        data = np.ones((1, arrays["bleu"].shape[1]), int)
        panels["test BLEU"][name] = bleu_curves(arrays, data)[0].tolist()
        panels["validation ECE of tokens"][name] = arrays["validation_ece"].tolist()
    figure = plots.training_curves(
        panels, temperatures.tolist(), columns=2, axis="temperature", width=7.0
    )
    return {"temperature": figure}


def _training(loss: str, **options: float) -> Training:
    return Training(loss, options, config="multi30k_transformer_small", seeds=1, keep="none")


ENTRY = Entry(
    claims={
        "mukhoti-translation-ece": rules.given(
            compared.ENOUGH_SEEDS,
            rules.above(*(_error(name, phase) for name in ("CE", "LS-0.1") for phase in PHASES)),
        ),
        "mukhoti-translation-temperature-one": NEAR_ONE,
        "mukhoti-translation-bleu-at-low-ece": AT_LOW_ERROR,
    },
    runs={
        "ce": _training("cross_entropy"),
        "ls": _training("label_smoothing", alpha=0.1),
        "fl1": _training("focal", gamma=1.0),
    },
    originals={
        "mukhoti-translation-ece": rules.above(
            *(_error(name, phase) for name in ("CE", "LS-0.1") for phase in PHASES)
        )
    },
    measures=(MEASURE,),
    data=("multi30k",),
    statistic=statistic,
    figures=figures,
)
