"""Data: sources of examples, splits, and augmentation on the device.

    found = data.named("digits", label_noise=0.15)       train, validation, test
    data.catalogue()                                     every data set by name

A data set is one file: a function that is registered under a name and returns a `Dataset`.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_room
from calib_jax.core.checks import nearest
from calib_jax.data.dataset import catalogue as catalogue
from calib_jax.data.dataset import named as named

_names = load_room(sys.modules[__name__])
globals().update(_names)
__all__ = sorted(_names)


def __getattr__(name: str) -> Any:
    # Also tells a type checker that there are more names than it can see.
    raise AttributeError(f"calib_jax.data has no {name!r}{nearest(name, __all__)}")
