r"""The prepared view of the probabilities, and the custom derivative of most losses.

Write $y$ for the true class and

$$m = z_y - \log \sum_{k \ne y} e^{z_k}, \qquad
  \log p_y = -\log(1 + e^{-m}), \qquad \log(1 - p_y) = -\log(1 + e^{m}), \qquad
  r_k = \frac{p_k}{1 - p_y} = \frac{e^{z_k}}{\sum_{j \ne y} e^{z_j}} \ (k \ne y), \ r_y = 0.$$

The margin $m$ determines every function of $p_y$ to full relative precision at both ends. The
shares $r$ describe how the rest of the probability is distributed. Their derivatives are

$$\frac{\partial m}{\partial z} = q - r, \qquad
  \sum_k c_k \frac{\partial r_k}{\partial z_j} = r_j \Bigl(c_j - \sum_k c_k r_k\Bigr),$$

with q the one-hot label, so the backward pass needs the shares and no second softmax.
"""

import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Bool, Float

from calib_jax.core import numerics
from calib_jax.core.types import Array, Labels, Logits, Number, PerClass, PerExample


class Probabilities(NamedTuple):
    r"""The input of an uncertainty score; fields it does not use cost nothing under `jit`.

    Attributes:
      log_true: $\log p_y$; at most -0.0.
      log_rest: $\log(1 - p_y)$; finite for finite logits.
      log_others: $\log \sum_{k \ne y} e^{z_k}$ minus the offset; for the other classes,
        `(logits - offset) - log_others` is the logarithm of `share`.
      share: $p_k / (1 - p_y)$, the distribution over the other classes; 0 at y.
      share_squares: $\sum_k r_k^2$ of the shares, which Brier scores need. As a field, it needs
        no extra pass over the classes for the derivative. It is 0 where $1 - p_y < 10^{-19}$
        (float32).
      share_entropy: $-\sum_k r_k \log r_k$ of the shares, a field for the same reason.
      logits: the logits themselves, in float32 or float64.
      offset: the largest logit, a constant for gradients. It is subtracted before summing,
        because sums would round away next to a large number shared by all logits.
      labels: the true classes.
    """

    log_true: PerExample
    log_rest: PerExample
    log_others: PerExample
    share: PerClass
    share_squares: PerExample
    share_entropy: PerExample
    logits: Logits
    offset: PerExample
    labels: Labels

    @property
    def true(self) -> PerExample:
        """$p_y$, at least 1e-36 (float32), so that its powers have finite gradients."""
        return jnp.exp(jnp.maximum(self.log_true, math.log(numerics.smallest(self.log_true.dtype))))

    @property
    def rest(self) -> PerExample:
        """$1 - p_y$, precise even where $p_y$ rounds to 1."""
        return jnp.exp(self.log_rest)

    @property
    def others(self) -> PerClass:
        """$p$ with 0 at y."""
        return self.share * self.rest[..., None]

    @property
    def log_share(self) -> PerClass:
        """The logarithm of `share`, whose powers have finite gradients; -inf at y."""
        log_share = (self.logits - self.offset[..., None]) - self.log_others[..., None]
        return numerics.with_true_class(log_share, self.labels, -jnp.inf)

    @property
    def log_total(self) -> PerExample:
        r"""$\log \sum_k e^{z_k}$ over all classes, minus the offset."""
        return self.log_others - self.log_rest

    @property
    def confidence(self) -> PerExample:
        """The largest probability, equal for all labels; NaN for a label out of range."""
        return cross_entropy_and_top_label(self.logits, self.labels).confidence

    @property
    def correct(self) -> Bool[Array, "*batch"]:
        """Whether the true class is the prediction: the first of the largest logits."""
        return numerics.first_argmax(self.logits) == self.labels


def prepare(logits: Logits, labels: Labels) -> Probabilities:
    """Compute the view of the probabilities; gradients flow through every field."""
    return cross_entropy_and_view(logits, labels)[1]


def cross_entropy_and_view(
    logits: Logits, labels: Labels, temperature: Number | None = None
) -> tuple[PerExample, Probabilities]:
    r"""Compute $-\log p_y$ and the view that an uncertainty score takes.

    With a temperature, the cross-entropy and the view are those of softmax(logits / temperature).
    """
    if temperature is None:
        largest = lax.stop_gradient(jnp.max(numerics.at_least_float32(logits), axis=-1))
    else:
        logits = numerics.tempered(logits, temperature)
        largest = jnp.zeros_like(logits[..., 0])  # it was subtracted
    outputs: Any = (*_view(logits, (labels, largest)), largest, labels)
    return outputs[0], Probabilities(*outputs[1:])


def _with_gradient(forward: Any, backward: Any) -> Any:
    """Build a function of logits and constants from its outputs with residuals, and its gradient.

    `backward` takes the residuals and one cotangent for each output: None for an output that is not
    used, or used as a constant, and then costs nothing.
    """

    def of_primals(logits: Any, constants: Any) -> tuple[Any, Any]:
        constants = jax.tree.map(lambda each: each.value, constants)
        outputs, residuals = forward(logits.value, constants)
        return outputs, (residuals, jnp.zeros((0,), logits.value.dtype))

    def of_cotangents(residuals: Any, cotangents: Any) -> tuple[Array, None]:
        residuals, like_logits = residuals
        given = (None if isinstance(each, SymbolicZero) else each for each in cotangents)
        return backward(residuals, *given).astype(like_logits.dtype), None

    function = jax.custom_vjp(lambda logits, constants: forward(logits, constants)[0])
    function.defvjp(of_primals, of_cotangents, symbolic_zeros=True)
    return function


_Arrays: TypeAlias = tuple[Array, ...]


def _view_forward(logits: Logits, constants: tuple[Labels, PerExample]) -> tuple[_Arrays, _Arrays]:
    labels, top = constants
    rows = numerics.at_least_float32(logits)
    spread = numerics.with_true_class(jnp.exp(rows - top[..., None]), labels, 0.0)
    # Where the true class leads by more than 84 nats (float32; 705 in float64) the others
    # underflow. The margin is clipped there, so 1 - p_y is at least the smallest number whose
    # powers have finite gradients, and uncertainty scores need no special case.
    total = jnp.maximum(jnp.sum(spread, axis=-1), numerics.smallest(rows.dtype))
    log_total = jnp.log(total)
    # Subtract the largest logit first: next to huge logits a sum would round away.
    margin = (numerics.true_class(rows, labels) - top) - log_total
    margin = jnp.where(numerics.valid(labels, rows.shape[-1]), margin, jnp.nan)

    log_true, log_rest, true, rest = numerics.of_margin(margin)
    # The derivative of a quotient squares its divisor, which would underflow: divide by roots.
    root = jnp.sqrt(total)
    share = spread * jnp.square(1 / root)[..., None]
    # The squares, including the square of the total, underflow sooner than the total.
    scale = jnp.maximum(total, math.sqrt(numerics.smallest(rows.dtype)))
    share_squares = jnp.sum(jnp.square(spread), axis=-1) / scale / scale
    mean = jnp.sum(spread * below_top(rows, numerics.unshared(top)[..., None]), axis=-1)
    share_entropy = jnp.maximum(log_total - mean / root / root, 0)
    outputs = (-log_true, log_true, log_rest, log_total, share, share_squares, share_entropy, rows)
    residuals = (rest, true, spread, total, share_squares, share_entropy, rows, top, labels)
    return outputs, residuals


def below_top(logits: Float[Array, "*entries"], top: Float[Array, "*#entries"]) -> Array:
    """Compute how far each logit is from the largest of its row, finite also for a logit of -inf.

    On a CPU, XLA computes a maximum within the sum that reads it, but not a `where`.
    """
    # Finite, too, after a product with a cotangent; the exponential of less is 0 as well.
    lowest = -math.sqrt(float(jnp.finfo(logits.dtype).max))
    return jnp.maximum(logits - top, lowest)


def _view_backward(residuals: _Arrays, *cotangents: Any) -> Array:
    rest, true, spread, total, share_squares, share_entropy, rows, top, labels = residuals
    to_loss, to_true, to_rest, to_others, to_share, to_squares, to_entropy, to_logits = cotangents
    to_margin = jnp.zeros_like(rest)
    if to_loss is not None:
        to_margin -= to_loss * rest
    if to_true is not None:
        to_margin += to_true * rest
    if to_rest is not None:
        to_margin -= to_rest * true
    # The gradient of the other classes is proportional to their shares ...
    to_log_others = -to_margin if to_others is None else to_others - to_margin
    share = spread * jnp.square(1 / jnp.sqrt(total))[..., None]
    along = jnp.zeros((), rows.dtype)
    if to_squares is not None:  # 0 where one class has all of the share of others
        along += 2 * to_squares[..., None] * (share - share_squares[..., None])
    if to_entropy is not None:
        to_log_others -= to_entropy * share_entropy
        log_share = below_top(rows, top[..., None]) - jnp.log(total)[..., None]
        along -= to_entropy[..., None] * log_share
    if to_share is not None:
        # The root of a share has infinite slope at 0, where the slope of the share is 0.
        to_share = jnp.where(spread > 0, to_share, 0)
        to_log_others -= jnp.sum(to_share * share, axis=-1)
        along += to_share
    gradient = share * (to_log_others[..., None] + along)
    # ... plus the direct gradient if the uncertainty score uses single logits.
    if to_logits is not None:
        gradient += to_logits
    return numerics.add_to_true_class(gradient, labels, to_margin)


_view = _with_gradient(_view_forward, _view_backward)


# --------------------------------------------------------------------------------------------
# The confidence and the correctness of the prediction, together with cross-entropy.


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
    mark = jnp.where(numerics.valid(labels, gaps.shape[-1]), 1, jnp.nan).astype(gaps.dtype)
    confidence *= mark
    hit = jnp.where(jnp.isnan(confidence), jnp.nan, hit)
    return TopLabel(loss * mark, confidence, hit, gaps, odds_against)


def _top_forward(logits: Logits, labels: Labels) -> tuple[_Arrays, _Arrays]:
    rows = numerics.at_least_float32(logits)
    top = jnp.max(rows, axis=-1)
    constant = lax.stop_gradient(top)
    spread = jnp.exp(rows - constant[..., None])
    below = lambda: numerics.unshared(jnp.ones((), rows.dtype)) - spread  # noqa: E731
    predicted = numerics.argmax_by_gap(lax.stop_gradient(rows), constant, below)
    largest, true = (numerics.true_class(rows, of) - constant for of in (predicted, labels))
    others = numerics.with_true_class(spread, predicted, 0.0)
    rest_of_top, one = jnp.sum(others, axis=-1), jnp.exp(largest)
    hit = predicted == labels
    # A wrong class has at most the probability of the prediction, so the difference is exact.
    wrong = one + (rest_of_top - jnp.exp(jnp.where(hit, 0, true)))
    rest_of_true = jnp.where(hit, jnp.maximum(rest_of_top, numerics.smallest(rows.dtype)), wrong)
    log_true, _, _, rest = numerics.of_margin(true - jnp.log(rest_of_true))
    gaps = numerics.unshared(top)[..., None] - rows
    confidence = one / (one + rest_of_top)
    outputs = (-log_true, confidence, hit.astype(rows.dtype), gaps, rest_of_top / one)
    return outputs, (others, one, rest_of_top, rest, predicted, labels)


def _top_backward(residuals: _Arrays, *cotangents: Any) -> Array:
    to_loss, to_confidence, _, to_gaps, _ = cotangents
    others, one, rest_of_top, rest, predicted, labels = residuals
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
    return gradient


_top_label = _with_gradient(_top_forward, _top_backward)
