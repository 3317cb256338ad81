"""What a data set is, and the catalogue of those that can be had by name."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from calib_jax.core import checks
from calib_jax.core.catalogue import Catalogue
from calib_jax.core.examples import Source
from calib_jax.core.types import PyTree
from calib_jax.data.facts import About

__all__ = ["Dataset", "about", "catalogue", "named"]

_CATALOGUE: Catalogue[Callable[..., "Dataset"]] = Catalogue("data set")
_ABOUT: dict[str, About] = {}
_Factory = TypeVar("_Factory", bound=Callable[..., "Dataset"])


def register(name: str, about: About | None = None) -> Callable[[_Factory], _Factory]:
    """Enter a factory under a name, with what is known of its data set."""

    def enter(factory: _Factory) -> _Factory:
        _CATALOGUE.register(name)(factory)
        if about is not None:
            _ABOUT[name] = about
        return factory

    return enter


def _as_they_are(inputs: PyTree) -> PyTree:
    return inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Three sources of examples, and what a training loop must know of them.

    Attributes:
      name: what it is called in the catalogue.
      class_names: one for each class, in the order of the labels.
      train, validation, test: its parts.
      description: sizes, the rule of the split, the licence; for people.
      prepare: `(inputs) -> inputs` for a batch, on the device: from what is stored (uint8, say)
        to what the network takes (normalised floats).
      augment: `(key, inputs) -> inputs` for ONE example, on the device, where a vmap gives each
        example its key; None for none. It comes before `prepare` and sees stored values, so
        that what a crop pads with is a black pixel, as in the papers.
      posterior: `(inputs) -> log-probabilities` of the classes where they are known, which
        makes the true calibration error and the Bayes error known; else None.
      brightest: if the inputs are images, the stored value of a white pixel, such as 255; noise
        that is given as a share of it needs it.
    """

    name: str
    class_names: tuple[str, ...]
    train: Source
    validation: Source
    test: Source
    description: str
    prepare: Callable[[PyTree], PyTree] = _as_they_are
    augment: Callable[[Any, PyTree], PyTree] | None = None
    posterior: Callable[[Any], Any] | None = None
    brightest: float | None = None

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)


def named(name: str, /, **options: Any) -> Dataset:
    """Make the data set of that name.

    Nothing is downloaded: a data set that is not shipped and not there says how to get it.

    >>> digits = named("digits", training_size=400)
    >>> digits.num_classes, len(digits.train), len(digits.validation), len(digits.test)
    (10, 400, 297, 1100)
    >>> named("digit")
    Traceback (most recent call last):
    ValueError: data set must be one of ..., got 'digit'; did you mean 'digits'?
    """
    dataset = _CATALOGUE.make(name, **options)
    assert isinstance(dataset, Dataset)
    return dataset


def catalogue() -> Mapping[str, Callable[..., Dataset]]:
    """List every data set by name; the keyword arguments of its factory are its options.

    >>> "digits" in catalogue()
    True
    """
    return _CATALOGUE


def about(name: str, /) -> About | None:
    """Tell what is known of a data set before it is read; None if nothing is.

    >>> about("cifar10").title
    'CIFAR-10, 32 x 32 in colour'
    """
    checks.one_of("data set", name, _CATALOGUE)
    return _ABOUT.get(name)
