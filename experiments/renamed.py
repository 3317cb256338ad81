"""Config keys that were renamed or removed, so that folders written with them still resume.

The tables hold only what leaves results unchanged. Any other difference between the config of a
folder and that of the command is reported by its key.
"""

from collections.abc import Mapping
from typing import Any

# The old key and its new name, which replaces the last part of the key.
KEYS = {
    "optimiser": "optimizer",
    "data.options.test_normalisation": "test_normalization",
    "loss.options.normalised": "normalized",
    "loss.options.double_normalisation": "double_normalization",
}
# The old name and the new name of an objective.
LOSSES = {
    "entropy_regularised": "entropy_regularized",
    "focal_entropy_regularised": "focal_entropy_regularized",
}
# Options of objectives that had no effect.
WITHOUT_EFFECT = {"recall": ("weighting",), "ece_weighted": ("weighting",)}


def current(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved config under today's keys.

    >>> current({"optimiser": {"name": "sgd"}, "seed": 1})
    {'seed': 1, 'optimizer': {'name': 'sgd'}}
    >>> current({"loss": {"name": "recall", "options": {"weighting": "loss", "alpha": 1.0}}})
    {'loss': {'name': 'recall', 'options': {'alpha': 1.0}}}
    """
    config = _renamed(config, "")
    for section in ("loss", "warm_up_loss"):
        if section in config:
            config[section] = _current_loss(config[section])
    return config


def _current_loss(loss: Mapping[str, Any]) -> dict[str, Any]:
    name = LOSSES.get(loss.get("name", ""), loss.get("name", ""))
    options = loss.get("options", {})
    kept = {k: v for k, v in options.items() if k not in WITHOUT_EFFECT.get(name, ())}
    return {key: {"name": name, "options": kept}.get(key, value) for key, value in loss.items()}


def _renamed(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Rename the keys of a part of the config; `prefix` is the path to this part."""
    inside = {
        key: _renamed(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in config.items()
    }
    for key in config:
        new = KEYS.get(prefix + key)
        if new is not None and new not in config:
            inside[new] = inside.pop(key)
    return inside
