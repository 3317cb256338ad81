"""A convolution whose gradients are fast on a CPU inside a compiled loop.

An epoch is one compiled loop over steps. Inside such a loop, XLA's CPU compiler chooses a layout
for the gradients of a convolution for which it only has a slow general routine: the step takes at
least 20 times as long as outside a loop. This module writes the gradients as convolutions in the
layout with a fast routine (NHWC, HWIO), with explicit transpositions, so that they cost the same
inside and outside a loop.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core.numerics import wide
from calib_jax.core.types import Array
from calib_jax.models.contract import precision_of_products

# The number of examples in each part of a kernel gradient. For the shapes of a small ResNet at
# batch 128, parts of 8 to 32 examples take a third to a half of the time of the whole batch.
_PART = 16

_Pads = tuple[tuple[int, int], ...]


def convolve(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    precision: Any = None,
) -> Array:
    """Convolve as `jax.lax.conv_general_dilated` does, for `nn.Conv(conv_general_dilated=...)`.

    Values and gradients agree up to rounding. On other backends than the CPU, and with groups, this
    calls `jax.lax.conv_general_dilated`. On the CPU it does not support forward mode (`jax.jvp`).
    `jax.grad` works, and so do transformations of it, such as Hessian-vector products.

    Args:
      lhs: inputs, `[batch, *positions, channels]`.
      rhs: kernel, `[*positions, channels, features]`.
      window_strides, padding, rhs_dilation, feature_group_count, precision: as
        `jax.lax.conv_general_dilated` takes them.
      lhs_dilation, dimension_numbers: as `flax.linen.Conv` passes them: inputs are not dilated, and
        channels are the last axis.
    """
    rank = lhs.ndim - 2
    precision = precision or precision_of_products()
    if jax.default_backend() != "cpu" or feature_group_count != 1:
        return lax.conv_general_dilated(
            lhs,
            rhs,
            window_strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            dimension_numbers,
            feature_group_count,
            precision=precision,
        )
    dilation = (1,) * rank if rhs_dilation is None else tuple(rhs_dilation)
    strides = tuple(window_strides)
    if isinstance(padding, str):
        window = _dilated(rhs.shape[:rank], dilation)
        padding = lax.padtype_to_pads(lhs.shape[1:-1], window, strides, padding)
    pads = tuple((int(low), int(high)) for low, high in padding)
    return _convolve(lhs, rhs, strides, pads, dilation, precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _convolve(
    x: Array, kernel: Array, strides: tuple[int, ...], pads: _Pads, dilation: Any, precision: Any
) -> Array:
    return _canonical(x, kernel, strides, pads, (1,) * len(strides), dilation, precision)


def _forward(
    x: Array, kernel: Array, strides: Any, pads: Any, dilation: Any, precision: Any
) -> tuple[Array, tuple[Array, Array]]:
    # Call `_canonical` and not `_convolve`, whose custom rule would block `jax.jvp` of `jax.grad`.
    ones = (1,) * len(strides)
    return _canonical(x, kernel, strides, pads, ones, dilation, precision), (x, kernel)


def _backward(
    strides: tuple[int, ...],
    pads: _Pads,
    dilation: tuple[int, ...],
    precision: Any,
    saved: tuple[Array, Array],
    gradient: Array,
) -> tuple[Array, Array]:
    x, kernel = saved
    rank = len(strides)
    ones = (1,) * rank
    positions = tuple(range(rank))
    sizes = x.shape[1:-1]
    reach = _dilated(kernel.shape[:rank], dilation)
    spread = _dilated(gradient.shape[1:-1], strides)

    # The gradient of the input is a convolution of the dilated output gradient with the kernel,
    # flipped along positions and with channels and features swapped.
    turned = jnp.transpose(jnp.flip(kernel, positions), (*positions, rank + 1, rank))
    back = tuple(
        (window - 1 - low, size + low - covered)
        for window, low, size, covered in zip(reach, _lows(pads), sizes, spread, strict=True)
    )
    to_x = _canonical(gradient, turned, ones, back, strides, dilation, precision)

    # The gradient of the kernel correlates inputs with output gradients over batch and positions:
    # a convolution with the batch and channel axes swapped.
    around = tuple(
        (low, window + covered - 1 - size - low)
        for window, low, size, covered in zip(reach, _lows(pads), sizes, spread, strict=True)
    )

    def correlate(part: tuple[Array, Array]) -> Array:
        turned = jnp.transpose(part[0], (rank + 1, *(1 + i for i in positions), 0))
        as_kernel = jnp.transpose(part[1], (*(1 + i for i in positions), 0, rank + 1))
        gradient = _canonical(turned, as_kernel, dilation, around, ones, strides, precision)
        return jnp.transpose(gradient, (*(1 + i for i in positions), 0, rank + 1))

    return to_x, _sum_over_parts(correlate, (x, gradient)).astype(kernel.dtype)


def _sum_over_parts(function: Callable[[Any], Array], arrays: tuple[Array, Array]) -> Array:
    """Sum a function over parts of the batch that fit into the cache."""
    parts, rest = divmod(arrays[0].shape[0], _PART)
    if parts < 2:
        return function(arrays)

    def total_of(part: Any) -> Array:
        return function(part).astype(wide(arrays[0].dtype))

    end = parts * _PART
    total = total_of(jax.tree.map(lambda a: a[:_PART], arrays))
    if rest:
        total = total + total_of(jax.tree.map(lambda a: a[end:], arrays))
    # Use a loop, so that the program does not grow with the batch.
    between = jax.tree.map(lambda a: a[_PART:end].reshape(-1, _PART, *a.shape[1:]), arrays)
    return lax.scan(lambda sofar, part: (sofar + total_of(part), None), total, between)[0]


_convolve.defvjp(_forward, _backward)


def _canonical(
    x: Array, kernel: Array, strides: Any, pads: Any, spread: Any, dilation: Any, precision: Any
) -> Array:
    return lax.conv_general_dilated(
        x, kernel, strides, pads, spread, dilation, _channels_last(x.ndim - 2), precision=precision
    )


def _channels_last(rank: int) -> lax.ConvDimensionNumbers:
    positions = tuple(range(rank))
    outside = (0, rank + 1, *(1 + i for i in positions))
    return lax.ConvDimensionNumbers(outside, (rank + 1, rank, *positions), outside)


def _dilated(sizes: Sequence[int], by: Sequence[int]) -> tuple[int, ...]:
    return tuple((size - 1) * step + 1 for size, step in zip(sizes, by, strict=True))


def _lows(pads: _Pads) -> tuple[int, ...]:
    return tuple(low for low, _ in pads)
