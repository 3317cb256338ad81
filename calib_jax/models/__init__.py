"""Models: Flax networks, called `module(x, *, train, mask=None) -> logits [*batch, classes]`.

    models.resnet20(num_classes=100)                     a Flax module
    models.named("resnet20", num_classes=100)            the same by name, for configs
    models.catalogue()                                   every network by name

Every file of this subpackage is one family. To add a family, add one file: the subpackage imports
it, exports its public names (`__all__`) and lists its registered networks in the catalogue.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_subpackage
from calib_jax.core.names import no_attribute

_names = load_subpackage(sys.modules[__name__])
globals().update(_names)
__all__ = sorted(_names)


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


def __getattr__(name: str) -> Any:
    # With this function, type checkers accept names that are added at run time.
    raise no_attribute(__name__, name, __all__)
