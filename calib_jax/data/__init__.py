"""Data: named data sets, splits, and augmentation on the device.

    digits = data.named("digits", label_noise=0.15)      a Dataset: three sources and metadata
    digits.train[np.array([3, 1])]                       Examples, indexed by number
    data.catalogue()                                     every data set by name
    data.about("cifar10")                                its licence, counts and downloads
    data.random_crop(padding=4)                          (key, image) -> image, for jit and vmap

To add a data set, add one file to this folder: the subpackage exports its public names (`__all__`)
and the catalogue lists its registered factory.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_subpackage
from calib_jax.core.names import no_attribute
from calib_jax.data.dataset import Dataset as Dataset
from calib_jax.data.dataset import about as about
from calib_jax.data.dataset import catalogue as catalogue
from calib_jax.data.dataset import named as named
from calib_jax.data.dataset import register as register
from calib_jax.data.facts import About as About
from calib_jax.data.facts import Download as Download

_names = load_subpackage(sys.modules[__name__])
globals().update(_names)
__all__ = sorted(
    {*_names, "About", "Dataset", "Download", "about", "catalogue", "named", "register"}
)


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


def __getattr__(name: str) -> Any:
    # Type checkers cannot see the names added above; this accepts any name.
    raise no_attribute(__name__, name, __all__)
