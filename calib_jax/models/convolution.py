"""A convolution whose gradients are fast on a CPU inside a compiled loop as well.

An epoch is one compiled loop over steps. Inside such a loop XLA's compiler for CPUs is free to
choose the layout of the arrays that the gradients of a convolution are made of, and chooses one
for which it has only a slow general routine: 20 times slower, and more, than the same step outside.
Written as convolutions in the one layout that it has a fast routine for (NHWC, HWIO), with the
transpositions spelt out, the gradients cost the same inside and outside.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from calib_jax.core.types import Array

# Examples whose share of a kernel's gradient is computed at once. For the shapes of a small
# ResNet at batch 128, parts of 8 to 32 take a third to a half of the time of the whole.
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

    Values and gradients are the same but for rounding. On other backends than the CPU, with
    groups, with a dilated input, or in another layout than channels last, it is that function.
    On the CPU it has no forward mode (`jax.jvp`); `jax.grad` and what is built on it, Hessian
    times vector included, work.

    Args:
      lhs: inputs, `[batch, *positions, channels]`.
      rhs: kernel, `[*positions, channels, features]`.
      window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
        feature_group_count, precision: as `jax.lax.conv_general_dilated` takes them.
    """
    rank = lhs.ndim - 2
    plain = functools.partial(
        lax.conv_general_dilated,
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
    channels_last = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers) == (
        _channels_last(rank)
    )
    dilated = lhs_dilation is not None and any(by != 1 for by in lhs_dilation)
    if jax.default_backend() != "cpu" or feature_group_count != 1 or dilated or not channels_last:
        return plain()
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
    # Not the function with a rule again, so that forward mode over `jax.grad` finds none.
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

    # Every output took a window of inputs: the gradient of an input is what comes back from the
    # windows it was in, which is a convolution of the spread-out gradient with the turned kernel.
    turned = jnp.transpose(jnp.flip(kernel, positions), (*positions, rank + 1, rank))
    back = tuple(
        (window - 1 - low, size + low - covered)
        for window, low, size, covered in zip(reach, _lows(pads), sizes, spread, strict=True)
    )
    to_x = _canonical(gradient, turned, ones, back, strides, dilation, precision)

    # The gradient of the kernel correlates inputs with gradients over batch and positions: a
    # convolution whose batch are the channels and whose channels are the batch.
    around = tuple(
        (low, window + covered - 1 - size - low)
        for window, low, size, covered in zip(reach, _lows(pads), sizes, spread, strict=True)
    )

    def correlate(part: tuple[Array, Array]) -> Array:
        turned = jnp.transpose(part[0], (rank + 1, *(1 + i for i in positions), 0))
        as_kernel = jnp.transpose(part[1], (*(1 + i for i in positions), 0, rank + 1))
        found = _canonical(turned, as_kernel, dilation, around, ones, strides, precision)
        return jnp.transpose(found, (*(1 + i for i in positions), 0, rank + 1))

    return to_x, _sum_over_parts(correlate, (x, gradient)).astype(kernel.dtype)


def _sum_over_parts(function: Callable[[Any], Array], arrays: tuple[Array, Array]) -> Array:
    """Sum a function over parts of the batch, each small enough for the cache."""
    parts, rest = divmod(arrays[0].shape[0], _PART)
    if parts < 2:
        return function(arrays)
    wide = jnp.promote_types(arrays[0].dtype, jnp.float32)
    end = parts * _PART
    total = function(jax.tree.map(lambda a: a[:_PART], arrays)).astype(wide)
    if rest:
        total = total + function(jax.tree.map(lambda a: a[end:], arrays))
    # A loop, so that a large batch is no large program.
    between = jax.tree.map(lambda a: a[_PART:end].reshape(-1, _PART, *a.shape[1:]), arrays)
    return lax.scan(lambda sofar, part: (sofar + function(part), None), total, between)[0]


_convolve.defvjp(_forward, _backward)


def _canonical(
    x: Array, kernel: Array, strides: Any, pads: Any, spread: Any, dilation: Any, precision: Any
) -> Array:
    return lax.conv_general_dilated(
        x,
        kernel,
        strides,
        pads,
        spread,
        dilation,
        _channels_last(x.ndim - 2),
        precision=precision,
    )


def _channels_last(rank: int) -> lax.ConvDimensionNumbers:
    positions = tuple(range(rank))
    outside = (0, rank + 1, *(1 + i for i in positions))
    return lax.ConvDimensionNumbers(outside, (rank + 1, rank, *positions), outside)


def _dilated(sizes: Sequence[int], by: Sequence[int]) -> tuple[int, ...]:
    return tuple((size - 1) * step + 1 for size, step in zip(sizes, by, strict=True))


def _lows(pads: _Pads) -> tuple[int, ...]:
    return tuple(low for low, _ in pads)
