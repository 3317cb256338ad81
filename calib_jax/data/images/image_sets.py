"""Normalisation, subsets and noise of images."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory, Source, check_source
from calib_jax.core.files import reading
from calib_jax.core.types import Array
from calib_jax.data.images.augmentation import compose, on_inputs, random_crop, random_flip


class Images(NamedTuple):
    """One part of a data set: pixels `[n, height, width, channels]` of type uint8, and labels."""

    images: np.ndarray
    labels: np.ndarray

    def source(self, numbers: np.ndarray | None = None) -> InMemory:
        """Return a source of these images, or of the given ones."""
        if numbers is None:
            return InMemory(self.images, self.labels)
        return InMemory(self.images[numbers], self.labels[numbers])


class Statistics(NamedTuple):
    """Mean and standard deviation per channel, for pixels scaled to [0, 1]."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


_SIGMAS = (0.04, 0.06, 0.08, 0.09, 0.10)  # of the noise at each severity
_CHUNK = 1 << 20  # values of pixels that get noise at a time
CIFAR10 = Statistics((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
IMAGENET = Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@functools.cache  # one function for each statistics, so that its program is shared
def normalized(statistics: Statistics) -> Callable[[Any], Array]:
    """Return a function that normalises stored pixels by mean and standard deviation.

    >>> normalized(IMAGENET)(np.array([0, 0, 255], np.uint8))
    Array([-2.118, -2.036, 2.640], dtype=float32)
    """

    def prepare(inputs: Any) -> Array:
        pixels = jnp.asarray(inputs, dtype=jnp.float32) / 255
        mean, deviation = (jnp.asarray(numbers, dtype=jnp.float32) for numbers in statistics)
        shape = (1,) * (pixels.ndim - 1) + (-1,)
        return (pixels - mean.reshape(shape)) / deviation.reshape(shape)

    return prepare


prepare_cifar10 = normalized(CIFAR10)  # the papers also use it for CIFAR-100 and SVHN
crop_and_flip = on_inputs(compose(random_crop(padding=4), random_flip()))  # of the papers


def as_if_normalized(part: Images, by: Statistics, prepared_by: Statistics) -> Images:
    """Rescale pixels so that `normalized(prepared_by)` returns what `normalized(by)` did before.

    The new pixels are float32 and may lie outside [0, 255].
    """
    mean, deviation = (np.asarray(numbers) for numbers in by)
    other_mean, other_deviation = (np.asarray(numbers) for numbers in prepared_by)
    scale = (other_deviation / deviation).astype(np.float32)
    shift = (255 * (other_mean - mean * other_deviation / deviation)).astype(np.float32)
    return Images(part.images * scale + shift, part.labels)


def checked_labels(
    labels: np.ndarray, num_classes: int, where: str, *, lowest: int = 0
) -> np.ndarray:
    """Convert labels to int32; raise an error that names the first one that is no class.

    >>> checked_labels(np.array([3, 10]), 10, "train.bin")
    Traceback (most recent call last):
    calib_jax.core.files.reading.Unreadable: example 1 of train.bin has the label 10; labels must
    lie in [0, 9].
    """
    wrong = np.flatnonzero((labels < lowest) | (labels >= lowest + num_classes))
    if wrong.size:
        raise reading.Unreadable(
            f"example {wrong[0]} of {where} has the label {labels[wrong[0]]}; labels must lie in"
            f" [{lowest}, {lowest + num_classes - 1}]."
        )
    return labels.astype(np.int32)


def gaussian_noise(
    source: Source, *, severity: int = 5, brightest: float = 255.0, seed: int = 0
) -> InMemory:
    r"""Add noise to every image of a source, by the formula of CIFAR-10-C; keep the labels.

    $$x' = \mathrm{clip}(x + \sigma \epsilon, 0, 1), \qquad \epsilon \sim N(0, 1),$$

    on pixels scaled to [0, 1], with $\sigma$ = .04, .06, .08, .09, .10 at severity 1 to 5.

    Integer pixels stay integers, rounded towards 0 as in the published files.

    Args:
      source: a source of stored images.
      severity: 1 to 5; the calibration papers use 5.
      brightest: the value of a white pixel: 255 for uint8.
      seed: seed of the noise; sources of the same size and shape get the same noise.

    References:
      Hendrycks and Dietterich 2019, Benchmarking Neural Network Robustness to Common Corruptions
      and Perturbations.

    >>> grey = InMemory(np.full((2, 8, 8, 1), 128, np.uint8), np.array([3, 4]))
    >>> noisy = gaussian_noise(grey, severity=1)
    >>> round(float(np.std(noisy.inputs / 255)), 2)
    0.04
    """
    check_source("source", source)
    checks.whole("severity", severity)
    checks.between("severity", severity, 1, len(_SIGMAS))
    checks.above("brightest", brightest, 0)
    checks.seed(seed)
    if not len(source):
        raise ValueError("gaussian_noise: the source has no examples.")
    examples = source[np.arange(len(source))]
    images = np.array(examples.inputs)
    if images.ndim != 4:
        raise ValueError(
            "gaussian_noise: the examples must be images [n, height, width, channels]."
        )
    generator, sigma = np.random.default_rng(seed), _SIGMAS[severity - 1]
    step = max(1, _CHUNK // max(1, images[:1].size))
    for start in range(0, len(images), step):
        some = images[start : start + step]
        noise = generator.standard_normal(some.shape, dtype=np.float32)
        some[:] = np.clip(some.astype(np.float32) / brightest + sigma * noise, 0, 1) * brightest
    return InMemory(*examples._replace(inputs=images))
