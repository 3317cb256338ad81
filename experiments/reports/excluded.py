"""Predictions without the class that a config excludes, such as the neutral class of the SST.

While a network trains, metrics set the probability of this class to 0 and do not change the other
probabilities, like the code released with Mukhoti et al. 2020. In a report the other probabilities
are divided by their sum, because the NLL, temperatures and tests need probabilities that sum to 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def class_of(config: Mapping[str, Any] | None) -> int | None:
    """Return the class that a config excludes; None if the config excludes none or is unknown."""
    return None if config is None else config.get("excluded_class")


def without(logits: Any, config: Mapping[str, Any] | None) -> Any:
    """Return logits `[*batch, classes]` with -inf for the excluded class.

    >>> without(np.array([[1.0, 2.0, 3.0]]), {"excluded_class": 1})
    array([[  1., -inf,   3.]])
    """
    number = class_of(config)
    if number is None:
        return logits
    logits = np.array(logits)
    logits[..., number] = -np.inf
    return logits


def sentence(config: Mapping[str, Any], class_names: Sequence[str]) -> str:
    """Describe the exclusion; empty if there is none."""
    number = class_of(config)
    if number is None:
        return ""
    return (
        f"The class {class_names[number]} is excluded: the probabilities of the others are divided"
        " by their sum."
    )
