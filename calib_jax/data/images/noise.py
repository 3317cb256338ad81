r"""Gaussian noise for any images, by the formula of CIFAR-10-C.

$$x' = \mathrm{clip}(x + \sigma \epsilon, 0, 1), \qquad \epsilon \sim N(0, 1),$$

on pixels scaled to [0, 1], with $\sigma$ = .04, .06, .08, .09, .10 at severity 1 to 5.
"""

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory, Source, check_source

SIGMAS = (0.04, 0.06, 0.08, 0.09, 0.10)
_CHUNK = 1 << 20  # values of pixels that get noise at a time


def gaussian_noise(
    source: Source, *, severity: int = 5, brightest: float = 255.0, seed: int = 0
) -> InMemory:
    """Add noise to every image of a source; keep the labels.

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
    checks.between("severity", severity, 1, len(SIGMAS))
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
    generator, sigma = np.random.default_rng(seed), SIGMAS[severity - 1]
    step = max(1, _CHUNK // max(1, images[:1].size))
    for start in range(0, len(images), step):
        some = images[start : start + step]
        noise = generator.standard_normal(some.shape, dtype=np.float32)
        some[:] = np.clip(some.astype(np.float32) / brightest + sigma * noise, 0, 1) * brightest
    return InMemory(*examples._replace(inputs=images))
