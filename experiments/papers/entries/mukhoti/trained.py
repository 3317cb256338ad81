"""Mukhoti et al.: focal losses beside cross-entropy and other losses, on trained networks."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import scipy.optimize

from calib_jax import metrics
from experiments.papers import published
from experiments.papers.entries import compared
from experiments.papers.entries import text_trainings as texts
from experiments.papers.entries.mukhoti.gradient_scale import scale
from experiments.papers.entries.trainings import (
    BRIER,
    CE,
    FL3,
    FLSD53,
    LABEL_SMOOTHING,
    LABEL_SMOOTHING_01,
    MMCE,
    on_lenet5,
)
from experiments.papers.entry import Training
from experiments.papers.judge import comparisons, estimates, paired, rules
from experiments.papers.judge.comparisons import Part, Runs
from experiments.papers.judge.estimates import Estimate, Predictions
from experiments.papers.judge.rules import FAILS, HOLDS, SIZE, UNDECIDED, Judgement, Rule, Values
from experiments.papers.judge.values import Value
from experiments.papers.store.records import Trained

PHASES = ("before", "after")
CE_FL3_FLSD = {"ce": CE, "fl3": FL3, "flsd": FLSD53}


# Early stopping, appendix J.

CRITERIA = ("ece", "nll", "error")


def _stopped(criterion: str) -> Callable[[Trained], Part]:
    return lambda run: run.columns("early_stops", criterion)


STOPPED = {f"stop by {criterion}": _stopped(criterion) for criterion in CRITERIA}


def _stopped_and_last(runs: Runs) -> dict[str, Value]:
    """Compare cross-entropy at the epoch of its least validation ECE with the last epoch."""
    ce, stopped = runs["ce"], STOPPED["stop by ece"]
    return {
        "CE2(CE, last) - CE2(CE, stop by ece)": comparisons.ce2(
            ce, ce, comparisons.before, stopped
        ),
        "error(CE, stop by ece) - error(CE, last)": comparisons.mean(
            ce, lambda run: estimates.error(stopped(run)) - estimates.error(run.logits.columns)
        ),
    }


def _wins() -> Rule:
    errors = tuple(f"CE2(CE) - CE2(FLSD-53), stop by {criterion}" for criterion in CRITERIA)
    rates = tuple(f"error(CE) - error(FLSD-53), stop by {criterion}" for criterion in CRITERIA)
    strict = rules.above(*errors)

    def judge(values: Values) -> Judgement:
        outcome = strict.judge(values)
        if outcome.state == HOLDS and min(values[name].p_below() for name in rates) < SIZE:
            return Judgement(UNDECIDED, outcome.p)
        return outcome

    words = (
        "holds if the 90 % intervals of all CE2 differences lie above 0 and that of no error"
        f" difference below 0; {FAILS} if one of CE2 lies below 0; undecided otherwise"
    )
    return Rule(words, judge, (*errors, *rates))


# Focal loss beside cross-entropy, abstract and section 5.


def _one_is_enough(*names: str) -> Rule:
    """Does not hold only if all intervals lie below 0."""
    strict = rules.above(*names)

    def judge(values: Values) -> Judgement:
        outcome = strict.judge(values)
        if outcome.state == HOLDS:
            return outcome
        p_below = [values[name].p_below() for name in names]
        if max(p_below) < SIZE:
            return Judgement(FAILS, max(p_below))
        return Judgement(UNDECIDED, outcome.p)

    words = f"holds if the 90 % intervals of {' and '.join(names)} lie above 0"
    return Rule(words + "; does not hold if all lie below; undecided otherwise", judge, names)


# Very large gammas, section 4.

LARGE = (10.0, 20.0, 50.0)
DEAD = 0.01  # of the gradient's scale


def dead_beyond(gamma: float) -> float:
    """Find the p beyond which the scale of the gradient stays below 0.01.

    >>> round(dead_beyond(3.0), 3), round(dead_beyond(50.0), 3)
    (0.862, 0.138)
    """
    grid = np.linspace(1e-3, 1 - 1e-3, 10_000)
    last = grid[np.flatnonzero(scale(grid, gamma) > DEAD)[-1]]
    return float(scipy.optimize.brentq(lambda p: scale(p, gamma) - DEAD, last, last + 1e-3))


def _worse() -> Rule:
    names = tuple(f"error(gamma {gamma:g}) - error(gamma 3)" for gamma in LARGE)

    def judge(values: Values) -> Judgement:
        p_values = [values[name].p_above(0.05) for name in names[1:]]
        if min(p_values) < SIZE:
            return Judgement(HOLDS, min(1.0, min(p_values) * len(p_values)))
        close = all(abs(values[name].value) <= 0.01 for name in names)
        return Judgement(FAILS if close else UNDECIDED)

    words = (
        "holds if the 90 % interval of a gamma of 20 or 50 lies above 0.05; does not hold if all"
        " gammas are within 0.01; undecided otherwise"
    )
    return Rule(words, judge, names)


# FLSD-53 beside the baselines, section 5.

BASELINES = ("CE", "Brier", "MMCE", "LS-0.05")


def _error(name: str, phase: str) -> str:
    return f"CE2({name}) - CE2(FLSD-53), {phase}"


def _adaptive(name: str) -> str:
    return f"AdaCE2({name}) - AdaCE2(FLSD-53), before"


def _distances_from_1(runs: Runs) -> dict[str, Value]:
    """Compare the distances of the fitted temperatures from 1; the rows are those of validation."""

    def distance(run: Trained) -> Estimate:
        log = estimates.log_temperature(run.validation_logits)
        return Estimate(abs(log.value), float(np.sign(log.value)) * log.influence)

    return {
        f"|log T({name})| - |log T(FLSD-53)|": comparisons.change(
            runs[key], runs["flsd"], distance, note="T by NLL"
        )
        for key, name in (("ce", "CE"), ("mmce", "MMCE"))
    }


# The weight of MMCE, appendix E.

WEIGHTS = (0.5, 1.0, 4.0, 8.0)  # beside 2, that of their scripts


def _other_weight(weight: float, phase: str) -> str:
    return f"CE2(lambda 2) - CE2(lambda {weight:g}), {phase}"


# 20 Newsgroups, tables 1 and 2, and its row of F.10 and F.11.

CHANGE = "|MCE(CE) - MCE(CE+TS)|"


def _maximum_errors(runs: Runs) -> dict[str, Value]:
    before, after = (published.table("mukhoti", *of) for of in (("F.10", "pre"), ("F.11", "post")))
    (row,) = (pair for pair in before if pair[0].startswith("20"))
    equal = [before[row][loss].value == after[row][loss].value for loss in before[row]]
    changes = [abs(_mce(run.logits) - _mce(run.scaled)) for run in runs["ce"]]
    return {
        "published MCEs equal in F.10 and F.11": Value(sum(equal), note=f"of {len(equal)}"),
        CHANGE: paired.over_seeds(changes),
    }


def _mce(predictions: Predictions) -> float:
    return float(metrics.mce(jnp.asarray(predictions.logits), jnp.asarray(predictions.labels)))


# Images with noise, and SVHN: section 5 and table 3.


def _of_noisy_images(runs: Runs) -> dict[str, Value]:
    """Compare the calibration of noisy and of clean images after the same temperature."""
    clean = [estimates.squared_error(run.scaled) for run in runs["ce"]]
    values = {}
    for severity in range(1, 6):
        noisy = [run.columns("shift", f"severity_{severity}") for run in runs["ce"]]
        mean = sum(estimates.ece(part) for part in noisy) / len(noisy)
        values[f"CE2(severity {severity}, T) - CE2(clean, T)"] = paired.difference_of_errors(
            [estimates.squared_error(part) for part in noisy], clean, note=f"ECE {mean:.4f}"
        )
    return values


def _of_svhn(runs: Runs) -> dict[str, Value]:
    def auroc(run: Trained, phase: str) -> Estimate:
        inside, outside = compared.against("svhn")[phase](run)
        return estimates.auroc_of_sets(inside.entropy, outside.entropy)

    return {
        f"AUROC({name}) - AUROC(CE), {phase}": comparisons.change(
            runs[key], runs["ce"], functools.partial(auroc, phase=phase)
        )
        for key, name in (("flsd", "FLSD-53"), ("fl3", "FL-3"))
        for phase in PHASES
    }


# The binary task of the SST, table 1, in the papers' reading and with probabilities divided by
# their sum.

Read = Callable[[Trained], Part]
BELOW_1 = ("T(FL-3)", "T(FLSD-53)")
SST = {"ce": "CE", "fl3": "FL-3", "flsd": "FLSD-53"}
READINGS: dict[str, tuple[Read, Read, Callable[[Trained], float]]] = {
    "": (texts.released_before, texts.released_after, texts.released_temperature),
    ", divided": (texts.polar_before, texts.polar_after, texts.polar_temperature),
}


def _of_sentences(runs: Runs) -> dict[str, Value]:
    """Compare calibration between the polar classes, before and after the temperature."""
    values = {}
    for reading, (before, after, temperature) in READINGS.items():
        for key in ("fl3", "flsd"):
            change = comparisons.ce2(runs[key], runs["ce"], before)
            values[f"CE2({SST[key]}) - CE2(CE), before{reading}"] = change
            change = comparisons.ce2(runs["ce"], runs[key], after)
            values[f"CE2(CE) - CE2({SST[key]}), after{reading}"] = change
        for key, name in SST.items():
            values[f"T({name}){reading}"] = paired.over_seeds([temperature(r) for r in runs[key]])
            values[f"confidence({name}) - accuracy({name}){reading}"] = paired.over_seeds_and_rows(
                [estimates.gap(before(run)) for run in runs[key]]
            )
    return values


# The top bin, appendix A.

REACHED = "seeds with a training accuracy above 99 %"
GROWTH, BEYOND = "growth of the top of 25 bins", "growth - fall of the training error"


def _top_bin(runs: Runs) -> dict[str, Value]:
    """Measure the growth of the top bin after the training accuracy has passed 99 %."""
    growth, falls = [], []
    for run in runs["ce"]:
        share, error = (run.measured["top_bin"][name] for name in ("share", "error"))
        fitted = np.flatnonzero(error < 0.01)
        if len(fitted):
            growth.append(float(share[-1] - share[fitted[0]]))
            falls.append(float(error[fitted[0]] - error[-1]))
    beyond = [a - b for a, b in zip(growth, falls, strict=True)]
    nothing = Value(0.0, note="fewer than two seeds reached a training accuracy of 99 %")
    return {
        REACHED: Value(len(growth), note=f"of {len(runs['ce'])}"),
        **{
            name: paired.over_seeds(values) if len(values) > 1 else nothing
            for name, values in ((GROWTH, growth), (BEYOND, beyond))
        },
    }


def _grows(values: Values) -> Judgement:
    if values[REACHED].value < 2:
        return Judgement(UNDECIDED)
    p_values = values[GROWTH].p_above(0.01), values[BEYOND].p_above()
    if max(p_values) < SIZE:
        return Judgement(HOLDS, max(p_values))
    none = values[GROWTH].p_below()
    return Judgement(FAILS if none < SIZE else UNDECIDED, min(max(p_values), none))


ENTRIES = {
    "early_stopping": compared.entry(
        {
            "mukhoti-early-stop-focal-wins-own": _wins(),
            "mukhoti-early-stop-ce-costs-error": rules.above(
                "CE2(CE, last) - CE2(CE, stop by ece)", "error(CE, stop by ece) - error(CE, last)"
            ),
        },
        {"ce": CE, "flsd": FLSD53},
        parts=STOPPED,
        others=_stopped_and_last,
        measures=("early_stops",),
    ),
    "focal": compared.entry(
        {
            "mukhoti-focal-better-calibrated-than-ce": _one_is_enough(
                "CE2(CE) - CE2(FL-3)", "CE2(CE) - CE2(FLSD-53)"
            ),
            "mukhoti-accuracy-preserved-own": rules.below(
                "error(FLSD-53) - error(CE)", margin=0.005
            ),
            "mukhoti-focal-unsure-where-wrong": rules.above("confidence on wrong(CE) - (FLSD-53)"),
            "mukhoti-top5-own": rules.above(
                "top-3 accuracy(FLSD-53) - (CE)", "p_y of wrong(FLSD-53) - (CE)"
            ),
        },
        CE_FL3_FLSD,
        "CE2(CE) - CE2(FL-3), after T",
        "CE2(CE) - CE2(FLSD-53), after T",
        "error(FL-3) - error(CE)",
    ),
    "large_gamma": compared.entry(
        {"mukhoti-large-gamma-gradients-die": _worse()},
        {
            "gamma_3": dataclasses.replace(on_lenet5("focal"), seeds=3),
            **{
                f"gamma_{gamma:g}": Training(
                    "focal", {"gamma": gamma}, config="cifar10_lenet5", keep="columns"
                )
                for gamma in LARGE
            },
        },
        others=lambda runs: {
            f"p beyond which g is below {DEAD:g}, gamma {gamma:g}": Value(dead_beyond(gamma))
            for gamma in (3.0, 5.0, *LARGE)
        },
    ),
    "losses": compared.entry(
        {
            "mukhoti-flsd-outperforms-own": rules.above(
                *(_error(name, phase) for phase in PHASES for name in BASELINES)
            ),
            "mukhoti-ci-significant": rules.several(
                *(
                    name
                    for other in ("CE", "MMCE", "LS-0.05")
                    for name in (_error(other, "before"), _adaptive(other))
                ),
                holds=4,
                fails=1,
            ),
            "mukhoti-temperature-order-own": rules.every(
                rules.above("|log T(CE)| - |log T(FLSD-53)|", "|log T(MMCE)| - |log T(FLSD-53)|"),
                rules.within("T(FLSD-53) by NLL", 0.8, 1.25),
            ),
            "mukhoti-s99-lower-before-ts": rules.above(
                "S99(CE) - S99(FLSD-53), before", "S99(MMCE) - S99(FLSD-53), before"
            ),
            "mukhoti-s99-higher-after-ts": rules.above(
                "S99(FLSD-53) - S99(CE), after", "S99(FLSD-53) - S99(MMCE), after"
            ),
        },
        {"ce": CE, "brier": BRIER, "mmce": MMCE, "ls": LABEL_SMOOTHING, "flsd": FLSD53},
        *(f"T({name}) on the ECE grid" for name in (*BASELINES, "FLSD-53")),
        others=_distances_from_1,
    ),
    "mmce_weight": compared.entry(
        {
            "mukhoti-mmce-lambda-one-value": rules.below(
                *(
                    _other_weight(weight, phase) + compared.MARGIN
                    for phase in PHASES
                    for weight in WEIGHTS
                )
            )
        },
        {
            f"lambda_{weight:g}": Training(
                "mmce_weighted", {"scale": weight}, config="cifar10_lenet5"
            )
            for weight in (2.0, *WEIGHTS)
        },
        *(
            name
            for weight in WEIGHTS
            for name in (
                *(_other_weight(weight, phase) for phase in PHASES),
                f"error(lambda 2) - error(lambda {weight:g})",
            )
        ),
        *(f"error, lambda {weight:g}" for weight in (2.0, *WEIGHTS)),
        originals={
            "mukhoti-mmce-lambda-one-value": rules.none_above(
                *(_other_weight(weight, phase) for phase in PHASES for weight in WEIGHTS)
            )
        },
    ),
    "newsgroups": compared.entry(
        {
            "mukhoti-newsgroups-focal": rules.above(
                "CE2(CE) - CE2(FLSD-53), before", "CE2(CE) - CE2(FLSD-53), after"
            ),
            "mukhoti-mce-newsgroups-row-copied": rules.decided(
                f"holds if {CHANGE} is 0 and T(CE) above 1.5; does not hold if it is above .01;"
                " undecided otherwise",
                lambda values: values[CHANGE].value == 0 and values["T(CE)"].value > 1.5,
                lambda values: values[CHANGE].value > 0.01,
                (CHANGE, "T(CE)"),
            ),
        },
        {
            "ce": texts.newsgroups_cnn("cross_entropy"),
            "fl3": texts.newsgroups_cnn("focal", gamma=3.0),
            "flsd": texts.newsgroups_cnn("flsd53"),
        },
        *(f"CE2(CE) - CE2(FL-3), {phase}" for phase in PHASES),
        "error(CE)",
        *(f"{of}({name})" for name in ("FL-3", "FLSD-53") for of in ("T", "error")),
        "error(FLSD-53) - error(CE)",
        others=_maximum_errors,
        originals={"mukhoti-newsgroups-focal": rules.above("CE2(CE) - CE2(FLSD-53), before")},
    ),
    "noise": compared.entry(
        {
            "mukhoti-ood-noise-own": rules.above(
                "AUROC(FLSD-53) - AUROC(CE), before", "AUROC(FLSD-53) - AUROC(CE), after"
            ),
            "mukhoti-ts-does-not-help-ood": rules.below("AUROC(CE+TS) - AUROC(CE)", margin=0.01),
        },
        {"ce": CE, "flsd": FLSD53},
        "AUROC(CE), before",
        parts=compared.against("noise"),
        measures=("noise",),
    ),
    "shift": compared.entry(
        {
            "mukhoti-ts-fails-under-shift": rules.above(
                "CE2(severity 5, T) - CE2(clean, T)", margin=0.02**2
            )
        },
        {"ce": CE},
        others=_of_noisy_images,
        measures=("shift",),
    ),
    "smoothing": compared.entry(
        {"mukhoti-ls-favourable": rules.above("CE2(CE) - CE2(LS-0.05)")},
        {"ce": CE, "ls": LABEL_SMOOTHING},
        "CE2(CE) - CE2(LS-0.05), after T",
    ),
    "smoothing_factor": compared.entry(
        {"mukhoti-ls-005-better-than-01": rules.above("CE2(LS-0.1) - CE2(LS-0.05)")},
        {"ls_005": LABEL_SMOOTHING, "ls_01": LABEL_SMOOTHING_01},
        *(f"confidence - accuracy, {name}" for name in ("LS-0.05", "LS-0.1")),
        labels={"LS-0.05": "ls_005", "LS-0.1": "ls_01"},
    ),
    "sst": compared.entry(
        {
            "mukhoti-sst-focal": rules.every(
                rules.decided(
                    f"holds if {' and '.join(BELOW_1)} are below 1",
                    lambda values: all(values[name].value < 1 for name in BELOW_1),
                    names=BELOW_1,
                ),
                rules.above("CE2(FL-3) - CE2(CE), before", "CE2(CE) - CE2(FL-3), after"),
            )
        },
        {
            "ce": texts.sst("cross_entropy"),
            "fl3": texts.sst("focal", gamma=3.0),
            "flsd": texts.sst("flsd53"),
        },
        others=_of_sentences,
    ),
    "svhn": compared.entry(
        {"mukhoti-ood-svhn": rules.above("AUROC(FLSD-53) - AUROC(CE), before")},
        {"ce": CE, "flsd": FLSD53, "fl3": FL3},
        others=_of_svhn,
        measures=("svhn",),
        data=("svhn",),
    ),
    "top_bin": compared.entry(
        {
            "mukhoti-train-pushed-to-top-bin": Rule(
                "holds if the share grows by at least a point, and by more than the training error"
                " falls (90 % intervals over seeds); does not hold if it falls; undecided"
                " otherwise, and if fewer than two seeds reach a training accuracy of 99 %",
                _grows,
                (REACHED, GROWTH, BEYOND),
            )
        },
        {"ce": CE},
        others=_top_bin,
        measures=("top_bin",),
    ),
}
