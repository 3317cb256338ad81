"""Losses: pure functions `(logits, labels, *, options) -> [*batch]`, unreduced.

    losses.focal(logits, labels, gamma=3.0)              a function, for custom training loops
    losses.objective("adafocal")                         a loss with its state, for any loop
    losses.catalogue()                                   every objective by its paper's name

Every file of this folder is one family of losses. A new loss needs only a new file: its public
names (`__all__`) appear here, and its objectives in the catalogue.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_subpackage
from calib_jax.core.names import no_attribute
from calib_jax.losses.objectives import Objective as Objective
from calib_jax.losses.objectives import Progress as Progress
from calib_jax.losses.objectives import catalogue as catalogue
from calib_jax.losses.objectives import objective as objective

_names = load_subpackage(sys.modules[__name__])
globals().update(_names)
__all__ = sorted(_names)


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


def __getattr__(name: str) -> Any:
    # With this function, type checkers also accept the names that `load_subpackage` adds.
    if name in catalogue():
        raise AttributeError(
            f"{__name__} has no function {name!r}: it is an objective, losses.objective({name!r})."
        )
    raise no_attribute(__name__, name, __all__)
