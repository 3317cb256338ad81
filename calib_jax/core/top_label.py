"""The confidence and the correctness of the prediction, alone or together with cross-entropy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from calib_jax.core import numerics
from calib_jax.core.numerics import of_margin, smallest, valid
from calib_jax.core.types import Array, Labels, Logits, PerClass, PerExample


class TopLabel(NamedTuple):
    """Cross-entropy and the prediction, from one pass over the classes.

    Attributes:
      loss: -log p_y.
      confidence: the largest probability; the same for equal rows whatever their labels.
      hit: 1 if the prediction, the first of the largest classes, is right and else 0.
      gaps: how far each logit is below the largest, in float32 or float64.
      odds_against: the other classes' probability over that of the prediction, without gradient;
        it orders predictions whose confidence rounds to 1.
    """

    loss: PerExample
    confidence: PerExample
    hit: PerExample
    gaps: PerClass
    odds_against: PerExample


def cross_entropy_and_top_label(logits: Logits, labels: Labels) -> TopLabel:
    r"""Compute cross-entropy and the prediction, with gradients of loss, confidence and gaps.

    With t the prediction and $S = \sum_{k \ne t} e^{z_k - z_t}$, the confidence is
    $c = 1 / (1 + S)$. All gradients are multiples of the probabilities, except at t and y:

    $$\frac{\partial c}{\partial z_k} = -c\, p_k \ (k \ne t), \qquad
      \frac{\partial c}{\partial z_t} = c^2 S,$$

    so that one array of classes is written forward and one backward, whatever is computed from
    the fields. A label out of range makes the row NaN.
    """
    loss, confidence, hit, gaps, odds_against = _top_label(logits, labels)
    # Multiplying by NaN sends NaN gradients back to the row; multiplying by 1 changes no bit.
    mark = jnp.where(valid(labels, gaps.shape[-1]), 1, jnp.nan).astype(gaps.dtype)
    confidence *= mark
    hit = jnp.where(jnp.isnan(confidence), jnp.nan, hit)
    return TopLabel(loss * mark, confidence, hit, gaps, odds_against)


@jax.custom_vjp
def _top_label(logits: Logits, labels: Labels) -> tuple[Array, ...]:
    return _forward(logits, labels)[0]


def _forward(logits: Logits, labels: Labels) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    rows = numerics.at_least_float32(logits)
    top = jnp.max(rows, axis=-1)
    constant = lax.stop_gradient(top)
    spread = jnp.exp(rows - constant[..., None])
    predicted = numerics.argmax_by_spread(rows, constant, spread)
    largest, true = (numerics.true_class(rows, of) - constant for of in (predicted, labels))
    others = numerics.with_true_class(spread, predicted, 0.0)
    rest_of_top, one = jnp.sum(others, axis=-1), jnp.exp(largest)
    hit = predicted == labels
    # A wrong class has at most the probability of the prediction, so the difference is exact.
    wrong = one + (rest_of_top - jnp.exp(jnp.where(hit, 0, true)))
    rest_of_true = jnp.where(hit, jnp.maximum(rest_of_top, smallest(rows.dtype)), wrong)
    log_true, _, _, rest = of_margin(true - jnp.log(rest_of_true))
    gaps = numerics.unshared(top)[..., None] - rows
    confidence = one / (one + rest_of_top)
    outputs = (-log_true, confidence, hit.astype(rows.dtype), gaps, rest_of_top / one)
    return outputs, (others, one, rest_of_top, rest, predicted, labels)


def _top_label_forward(logits: Any, labels: Any) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    outputs, residuals = _forward(logits.value, labels.value)
    return outputs, (*residuals, jnp.zeros((0,), logits.value.dtype))


def _top_label_backward(
    residuals: tuple[Array, ...], cotangents: tuple[Any, ...]
) -> tuple[Array, None]:
    others, one, rest_of_top, rest, predicted, labels, like_logits = residuals
    to_loss, to_confidence, _, to_gaps, _ = (
        None if isinstance(cotangent, SymbolicZero) else cotangent for cotangent in cotangents
    )
    total = one + rest_of_top
    along, at_top = jnp.zeros_like(total), jnp.zeros_like(total)
    if to_loss is not None:
        along += to_loss / total
        at_top += to_loss * jnp.where(predicted == labels, -rest, one / total)
    if to_confidence is not None:
        along -= to_confidence * one / jnp.square(total)
        at_top += to_confidence * one * rest_of_top / jnp.square(total)
    gradient = others * along[..., None]
    if to_gaps is not None:
        gradient -= to_gaps
        # The sum of `to_gaps`; a sum of the gradient saves an array of classes.
        at_top += along * rest_of_top - jnp.sum(gradient, axis=-1)
    gradient = numerics.add_to_true_class(gradient, predicted, at_top)
    if to_loss is not None:
        at_label = jnp.where(predicted == labels, 0, -to_loss)
        gradient = numerics.add_to_true_class(gradient, labels, at_label)
    return gradient.astype(like_logits.dtype), None


_top_label.defvjp(_top_label_forward, _top_label_backward, symbolic_zeros=True)
