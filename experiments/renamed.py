"""Config keys that were renamed, so that folders written under an old name still resume.

The table holds only keys whose meaning is unchanged. Any other difference between the config of a
folder and that of the command is reported by its key.
"""

from collections.abc import Mapping
from typing import Any

# The old key and its new name, which replaces the last part of the key.
KEYS = {
    "optimiser": "optimizer",
    "data.options.test_normalisation": "test_normalization",
}


def current(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved config under today's keys.

    >>> current({"optimiser": {"name": "sgd"}, "seed": 1})
    {'seed': 1, 'optimizer': {'name': 'sgd'}}
    """
    return _renamed(config, "")


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
