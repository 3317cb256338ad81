"""A mixture of Gaussians: data with known class probabilities."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.types import Array
from calib_jax.data.dataset import About, Dataset, register


@register("gaussians", About(title="Mixtures of Gaussians; computed", licence="none needed"))
def gaussians(
    *,
    num_classes: int = 2,
    dimensions: int = 2,
    means: str = "uniform",
    magnitude: float = 3.0,
    training_size: int = 10_000,
    validation_size: int = 2_000,
    test_size: int = 10_000,
    seed: int = 0,
) -> Dataset:
    r"""Draw examples from equally likely Gaussians of unit variance, one per class.

    $$y \sim \mathrm{U}\{1 \ldots K\}, \quad x \sim \mathcal{N}(\mu_y, I), \qquad
      \log p(k \mid x) = \log \mathrm{softmax}_k\!\left(\mu_k^\top x - \|\mu_k\|^2 / 2\right)$$

    The data set's `posterior` is the last function. A network whose logits are these
    log-probabilities is calibrated, and its error is the Bayes error,
    $1 - \mathrm{E} \max_k p(k \mid x)$.

    Means come from `numpy.random.default_rng([seed, 0])`, the training part from `[seed, 1]`,
    validation and test from `[seed, 2]` and `[seed, 3]`, so each part is independent of the sizes
    of the others.

    Args:
      num_classes: K.
      dimensions: number of dimensions of x.
      means: "uniform" draws them from [-m, m] in every dimension; "pair" puts the two classes at
        (1.5, 1.5) and (-1.5, -1.5), where the Bayes error is 1.69 %.
      magnitude: m; not used with "pair".
      training_size, validation_size, test_size: numbers of examples.
      seed: seed of the means and the examples.

    References:
      Lin et al. 2025 (BSCE-GRA), the experiments with a known posterior.

    >>> mixture = gaussians(means="pair")
    >>> some = mixture.test[np.arange(4)]
    >>> mixture.posterior(some.inputs).shape
    (4, 2)
    >>> mixture.posterior(np.zeros((1, 2))).round(4)
    Array([[-0.6931, -0.6931]], dtype=float32)
    """
    options = {**locals()}
    for name in ("num_classes", "dimensions", "training_size", "validation_size", "test_size"):
        checks.whole(name, options[name])
    checks.seed(seed)
    checks.at_least("magnitude", magnitude, 0)
    checks.one_of("means", means, ("uniform", "pair"))
    if means == "pair":
        if (num_classes, dimensions) != (2, 2):
            raise ValueError(
                "gaussians: a pair of means is 2 classes in 2 dimensions, got"
                f" num_classes={num_classes}, dimensions={dimensions}."
            )
        centers = np.array([[1.5, 1.5], [-1.5, -1.5]])
    else:
        generator = np.random.default_rng([seed, 0])
        centers = generator.uniform(-magnitude, magnitude, (num_classes, dimensions))
    where = "at (1.5, 1.5) and (-1.5, -1.5)" if means == "pair" else f"within ±{magnitude:g}"
    return Dataset(
        name="gaussians",
        class_names=tuple(map(str, range(num_classes))),
        train=_drawn(centers, training_size, np.random.default_rng([seed, 1])),
        validation=_drawn(centers, validation_size, np.random.default_rng([seed, 2])),
        test=_drawn(centers, test_size, np.random.default_rng([seed, 3])),
        description=(
            f"{num_classes} Gaussians of unit variance in {dimensions} dimensions, means {where}:"
            f" {training_size} examples to train, {validation_size} to validate, {test_size} to"
            f" test, drawn with seed {seed}."
        ),
        posterior=functools.partial(_posterior, centers),
    )


def _drawn(centers: np.ndarray, size: int, generator: np.random.Generator) -> InMemory:
    labels = generator.integers(len(centers), size=size, dtype=np.int32)
    noise = generator.standard_normal((size, centers.shape[1]))
    return InMemory((centers[labels] + noise).astype(np.float32), labels)


def _posterior(centers: np.ndarray, inputs: Any) -> Array:
    inputs = at_least_float32(jnp.asarray(inputs))
    count = centers.shape[1]
    if inputs.shape[-1:] != (count,):
        raise ValueError(f"posterior: inputs must have {count} dimensions, got {inputs.shape}.")
    places = jnp.asarray(centers, dtype=inputs.dtype)
    scores = jnp.einsum("...d,kd->...k", inputs, places, precision=jax.lax.Precision.HIGHEST)
    halves = jnp.sum(jnp.square(places), axis=-1) / 2
    return jax.nn.log_softmax(scores - jnp.expand_dims(halves, range(scores.ndim - 1)))
