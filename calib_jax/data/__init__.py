"""Data: named data sets, splits, and augmentation on the device.

    digits = data.named("digits", label_noise=0.15)      a Dataset: three sources and their facts
    digits.train[np.array([3, 1])]                       Examples, looked up by their numbers
    data.catalogue()                                     every data set by name
    data.about("cifar10")                                its licence, counts and downloads
    data.random_crop(padding=4)                          (key, image) -> image, for jit and vmap

A new data set is one new file of this folder: it is found, its public names (`__all__`) appear
here, and its registered factory in the catalogue.
"""

import sys
from typing import Any

from calib_jax.core.catalogue import load_room
from calib_jax.core.checks import nearest
from calib_jax.data.dataset import Dataset as Dataset
from calib_jax.data.dataset import about as about
from calib_jax.data.dataset import catalogue as catalogue
from calib_jax.data.dataset import named as named
from calib_jax.data.facts import About as About
from calib_jax.data.facts import Download as Download

_names = load_room(sys.modules[__name__])
globals().update(_names)
__all__ = sorted({*_names, "About", "Dataset", "Download", "about", "catalogue", "named"})


def __dir__() -> list[str]:
    """List the public names; files of this folder are not among them."""
    return __all__


def __getattr__(name: str) -> Any:
    # Also tells a type checker that there are more names than it can see.
    raise AttributeError(f"calib_jax.data has no {name!r}{nearest(name, __all__)}")
