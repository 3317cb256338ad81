"""Batch normalisation with masks for padding, over one or several devices."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float

from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, AxisName
from calib_jax.models.contract import DType


class BatchNorm(nn.Module):
    r"""Normalise every channel by the mean and variance of the real examples of the batch.

    $$y = \gamma \, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta, \qquad
      \mu = \frac{1}{n} \sum_i m_i x_i, \quad \sigma^2 = \frac{1}{n} \sum_i m_i (x_i - \mu)^2,
      \quad n = \sum_i m_i$$

    with mask m, summed over examples and positions. With `axis_name`, sums and counts (not means)
    are reduced over the devices, so the result equals the result of one device with all examples,
    even if the devices hold unequal numbers of real examples. The variance sums squared deviations
    from the mean, because the difference of two large sums would lose precision: each device sums
    those from its own mean, and one exchange gives all devices the means and sums of all. Training
    updates `mean` and `var` in the collection `batch_stats`; `train=False` normalises by these
    instead of the batch statistics. A batch of only padding leaves them unchanged.

    Attributes:
      axis_name: the device axis over which statistics are summed; ignored during initialisation.
      momentum: the weight of the old running statistics at each step (PyTorch: 1 - momentum).
      epsilon: added to the variance.
      unbiased: whether the running variance is divided by n - 1, as in PyTorch, or by n. The
        batch itself is always normalised by n. With fewer than two values the unbiased variance
        is undefined, and the running variance is not updated.
      dtype: the dtype of the result. Parameters and statistics are float32, or float64 if `dtype`
        is float64.
      scale_init: the initialiser of $\gamma$.

    References:
      Ioffe and Szegedy 2015, Batch Normalization, algorithms 1 and 2.
    """

    axis_name: AxisName = None
    momentum: float = 0.9
    epsilon: float = 1e-5
    unbiased: bool = True
    dtype: DType = "float32"
    scale_init: nn.initializers.Initializer = nn.initializers.ones_init()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch channels"],
        *,
        train: bool,
        mask: Bool[Array, "*examples"] | None = None,
    ) -> Float[Array, "*batch channels"]:
        """Normalise the inputs and, while training, update the running statistics.

        Args:
          x: the inputs, with channels as the last axis.
          train: whether to use the batch statistics instead of the running ones.
          mask: True for real values, False for padding. The shape equals one or more leading
            axes of `x`.
        """
        precise = wide(self.dtype)
        channels = x.shape[-1]
        scale = self.param("scale", self.scale_init, (channels,), precise)
        bias = self.param("bias", nn.initializers.zeros_init(), (channels,), precise)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,), precise)
        running_var = self.variable("batch_stats", "var", jnp.ones, (channels,), precise)

        def per_channel(values: Array) -> Array:
            return values.reshape((1,) * (x.ndim - 1) + (-1,))

        def scaled(deviation: Array, var: Array) -> Array:
            factor = scale * lax.rsqrt(var + self.epsilon)
            return (deviation * per_channel(factor) + per_channel(bias)).astype(self.dtype)

        values = x.astype(precise)
        if not train:
            return scaled(values - per_channel(running_mean.value), running_var.value)

        present = None if mask is None else mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
        axis_name = None if self.is_initializing() else self.axis_name
        axes = tuple(range(x.ndim - 1))

        def real(values: Array) -> Array:
            return values if present is None else jnp.where(present, values, 0)

        if mask is None:
            count = jnp.asarray(math.prod(x.shape[:-1]), precise)
        else:
            count = jnp.sum(mask, dtype=precise) * math.prod(x.shape[mask.ndim : -1])
        mean = jnp.sum(real(values), axes) / jnp.maximum(count, 1)
        # The deviation of padding is 0, so its result is the bias and finite for any input.
        deviation = real(values - per_channel(mean))
        square = jnp.sum(jnp.square(deviation), axes)
        if axis_name is not None:  # one exchange, in which each device fills a row of its own
            own = jnp.arange(lax.axis_size(axis_name)) == lax.axis_index(axis_name)
            parts = jnp.broadcast_to(count, mean.shape), mean, square
            rows = [jnp.where(own[:, None], part[None], 0) for part in parts]
            counts, means, squares = lax.psum(rows, axis_name)
            count = jnp.sum(counts[:, 0])
            away = jnp.sum(counts * (means - means[:1]), 0) / jnp.maximum(count, 1)
            mean = means[0] + away  # on one device that mean, to the last bit
            square = jnp.sum(squares + counts * jnp.square(means - mean[None]), 0)
            deviation = real(values - per_channel(mean))
        var = square / jnp.maximum(count, 1)

        if not self.is_initializing():
            known = var * (count / jnp.maximum(count - 1, 1)) if self.unbiased else var
            enough = count > (1 if self.unbiased else 0)
            for running, latest, usable in (
                (running_mean, mean, count > 0),
                (running_var, known, enough),
            ):
                moved = self.momentum * running.value + (1 - self.momentum) * latest
                running.value = lax.stop_gradient(jnp.where(usable, moved, running.value))
        return scaled(deviation, var)
