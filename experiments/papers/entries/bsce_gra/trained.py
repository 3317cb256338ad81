"""Lin et al.: BSCE-GRA beside cross-entropy and other weights, on trained networks."""

import numpy as np

from experiments.papers.entries import compared
from experiments.papers.entries.trainings import (
    BSCE,
    BSCE_GRA,
    CE,
    DFL_GRA,
    DUAL_FOCAL,
    FL1,
    FL2,
    FL3,
    FL_GRA,
    NETWORKS,
    on_lenet5,
)
from experiments.papers.entry import Training
from experiments.papers.judge import comparisons, estimates, rules
from experiments.papers.judge.comparisons import Runs
from experiments.papers.judge.values import Value

ALL_NETWORKS = {"resnet": (CE, BSCE_GRA), **NETWORKS}
FOCAL = {"fl1": FL1, "fl2": FL2, "fl3": FL3}
OTHERS = ("1, 2", "3, 2", "2, 1")  # gamma and beta, beside the standard 2, 2
ON_RESNET = {
    "FL loss": FL3,
    "FL gradient": FL_GRA,
    "DFL loss": DUAL_FOCAL,
    "DFL gradient": DFL_GRA,
    "BS loss": BSCE,
    "BS gradient": BSCE_GRA,
}
KEYS = {label: training.loss for label, training in ON_RESNET.items()}


def _on_networks(runs: Runs) -> dict[str, Value]:
    return {
        f"CE2(CE) - CE2(BSCE-GRA), {name}": comparisons.ce2(runs[f"{name}_ce"], runs[name])
        for name in ALL_NETWORKS
    }


def _beyond(runs: Runs) -> dict[str, Value]:
    change = compared.value("CE2(BSCE-GRA) - CE2(BSCE-GRA+TS)", runs)
    return {
        "the same minus the margin": comparisons.beyond(change, runs["bsce_gra"], comparisons.after)
    }


def _key(setting: str) -> str:
    return "gamma_{}_beta_{}".format(*setting.split(", "))


def _change(setting: str) -> str:
    return f"CE2(2, 2) - CE2({setting})"


def _ranges(runs: Runs) -> dict[str, Value]:
    """Compute the range of the ECE over gamma."""
    of_loss = {"BSCE-GRA": [_key(f"{gamma}, 2") for gamma in (1, 2, 3)], "focal loss": list(FOCAL)}
    ranges = {}
    for loss, keys in of_loss.items():
        eces = [np.mean([estimates.ece(run.test) for run in runs[key]]) for key in keys]
        ranges[f"range of the ECE over gamma, {loss}"] = Value(float(np.ptp(eces)))
    return ranges


def _on_lenet5(runs: Runs) -> dict[str, Value]:
    return {
        f"CE2({name} loss) - CE2({name} gradient), LeNet-5": comparisons.ce2(
            runs[f"lenet5_{KEYS[f'{name} loss']}"], runs[f"lenet5_{KEYS[f'{name} gradient']}"]
        )
        for name in ("FL", "DFL", "BS")
    }


ENTRIES = {
    "architectures": compared.entry(
        {
            "bsce-gra-across-architectures": rules.above(
                *(f"CE2(CE) - CE2(BSCE-GRA), {name}" for name in ALL_NETWORKS)
            )
        },
        {
            name: training
            for network, pair in ALL_NETWORKS.items()
            for name, training in zip((f"{network}_ce", network), pair, strict=True)
        },
        others=_on_networks,
    ),
    "calibration": compared.entry(
        {
            "bsce-gra-beats-ce-own": rules.above(
                "CE2(CE) - CE2(BSCE-GRA)", "CE2(CE+TS) - CE2(BSCE-GRA)"
            ),
            "bsce-gra-no-need-of-ts": rules.every(
                rules.within("T(BSCE-GRA) by NLL", 0.9, 1.1),
                rules.below("the same minus the margin"),
            ),
        },
        {"ce": CE, "bsce_gra": BSCE_GRA},
        "T(CE) by NLL",
        "T(BSCE-GRA) on the ECE grid",
        "T(CE) on the ECE grid",
        "CE2(BSCE-GRA) - CE2(BSCE-GRA+TS)",
        "CE2(CE) - CE2(CE+TS)",
        "error(BSCE-GRA) - error(CE)",
        others=_beyond,
    ),
    "hyperparameters": compared.entry(
        {
            "bsce-gra-standard-hyperparameters-suffice": rules.below(
                *(_change(setting) + compared.MARGIN for setting in OTHERS)
            )
        },
        {
            _key("2, 2"): BSCE_GRA,
            **{
                _key(setting): Training(
                    "bsce_gra",
                    dict(zip(("gamma", "beta"), map(float, setting.split(", ")), strict=True)),
                    keep="columns",
                    diagnosed=False,
                )
                for setting in OTHERS
            },
            **FOCAL,
        },
        *map(_change, OTHERS),
        labels={setting: _key(setting) for setting in ("2, 2", *OTHERS)},
        others=_ranges,
        originals={
            "bsce-gra-standard-hyperparameters-suffice": rules.none_above(*map(_change, OTHERS))
        },
    ),
    "weighting": compared.entry(
        {
            "bsce-gra-gradient-beats-loss-own": rules.above(
                *(f"CE2({name} loss) - CE2({name} gradient)" for name in ("FL", "DFL", "BS"))
            ),
            "bsce-gra-brier-beats-focal-weights-own": rules.above(
                "CE2(FL gradient) - CE2(BS gradient)", "CE2(DFL gradient) - CE2(BS gradient)"
            ),
        },
        {KEYS[label]: training for label, training in ON_RESNET.items()}
        | {f"lenet5_{key}": on_lenet5(key) for key in KEYS.values()},
        labels=KEYS,
        others=_on_lenet5,
    ),
}
