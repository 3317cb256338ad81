"""Saved configs under today's keys, so that folders of older versions still resume.

The tables hold keys that were renamed or removed and leave results unchanged. A key that was added
later is taken at its default, from `configs.base` or the fragment of the loss. Any other difference
between the config of a folder and that of the command is reported by its key.
"""

from collections.abc import Mapping
from typing import Any

from configs import losses
from configs.base import base
from experiments import cli

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
# Keys that are gone, with the section that held them.
REMOVED = {"run": ("tensorboard",)}  # one of run.writers
# Options of objectives that had no effect.
WITHOUT_EFFECT = {"recall": ("weighting",), "ece_weighted": ("weighting",)}

# Switches of the config that were options of single networks: the option, and the switch's default.
SWITCHES: dict[str, tuple[str, Any]] = {
    "precision": ("dtype", "float32"),
    "remat": ("remat", False),
}
SECTIONS = ("loss", "warm_up_loss")
CHOSEN = "best"  # its keys are the user's choice


def current(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved config under today's keys, with the keys that were added since.

    >>> config = current({"optimiser": {"name": "adam"}})
    >>> config["optimizer"]["name"], config["data"]["order"]
    ('adam', 'shuffled')
    >>> old = {"name": "recall", "options": {"weighting": "loss", "alpha": 1.0}}
    >>> "weighting" in current({"loss": old})["loss"]["options"]
    False
    """
    config = _renamed(config, "")
    for section, keys in REMOVED.items():
        if section in config:
            config[section] = {k: v for k, v in config[section].items() if k not in keys}
    defaults = cli.plain(base("cross_entropy"))
    for section in SECTIONS:
        if section in config:
            config[section] = _current_loss(config[section])
            name = config[section]["name"]
            defaults[section] = cli.plain(losses.load(name)) if name in losses.names() else {}
    return _switched(_completed(config, defaults))


def _switched(config: dict[str, Any]) -> dict[str, Any]:
    """Move the options of the network that are switches today."""
    options = {**config["model"]["options"]}
    for switch, (option, default) in SWITCHES.items():
        value = options.pop(option, default)
        if config[switch] == default:
            config[switch] = value
    return {**config, "model": {**config["model"], "options": options}}


def _completed(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Add the keys that a part of the config lacks."""
    values = {**config}
    for key, default in defaults.items():
        if key not in values:
            values[key] = default
        elif isinstance(default, Mapping) and key != CHOSEN:
            values[key] = _completed(values[key], default)
    return values


def _current_loss(loss: Mapping[str, Any]) -> dict[str, Any]:
    name = LOSSES.get(loss["name"], loss["name"])
    options = loss.get("options", {})
    kept = {k: v for k, v in options.items() if k not in WITHOUT_EFFECT.get(name, ())}
    return {**loss, "name": name, "options": kept}


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
