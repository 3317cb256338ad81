"""Stated confidences: pairs `confidence`, `correct` in place of logits and labels.

Answers of a language model, a judge, or any score that is a probability of being right have no
logits. Inside the library, a stated confidence is one column `[*batch, 1]` in place of the logits,
and the label is 1 where the answer is right. `two_classes` are the logits of that event.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from calib_jax.core.display import short_repr
from calib_jax.core.inputs.arrays import as_numbers, concrete
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.types import Array, ArrayLike, Logits


@dataclasses.dataclass(frozen=True)
class Stated:
    """Confidences that were stated for answers, and whether the answers are right.

    It stands in place of the logits of every metric, and of every function of `inference` that
    needs no classes. A metric then reads the confidence as the probability that the answer is
    right, also below 1/2: the ECE of answers stated at .3, of which 10 % are right, is .2. The
    Brier score is the mean of (confidence - correct)^2, half of that of two classes.

    Attributes:
      confidence: `[*batch]`, in [0, 1].
      correct: `[*batch]`, True or 1 where the answer is right, else False or 0.

    >>> from calib_jax import metrics
    >>> stated = metrics.Stated([0.9, 0.9, 0.3, 0.3], [True, True, False, False])
    >>> metrics.ece(stated)
    Array(0.2, dtype=float32)
    >>> metrics.brier(stated)
    Array(0.05, dtype=float32)
    """

    confidence: ArrayLike
    correct: ArrayLike

    __repr__ = short_repr

    def columns(self, name: str) -> tuple[Float[Array, "*batch 1"], Array]:
        """Validate the pair; return the confidences as one column, and the labels.

        Args:
          name: the name of the caller, for error messages.
        """
        confidence, correct = (
            jnp.asarray(as_numbers(name, what, values))
            for what, values in (("confidence", self.confidence), ("correct", self.correct))
        )
        if confidence.shape != correct.shape or confidence.ndim == 0:
            raise ValueError(
                f"{name}: confidence and correct need one value for each answer, got the shapes"
                f" {confidence.shape} and {correct.shape}."
            )
        if concrete(confidence, correct):
            _refuse_values(name, np.asarray(confidence), np.asarray(correct))
        return at_least_float32(confidence)[..., None], correct.astype(jnp.int32)


def _refuse_values(name: str, confidence: np.ndarray, correct: np.ndarray) -> None:
    outside = ~((confidence >= 0) & (confidence <= 1))
    if np.any(outside):
        one = confidence[outside].flat[0]
        hint = ": divide percent by 100" if np.all((confidence >= 0) & (confidence <= 100)) else ""
        raise ValueError(
            f"{name}: {np.sum(outside)} of {confidence.size} confidences are outside [0, 1],"
            f" {one:g} is one{hint}."
        )
    neither = (correct != 0) & (correct != 1)
    if np.any(neither):
        raise ValueError(
            f"{name}: correct must be True or False, 1 or 0, got {correct[neither].flat[0]:g}."
        )


def rows_of(name: str, logits: Any, labels: Any) -> tuple[Any, Any]:
    """Return the column and the labels of a `Stated`; return other logits and labels unchanged."""
    if isinstance(logits, Stated):
        if labels is not None:
            raise TypeError(f"{name}: a Stated holds its labels: leave out labels.")
        return logits.columns(name)
    if labels is None:
        raise TypeError(f"{name}: logits need labels, or give a metrics.Stated.")
    return logits, labels


def is_stated(logits: Any) -> bool:
    """Check whether logits are one column of stated confidences."""
    return bool(logits.shape[-1] == 1)


def two_classes(logits: Logits) -> Float[Array, "*batch two_or_more"]:
    """Convert one column c to the logits log(1 - c) and log c of wrong and right; else no-op.

    NaN where c is outside [0, 1].
    """
    if not is_stated(logits):
        return logits
    confidence = at_least_float32(logits)
    return jnp.concatenate([jnp.log1p(-confidence), jnp.log(confidence)], axis=-1)


jax.tree_util.register_dataclass(Stated)
