"""Simulated records of the map, for its tests."""

import numpy as np

from experiments.map.measures import FOLDS
from experiments.map.settings import LOSSES, TEXTS, WEIGHT_DECAYS, Setting

METRICS = ("ce2_before", "ce2_after", "error", "nll_before", "nll_after", "refinement")
OUT_OF_SCOPE = ("auroc_before", "auroc_after")


def metrics_of(texts):
    """The metrics of a data set."""
    return METRICS + OUT_OF_SCOPE * (texts == "clinc150")


def record(
    value, *, temperature=1.0, seeds=0.0, folds=0.0, count=10, names=METRICS, generator=None
):
    """A record whose metrics have this mean, with noise of seeds and folds."""
    generator = generator or np.random.default_rng(0)
    columns = value + seeds * generator.standard_normal(count)
    without = [
        value + folds * generator.standard_normal(FOLDS) / np.sqrt(FOLDS * (FOLDS - 1))
        for _ in range(2)
    ]
    # A network that errs on more than 90 % is left out, whatever value the other metrics have.
    errors = columns if np.mean(columns) < 0.9 else columns - np.mean(columns) + 0.3
    return {
        "seeds": list(range(1, count + 1)),
        "seconds": 36.0,
        "values": {
            **dict.fromkeys(names, columns),
            "error": errors,
            "temperature": [temperature] * count,
        },
        "without_test": dict.fromkeys(names, without[0]),
        "without_validation": {name: without[1] for name in names if name.endswith("_after")},
    }


def records_of(
    value, temperature=lambda texts, decay: 1.0, *, losses=tuple(LOSSES), decays=WEIGHT_DECAYS,
    **noise,
):  # fmt: skip
    """Records of every cell; `value` is a function of data set, loss and weight decay."""
    return {
        Setting(texts, loss, decay): record(
            value(texts, loss, decay),
            temperature=temperature(texts, decay),
            names=metrics_of(texts),
            **noise,
        )
        for texts in TEXTS
        for loss in losses
        for decay in decays
    }
