"""Handwritten digits, shipped with the library: training takes about a minute."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.types import Array
from calib_jax.data.dataset import About, Dataset, register, with_label_noise

_BRIGHTEST = 16
_PARTS = ("train", "validation", "test")


@register(
    "digits", About(title="Handwritten digits of UCI, 8 x 8 in grey; shipped", licence="CC BY 4.0")
)
def digits(
    *,
    training_size: int = 500,
    validation_size: int = 297,
    test_size: int | None = None,
    label_noise: float = 0.0,
    noisy: Sequence[str] = _PARTS,
    seed: int = 0,
) -> Dataset:
    """Load the 1,797 digits of UCI, 8 x 8 pixels with 17 levels of grey, in three parts.

    `numpy.random.default_rng([seed, 0])` draws the parts without replacement. Label noise uses
    `default_rng([seed, 1])` for the training part, `[seed, 2]` for validation and `[seed, 3]` for
    test. So noise does not move examples between parts, and a higher noise level replaces all
    labels that a lower level replaces, and more.

    Args:
      training_size, validation_size: numbers of examples.
      test_size: number of examples; None uses all remaining ones.
      label_noise: the fraction of labels that are replaced by a class drawn uniformly from all
        ten, so that on average a tenth of them stays unchanged. Exactly this fraction of each part
        is replaced, rounded to whole examples. It bounds the confidence of a calibrated model.
      noisy: the parts whose labels are replaced.
      seed: seed of the parts and of the noise.

    References:
      Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI Machine Learning
      Repository; CC BY 4.0 (`digits.txt` beside this file).

    >>> some = digits().train[np.arange(3)]
    >>> some.inputs.shape, some.inputs.dtype, some.labels.dtype
    ((3, 8, 8, 1), dtype('uint8'), dtype('int32'))
    """
    checks.whole("training_size", training_size)
    checks.whole("validation_size", validation_size)
    checks.seed(seed)
    images, labels = _load()
    rest = len(images) - training_size - validation_size
    sizes = (training_size, validation_size, rest if test_size is None else test_size)
    if min(sizes) < 1 or sum(sizes) > len(images):
        raise ValueError(
            f"digits: there are {len(images)} examples, and every part needs at least one: got"
            f" training_size={training_size}, validation_size={validation_size},"
            f" test_size={test_size}."
        )
    checks.between("label_noise", label_noise, 0, 1)
    for name in noisy:
        checks.one_of("noisy", name, _PARTS)
    order = np.random.default_rng([seed, 0]).permutation(len(images))
    ends = np.cumsum(sizes)

    def part(number: int) -> InMemory:
        index = order[ends[number] - sizes[number] : ends[number]]
        share = label_noise if _PARTS[number] in noisy else 0.0
        generator = np.random.default_rng([seed, number + 1])
        noisy_labels = with_label_noise(labels[index], share, 10, generator)
        return InMemory(images[index], noisy_labels)

    return Dataset(
        name="digits",
        class_names=tuple("0123456789"),
        train=part(0),
        validation=part(1),
        test=part(2),
        description=(
            f"Handwritten digits of UCI, 8 x 8 grey: {sizes[0]} to train, {sizes[1]} to validate,"
            f" {sizes[2]} to test, drawn with seed {seed}; {100 * label_noise:g}% of the labels of"
            f" {', '.join(noisy) or 'no part'} replaced at random. Licence CC BY 4.0, Alpaydin and"
            " Kaynak 1998."
        ),
        prepare=_prepare,
        brightest=_BRIGHTEST,
    )


def _prepare(inputs: Any) -> Array:
    return jnp.asarray(inputs, dtype=jnp.float32) / _BRIGHTEST


@functools.cache
def _load() -> tuple[np.ndarray, np.ndarray]:
    path = pathlib.Path(__file__).with_name("digits.npz")
    with np.load(path) as stored:
        return stored["images"][..., None], stored["labels"].astype(np.int32)
