"""Compare the config in a folder with the config of the run that resumes there."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from flax import traverse_util

Config: TypeAlias = Mapping[str, Any]
# Keys that may change, or a function of both configs and the steps done that returns the keys.
Free: TypeAlias = Collection[str] | Callable[[Config, Config, int], Collection[str]]

SHOWN = 5  # changed keys in an error message


class AnotherConfig(ValueError):
    """Raised when the folder holds a run of another config or of a newer version."""


def forbidden(before: Config, now: Config, step: int, free: Free) -> list[str]:
    """List the changed keys that must not change, because the first `step` steps depend on them."""
    return differences(before, now, free=free(before, now, step) if callable(free) else free)


def listed(changed: Sequence[str]) -> str:
    """Format the first changed keys, and count the others."""
    more = f"; and {len(changed) - SHOWN} more keys" if len(changed) > SHOWN else ""
    return "; ".join(changed[:SHOWN]) + more


def _differ(before: Any, now: Any) -> bool:
    """Compare values as JSON saves them: a tuple is a list, and NaN equals NaN."""
    saved, current = (json.dumps(value, default=repr) for value in (before, now))
    return before != now and saved != current


def differences(before: Config, now: Config, *, free: Collection[str] = ()) -> list[str]:
    """List the keys in which two nested configs differ, with both values.

    Args:
      before, now: the configs.
      free: keys to leave out, with all keys inside them.

    >>> before, now = {"lr": 0.1, "loss": {"gamma": 3}}, {"lr": 0.1, "loss": {"gamma": 5}}
    >>> differences(before, now), differences(before, now, free=["loss"])
    (['loss.gamma: 3 before, 5 now'], [])
    """
    flat_before, flat_now = (traverse_util.flatten_dict(dict(c), sep=".") for c in (before, now))
    return [
        f"{key}: {flat_before.get(key, 'nothing')} before, {flat_now.get(key, 'nothing')} now"
        for key in sorted(flat_before.keys() | flat_now.keys())
        if _differ(flat_before.get(key, ...), flat_now.get(key, ...))
        and not any(f"{key}.".startswith(f"{part}.") for part in free)
    ]
