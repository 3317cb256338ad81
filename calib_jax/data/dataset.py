"""What a data set is: three sources of examples, and how the device gets them ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from calib_jax.core.catalogue import Catalogue
from calib_jax.core.examples import Source
from calib_jax.core.types import Array, PyTree

__all__ = ["Dataset"]


def identity(inputs: PyTree) -> PyTree:
    """Leave inputs as they are."""
    return inputs


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Examples for training, for choosing, and for measuring.

    Attributes:
      name: what it is called.
      num_classes: how many there are.
      train, validation, test: the examples.
      class_names: in the order of the labels.
      prepare: `(inputs) -> inputs`, on the device: from how examples are stored, such as bytes,
        to what a network takes.
      augment: `(key, inputs of one example) -> inputs`, on the device, before `prepare`; None if
        there is none.
      log_posterior: `(inputs) -> [*batch, classes]`, the true log-probabilities where they are
        known.
      description: where it comes from, how it was split.
    """

    name: str
    num_classes: int
    train: Source
    validation: Source
    test: Source
    class_names: tuple[str, ...] = ()
    prepare: Callable[[PyTree], PyTree] = identity
    augment: Callable[[Array, PyTree], PyTree] | None = None
    log_posterior: Callable[[Array], Array] | None = None
    description: str = ""


_CATALOGUE: Catalogue[Callable[..., Dataset]] = Catalogue("data set")
register = _CATALOGUE.register


def named(name: str, **options: Any) -> Dataset:
    """Make the data set of that name.

    >>> from calib_jax import data
    >>> len(data.named("digits", training_size=100).train)
    100
    """
    made: Dataset = _CATALOGUE.make(name, **options)
    return made


def catalogue() -> Catalogue[Callable[..., Dataset]]:
    """List every data set: a mapping from its name to the function that makes it."""
    return _CATALOGUE
