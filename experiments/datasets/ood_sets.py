"""Find sets of out-of-distribution inputs by name and options.

    gaussian_noise                      the run's own test images with the Gaussian noise of
    gaussian_noise:severity=3           CIFAR-10-C, at severity 5 or a given severity
    svhn                                the test part of any data set in data.catalogue(), with
    cifar10_c:corruption=fog            any of its options
    my_package.sets:mine                the test part of a user's data set, by import path, with any
    my_package.sets:mine:size=9         of its options

The inputs are normalised like the network's training data: SVHN with the statistics of CIFAR-10.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from calib_jax import data
from calib_jax.core.checks import check_options, is_path, name_and_options, nearest, options_of
from calib_jax.core.examples import Source
from experiments.running import building, imports

NOISE = "gaussian_noise"


def named(
    requested: Sequence[str], dataset: data.Dataset, data_dir: str | None
) -> dict[str, Source]:
    """Return the sets by file-safe names; raise an error if a set does not fit the network."""
    return {re.sub(r"\W+", "_", text): _one(text, dataset, data_dir) for text in requested}


def _one(text: str, dataset: data.Dataset, data_dir: str | None) -> Source:
    name, options = name_and_options(text)
    if name == NOISE:
        if dataset.brightest is None:
            raise ValueError(
                f"{NOISE} needs images, and a value for white; {dataset.name} has none here."
            )
        add = functools.partial(data.gaussian_noise, dataset.test, brightest=dataset.brightest)
        _check_kinds(NOISE, add, options)
        return add(**options)
    if not is_path(name) and name not in data.catalogue():
        known = [NOISE, *sorted(data.catalogue())]
        raise ValueError(
            f"no out-of-distribution set is called {name!r}{nearest(name, known)}\nThere are"
            f" {', '.join(known)}, and import paths MODULE:NAME."
        )
    _check_kinds(name, imports.named("data set", name, data.catalogue()), options)
    other = building.data_set(name, options, data_dir)
    theirs, ours = (_kinds_of_inputs(part.test) for part in (other, dataset))
    if theirs != ours:
        raise ValueError(
            f"{name} cannot be compared with {dataset.name}: its inputs are {theirs}, not {ours}."
        )
    if other.vocabulary != dataset.vocabulary:
        raise ValueError(
            f"{name} numbers words otherwise than {dataset.name}, so the network would read other"
            " texts.\nGive it the options of the run, such as words=5000, or the same word pieces"
            " (pieces=FOLDER)."
        )
    return other.test


def _check_kinds(name: str, function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raise an error for an unknown option, or for a value that is not of the expected type."""
    check_options(name, function, options)
    known = options_of(function)
    for key, value in options.items():
        for kind, fitting, what in ((int, int, "a whole number"), (float, int | float, "a number")):
            if type(known[key]) is kind and not isinstance(value, fitting):
                raise ValueError(f"{key} of {name} must be {what}, got {value!r}.")


def _kinds_of_inputs(source: Source) -> str:
    """Describe the dtype and the shape of one input."""
    inputs = source[np.arange(1)].inputs
    described = [
        " ".join([jax.tree_util.keystr(path), f"{leaf.dtype} of shape {leaf.shape[1:]}"]).strip()
        for path, leaf in jax.tree.leaves_with_path(inputs)
    ]
    return ", ".join(described)
