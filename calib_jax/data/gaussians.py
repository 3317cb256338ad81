r"""A mixture of Gaussians: the one data set whose true probabilities are known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.types import Array
from calib_jax.data.dataset import Dataset, register
from calib_jax.data.splits import in_parts, split_sizes

__all__ = ["gaussians"]


@register("gaussians")
def gaussians(
    *,
    num_classes: int = 2,
    dimensions: int = 2,
    magnitude: float = 3.0,
    means: str = "random",
    training_size: int = 20_000,
    validation_size: int = 5_000,
    test_size: int = 20_000,
    seed: int = 0,
) -> Dataset:
    r"""Draw examples of K unit Gaussians with equal shares.

    $$x \sim \mathcal N(\mu_y, I), \qquad
      p(y \mid x) = \operatorname{softmax}_y \left( -\tfrac12 \|x - \mu_y\|^2 \right)$$

    `log_posterior` of the data set is $\log p(y \mid x)$.

    Args:
      num_classes: K.
      dimensions: of x.
      magnitude: the means are uniform in [-magnitude, magnitude] along each axis.
      means: "random", or "pair": two classes at $\pm(m/2, ..., m/2)$ with m the magnitude.
      training_size, validation_size, test_size: how many examples.
      seed: of means and examples.

    References:
      Lin et al. 2025, released notebooks: K = 2, magnitude 3, and the pair at (1.5, 1.5).

    >>> from calib_jax import data
    >>> pair = data.gaussians(means="pair", training_size=100)
    >>> jnp.exp(pair.log_posterior(jnp.zeros((1, 2))))
    Array([[0.5, 0.5]], dtype=float32)
    """
    checks.at_least("num_classes", num_classes, 2)
    checks.at_least("dimensions", dimensions, 1)
    checks.at_least("magnitude", magnitude, 0)
    checks.one_of("means", means, ("random", "pair"))
    random = np.random.default_rng(seed)
    centres = random.uniform(-magnitude, magnitude, (num_classes, dimensions))
    if means == "pair":
        if num_classes != 2:
            raise ValueError(f"means='pair' has two classes, not num_classes={num_classes}.")
        centres = np.full((2, dimensions), magnitude / 2) * np.array([[1], [-1]])
    total = training_size + validation_size + test_size
    parts = split_sizes(
        total, training_size=training_size, validation_size=validation_size, test_size=test_size
    )
    labels = random.integers(num_classes, size=total).astype(np.int32)
    inputs = centres[labels] + random.standard_normal((total, dimensions))
    train, validation, test = in_parts(inputs.astype(np.float32), labels, parts)

    def log_posterior(x: Array) -> Array:
        squares = jnp.sum((x[..., None, :] - jnp.asarray(centres, x.dtype)) ** 2, axis=-1)
        return jax.nn.log_softmax(-squares / 2)

    return Dataset(
        name="gaussians",
        num_classes=num_classes,
        train=train,
        validation=validation,
        test=test,
        class_names=tuple(map(str, range(num_classes))),
        log_posterior=log_posterior,
        description=(
            f"{num_classes} unit Gaussians in {dimensions} dimensions: {training_size:,} examples"
            f" for training, {validation_size:,} for validation, {test_size:,} for testing, seed"
            f" {seed}."
        ),
    )
