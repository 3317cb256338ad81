"""Models: Flax networks, called `module(x, *, train, mask=None) -> logits [*batch, classes]`.

    models.resnet20(num_classes=100)                     a Flax module
    models.named("resnet20", num_classes=100)            the same by name, for configs
    models.catalogue()                                   every network by name

Every file of this folder is one family. A new family is one new file: it is found, its public
names (`__all__`) appear here, and its registered networks in the catalogue.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_room
from calib_jax.core.checks import nearest

_names = load_room(sys.modules[__name__])
globals().update(_names)
__all__ = sorted(_names)


def __dir__() -> list[str]:
    """List the public names; files of this folder are not among them."""
    return __all__


def __getattr__(name: str) -> Any:
    # Also tells a type checker that there are more names than it can see.
    raise AttributeError(f"calib_jax.models has no {name!r}{nearest(name, __all__)}")
