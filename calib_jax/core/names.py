"""Near names: an error about an unknown name suggests the nearest known name."""

import difflib
from collections.abc import Collection


def closest(name: str, choices: Collection[str], n: int = 1, cutoff: float = 0.5) -> list[str]:
    """Return the choices nearest to a name; ignore case, and treat - and _ as equal.

    >>> closest("Label-Smoothing", ["brier", "label_smoothing"])
    ['label_smoothing']
    """
    by_folded: dict[str, str] = {}
    for choice in choices:
        by_folded.setdefault(_folded(choice), choice)
    matches = difflib.get_close_matches(_folded(name), list(by_folded), n=n, cutoff=cutoff)
    return [by_folded[match] for match in matches]


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")


def nearest(name: str, choices: Collection[str]) -> str:
    """Return the end of an error message: the choice nearest to `name`, if any is similar."""
    matches = closest(name, choices)
    return f"; did you mean {matches[0]!r}?" if matches else "."


def no_attribute(owner: str, name: str, public: Collection[str]) -> AttributeError:
    """Build the error for a name that a subpackage or an object does not have.

    >>> raise no_attribute("calib_jax.losses", "focl", ["focal"])
    Traceback (most recent call last):
    AttributeError: calib_jax.losses has no 'focl'; did you mean 'focal'?
    """
    return AttributeError(f"{owner} has no {name!r}{nearest(name, public)}")
