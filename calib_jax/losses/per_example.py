"""Options and functions with one number for each example."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core.arrays import as_array


def per_example(name: str, value: Any, like: jax.Array) -> Any:
    """Convert an option with one number for each example to an array of the type of the loss.

    A number becomes a Python float, or an array of this type, so that it does not widen the loss.

    Args:
      name: the name of the option, for the error message.
      value: a number, or numbers `[*batch]`.
      like: an array `[*batch]` of the type in which the loss is computed.
    """
    value = as_array(value)
    shape = np.shape(value)
    if not shape:
        return value.astype(like.dtype) if hasattr(value, "astype") else value
    if shape != like.shape:
        each = f" or have shape {like.shape}, one for each example" if like.ndim else ""
        raise ValueError(f"{name} must be a number{each}, got {shape}.")
    return jnp.asarray(value, like.dtype)


def one_per_example(name: str, values: Any, shape: tuple[int, ...]) -> None:
    """Validate that a function returned one value per example; other shapes would broadcast."""
    if np.shape(values) != shape:
        raise ValueError(
            f"{name} must return one value for each example, shape {shape}, got {np.shape(values)}:"
            " sum over the classes alone, and leave the mean over the examples to the training."
        )
