"""Ghosh et al.: AdaFocal and inverse focal loss beside other losses, on trained networks."""

import numpy as np

from experiments.papers.entries import compared
from experiments.papers.entries.text_trainings import newsgroups_bert, newsgroups_cnn
from experiments.papers.entries.trainings import (
    ADAFOCAL,
    BRIER,
    CE,
    FLSD53,
    LABEL_SMOOTHING,
    MMCE,
    on_lenet5,
    undiagnosed,
)
from experiments.papers.entry import Training
from experiments.papers.judge import rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value

PHASES = ("before", "after")
GAMMAS = (1.0, 2.0)  # of the inverse focal loss


def _better(other: str, phase: str = "") -> str:
    return f"AdaCE2({other}) - AdaCE2(AdaFocal)" + f", {phase}" * bool(phase)


def larger_beyond(gamma: float) -> float:
    r"""Find the p above which $(1 + p)^\gamma + \gamma p (1 + p)^{\gamma - 1} \log p$ exceeds 1.

    >>> round(larger_beyond(1.0), 3), round(larger_beyond(2.0), 3)
    (0.368, 0.427)
    """
    p = np.linspace(1e-6, 1, 200_001)
    scale = (1 + p) ** gamma + gamma * p * (1 + p) ** (gamma - 1) * np.log(p)
    return float(p[np.flatnonzero(scale <= 1)[-1]])


def _thresholds(runs: Runs) -> dict[str, Value]:
    """Find where the gradient of the inverse focal loss is larger than cross-entropy's."""
    return {
        f"p above which the gradient is larger, gamma {gamma:g}": Value(larger_beyond(gamma))
        for gamma in GAMMAS
    }


ENTRIES = {
    "calibration": compared.entry(
        {
            "adafocal-beats-ce-flsd-cifar10": rules.above(
                *map(_better, ("CE", "Brier", "MMCE", "LS", "FLSD-53"))
            ),
            "adafocal-error-not-worse": rules.below("error(AdaFocal) - error(CE)", margin=0.005),
        },
        {
            "ce": CE,
            "brier": BRIER,
            "mmce": MMCE,
            "ls": LABEL_SMOOTHING,
            "flsd": FLSD53,
            "adafocal": ADAFOCAL,
        },
        _better("CE", "after T"),
        "error(AdaFocal) - error(FLSD-53)",
        originals={
            "adafocal-beats-ce-flsd-cifar10": rules.above(_better("CE"), _better("FLSD-53"))
        },
    ),
    "inverse_focal": compared.entry(
        {
            "adafocal-inverse-focal-raises-confidence": rules.above(
                "confidence(inverse focal, gamma 2) - confidence(CE)"
            )
        },
        {
            "ce": on_lenet5("cross_entropy"),
            **{
                f"gamma_{gamma:g}": Training(
                    "inverse_focal",
                    {"gamma": gamma},
                    config="cifar10_lenet5",
                    seeds=5,
                    keep="columns",
                )
                for gamma in GAMMAS
            },
        },
        "confidence(inverse focal, gamma 1) - confidence(CE)",
        *(
            name
            for gamma in GAMMAS
            for name in (
                f"confidence - accuracy, gamma {gamma:g}",
                f"p above which the gradient is larger, gamma {gamma:g}",
            )
        ),
        "confidence - accuracy, CE",
        labels={f"inverse focal, gamma {gamma:g}": f"gamma_{gamma:g}" for gamma in GAMMAS},
        others=_thresholds,
    ),
    "newsgroups_bert": compared.entry(
        {
            "adafocal-newsgroups-bert": rules.above(
                *(_better(other, phase) for other in ("CE", "FLSD-53") for phase in PHASES)
            )
        },
        {
            "ce": newsgroups_bert("cross_entropy"),
            "flsd": newsgroups_bert("flsd53"),
            "adafocal": newsgroups_bert("adafocal"),
        },
        *(f"T({name})" for name in ("CE", "FLSD-53", "AdaFocal")),
        "error(AdaFocal) - error(CE)",
        originals={
            "adafocal-newsgroups-bert": rules.above(
                *(_better(other, "before") for other in ("CE", "FLSD-53"))
            )
        },
    ),
    "newsgroups_cnn": compared.entry(
        {
            "adafocal-newsgroups-cnn": rules.above(
                _better("CE", "before"), _better("FLSD-53", "before")
            )
        },
        {
            "ce": newsgroups_cnn("cross_entropy"),
            "flsd": newsgroups_cnn("flsd53"),
            "ls": newsgroups_cnn("label_smoothing"),
            "adafocal": newsgroups_cnn("adafocal"),
        },
        *(_better(other, "after") for other in ("CE", "FLSD-53")),
        *(_better("LS-0.05", phase) for phase in PHASES),
        "error(AdaFocal) - error(CE)",
        "T(AdaFocal)",
    ),
    "ood": compared.entry(
        {
            "adafocal-ood-roc": rules.above(
                "AUROC(AdaFocal) - AUROC(CE), before", "AUROC(AdaFocal) - AUROC(FLSD-53), before"
            )
        },
        {
            "adafocal": undiagnosed(ADAFOCAL),
            "ce": undiagnosed(CE),
            "flsd": undiagnosed(FLSD53),
            "mmce": undiagnosed(MMCE),
        },
        "AUROC(AdaFocal) - AUROC(MMCE), before",
        *(f"AUROC(AdaFocal) - AUROC({name}), after" for name in ("CE", "FLSD-53", "MMCE")),
        parts=compared.against("noise"),
        measures=("noise",),
    ),
}
