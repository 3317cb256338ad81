"""Numerically delicate functions, each written once with documented limits.

A label out of range in a row of positive weight makes the row NaN (`valid`). It never gives the
value of a wrapped class or any other wrong finite number. `arrays.as_labels` clips labels
before JAX narrows their type, so that the rule holds for every label that is passed.

*Weights* are handled here for the whole library. A weight can be a padding mask, an ignore mask of
pixels, a resampling count or an importance. A row of weight 0 is absent, even if its label is 255
or -1 or its logits are NaN:

    logits, labels, weights = present(logits, labels, weights)  # harmless values in absent rows
    total = jnp.sum(weigh(values, weights))                     # exactly 0 from absent rows

A row whose weight is negative, infinite or NaN becomes a row of NaN logits and weight 1, so that
every function that gives NaN for NaN logits gives NaN for such a weight, too. The same happens to
all rows if the weights sum to more than `LARGEST_TOTAL`.

Weights count copies of an example, see `counted`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Integer, Shaped

from calib_jax.core.types import Array, Batch, Labels, Logits, Number, PerClass, PerExample, Weights


def at_least_float32(values: Shaped[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Cast half precision, integers and booleans to float32; keep float32 and float64."""
    return values.astype(wide(values.dtype))


def wide(*dtypes: Any) -> Any:
    """Return the first dtype that is float64, or else float32.

    `jnp.promote_types` would raise an error for half precision where users set
    `jax_numpy_dtype_promotion` to "strict".
    """
    found = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.float64)]
    return found[0] if found else jnp.dtype(jnp.float32)


def of_classes(number: Number) -> Number:
    """Add the class axis to an option with one value per example; return a number unchanged."""
    return jnp.asarray(number)[..., None] if jnp.ndim(number) else number


def tempered(logits: Logits, temperature: Number) -> Logits:
    """Subtract the largest logit of each row and divide by a temperature, or one per row.

    The maximum is subtracted first. Otherwise XLA fuses the product with 1/T into a later
    subtraction of the maximum, and `z/T - max(z/T)` is not 0 at the maximum but as large as the
    rounding error of the logits, which is visible from 1e4 on and overflows from 1e12 on.
    """
    logits = at_least_float32(logits)
    below = logits - lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    return below * of_classes(1 / temperature)  # XLA repeats a product where it is read


def times(weight: Float[Array, "*shape"], loss: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Multiply a loss, which may be infinite, by a weight; 0 times infinity is 0.

    A true class of probability 0 has $-\log p = \infty$. There the weight is treated as a
    constant: the gradient through it vanishes, as $p \log p \to 0$, and gradients stay finite.
    """
    infinite = loss == jnp.inf
    limit = lax.stop_gradient(weight)
    # Mask the unused branch inside as well, or it would send NaN gradients back.
    finite_loss, infinite_loss = jnp.where(infinite, 0, loss), jnp.where(infinite, loss, 0)
    at_infinity = jnp.where(limit == 0, 0, limit * infinite_loss)
    return jnp.where(infinite, at_infinity, weight * finite_loss)


def power_of_two(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Compute the powers of two that divide values exactly to about 1; 1 for 0."""
    exponent = jnp.where(values > 0, jnp.frexp(values)[1] - 1, 0)
    # The reciprocals of larger powers are flushed to 0.
    return jnp.ldexp(jnp.ones_like(values), jnp.clip(exponent, -126, 126))


def power(log_base: Float[Array, "*shape"], exponent: Number) -> Float[Array, "*shape"]:
    r"""Compute a power from the logarithm of its base: $b^a = \exp(a \log b)$.

    Unlike `b ** a` it has finite gradients at b = 0 for 0 < a < 1 if `log_base` is finite, as for
    the fields of `Probabilities`. $b^0 = 1$ everywhere.
    """
    return jnp.exp(exponent * log_base)


def valid(labels: Labels, num_classes: int) -> Bool[Array, "*batch"]:
    """Check which labels are among the classes 0 ... num_classes - 1."""
    labels = widened(labels)
    return (labels >= 0) & (labels < num_classes)


def widened(labels: Labels) -> Labels:
    """Cast labels to int32 or wider, because a uint8 cannot be compared with 256 classes."""
    return labels if labels.dtype.itemsize >= 4 else labels.astype(jnp.int32)


def is_true_class(labels: Labels, num_classes: int) -> Bool[Array, "*batch classes"]:
    """Build a mask of the true class of each row; no class is set if the label is out of range."""
    shape = (*labels.shape, num_classes)
    labels = widened(labels)
    return lax.broadcasted_iota(labels.dtype, shape, len(shape) - 1) == labels[..., None]


def true_class(rows: PerClass, labels: Labels) -> PerExample:
    """Select each row's entry at its label; labels out of range are clipped.

    A CPU gathers it. An accelerator sums over a mask, which fuses with the computation of the rows;
    a gather would transpose them on a TPU.
    """
    index = jnp.clip(widened(labels), 0, rows.shape[-1] - 1)
    if jax.default_backend() == "cpu":
        return jnp.take_along_axis(rows, index[..., None], axis=-1)[..., 0]
    marked = jnp.where(is_true_class(index, rows.shape[-1]), rows, jnp.zeros((), rows.dtype))
    return jnp.sum(marked, axis=-1, dtype=rows.dtype)


def with_true_class(rows: PerClass, labels: Labels, values: Number) -> PerClass:
    """Replace each row's entry at its label."""
    return _at_true_class(rows, labels, values, add=False)


def add_to_true_class(rows: PerClass, labels: Labels, values: Number) -> PerClass:
    """Add to each row's entry at its label."""
    return _at_true_class(rows, labels, values, add=True)


def _at_true_class(rows: PerClass, labels: Labels, values: Number, *, add: bool) -> PerClass:
    """Change one entry per row.

    On accelerators a comparison with the class index is fastest, because it fuses with the
    computation of the rows. On a CPU the comparison prevents vector instructions (it tripled the
    time of a maximum and nearly doubled the time of a sum of exponentials), so one entry per row is
    scattered instead.
    """
    num_classes = rows.shape[-1]
    entries = jnp.broadcast_to(jnp.asarray(values, rows.dtype), labels.shape)
    if jax.default_backend() != "cpu":
        changed = entries[..., None] + (rows if add else 0)
        return jnp.where(is_true_class(labels, num_classes), changed, rows)
    # All axes but the last are batch axes, so rows that are sharded over devices stay there.
    # A vmap of `rows.at[index].set` is the same program, but takes ten times as long to trace.
    batch, last = tuple(range(labels.ndim)), (labels.ndim,)
    index = jnp.clip(widened(labels), 0, num_classes - 1)[..., None]
    axes = lax.ScatterDimensionNumbers((), last, last, batch, batch)
    known: Any = {"mode": "promise_in_bounds", "unique_indices": True, "indices_are_sorted": True}
    return (lax.scatter_add if add else lax.scatter)(rows, index, entries, axes, **known)


def first_argmax(logits: Logits) -> Integer[Array, "*batch"]:
    """Compute each row's argmax, the first of equal entries, as in NumPy and torch.

    A row with a NaN gives the number of classes, which equals no label, so the row counts as a
    wrong prediction.
    """
    rows = lax.stop_gradient(at_least_float32(logits))
    largest = jnp.max(rows, axis=-1)
    # A sum keeps a NaN, which a maximum may drop.
    missing = jnp.where(jnp.isnan(jnp.sum(rows, axis=-1)), jnp.nan, largest)
    index = argmax_by_gap(rows, missing, lambda: unshared(largest)[..., None] - rows)
    # `argmax` finds a NaN; `max` may drop it on a CPU.
    return jnp.where(jnp.isnan(true_class(logits, index)), logits.shape[-1], index)


def unshared(values: Number) -> Array:
    """Keep the broadcast of these values apart from equal broadcasts elsewhere.

    On a CPU, XLA computes the operands of a sum or maximum over the classes within the sum, but not
    those that other operations read, too: they become arrays of all classes. XLA merges equal
    broadcasts, and does not look behind a barrier.
    """
    values = jnp.asarray(values)
    return lax.optimization_barrier(values) if jax.default_backend() == "cpu" else values


def argmax_by_gap(rows: Logits, largest: PerExample, below: Any) -> Integer[Array, "*batch"]:
    """Compute the argmax of rows by a minimum, which a CPU does in vectors, unlike an argmax.

    The class of the smallest k + big * below_k is the first of the largest entries, unless
    another entry is below by less than k / big. Its entry shows a wrong class.

    Args:
      rows: the entries, constants.
      largest: the largest entry of each row.
      below: computes an array that is 0 for the largest entries, and greater for others.
    """
    if rows.shape[-1] < 32 or jax.default_backend() != "cpu":
        return jnp.argmax(rows, axis=-1).astype(jnp.int32)
    big = unshared(jnp.asarray(0.1 * float(jnp.finfo(rows.dtype).max), rows.dtype))
    number = lax.broadcasted_iota(rows.dtype, rows.shape, rows.ndim - 1)
    place = jnp.min(number + big * lax.stop_gradient(below()), axis=-1)
    index = jnp.clip(place, 0, rows.shape[-1] - 1).astype(jnp.int32)
    return lax.cond(
        jnp.all(true_class(rows, index) == largest),
        lambda: index,
        lambda: jnp.argmax(rows, axis=-1).astype(jnp.int32),
    )


@jax.custom_jvp
def max_where(rows: PerClass, mask: Bool[Array, "*batch classes"]) -> PerExample:
    """Compute each row's maximum over the masked entries; -inf if the mask is empty.

    Equal entries share the gradient, as with `jnp.max`, which would keep three arrays of the size
    of the rows for the backward pass.
    """
    return jnp.max(jnp.where(mask, rows, -jnp.inf), axis=-1)


@max_where.defjvp
def _max_where_tangent(rows_and_mask: tuple[Array, Array], tangents: Any) -> tuple[Array, Array]:
    rows, mask = rows_and_mask
    largest = max_where(rows, mask)
    is_largest = mask & (rows == largest[..., None]) & (largest > -jnp.inf)[..., None]
    tangent = jnp.sum(jnp.where(is_largest, tangents[0], 0), axis=-1)
    return largest, tangent / jnp.maximum(jnp.sum(is_largest, axis=-1, dtype=tangent.dtype), 1)


def of_margin(margin: PerExample) -> tuple[PerExample, PerExample, PerExample, PerExample]:
    """Compute log p_y, log(1 - p_y), p_y and 1 - p_y from the margin m."""
    # `smaller` is the odds of the less probable side. All branches share one condition: `abs` and
    # `minimum` have different derivatives at 0, which would make second derivatives wrong.
    leads = margin > 0
    smaller = jnp.exp(jnp.where(leads, -margin, margin))
    excess = jnp.log1p(smaller)
    log_true = jnp.where(leads, 0, margin) - excess
    log_rest = jnp.where(leads, -margin, 0) - excess
    rest = jnp.where(leads, smaller, 1) / (1 + smaller)
    true = jnp.where(leads, 1, smaller) / (1 + smaller)
    return log_true, log_rest, true, rest


def smallest(dtype: jnp.dtype) -> float:
    """Return the smallest sum of exponentials whose powers have finite gradients."""
    return 16 * float(jnp.finfo(dtype).tiny)


def log_probabilities(logits: Logits) -> tuple[PerClass, PerClass]:
    r"""Compute $\log p_k$ and $\log(1 - p_k)$ for every class.

    For the first of the largest classes, $\log(1 - p_k)$ is a logsumexp over the other classes.
    The others have $p_k \le 1/2$, so that $\mathrm{log1p}(-p_k)$ is exact, and its derivative is
    at most 2. A threshold at 1/2 would choose both of two nearly equal classes, or neither.
    """
    logits = at_least_float32(logits)
    log_p = jax.nn.log_softmax(logits)
    dominant = is_true_class(first_argmax(logits), logits.shape[-1])
    tiny = jnp.finfo(logits.dtype).tiny
    others = jnp.sum(jnp.where(dominant, 0.0, jnp.exp(log_p)), axis=-1, keepdims=True)
    log_others = jnp.log(jnp.maximum(others, tiny))
    # The dominant class is masked inside as well, or its log1p would send NaN gradients back.
    others_p = jnp.exp(jnp.where(dominant, -1.0, log_p))
    return log_p, jnp.where(dominant, log_others, jnp.log1p(-others_p))


def argsort(values: Float[Array, "*batch n"]) -> Integer[Array, "*batch n"]:
    """Compute what `jnp.argsort` computes along the last axis, on a CPU in half of its time.

    XLA sorts one array of integers on a CPU about six times as fast as numbers with their indices.
    So each 32-bit key shares its integer with an index: two or three sorts, each by the next
    digits of the keys, keep the order of the sorts before, as in a radix sort.
    """
    n = values.shape[-1]
    if jax.default_backend() != "cpu" or values.dtype != jnp.float32 or not 1 < n < 2**24:
        return jnp.argsort(values)
    of_index = (n - 1).bit_length()  # bits
    key = _increasing(values)
    index = lax.broadcasted_iota(jnp.uint32, values.shape, values.ndim - 1)
    order = index.astype(jnp.int32)
    for first in range(0, 32, 32 - of_index):
        digits = jnp.take_along_axis(key, order, axis=-1) >> first
        packed = jnp.sort((digits << of_index) | index, stable=False)
        position = (packed & ((1 << of_index) - 1)).astype(jnp.int32)
        order = jnp.take_along_axis(order, position, axis=-1)
    return order


def _increasing(values: Float[Array, "*shape"]) -> Integer[Array, "*shape"]:
    """Map numbers to unsigned integers of the same order: -0 equals 0, and NaN is the largest."""
    values = jnp.where(values == 0, 0.0, jnp.where(jnp.isnan(values), jnp.nan, values))
    bits = lax.bitcast_convert_type(values, jnp.uint32)
    negative = bits >> 31 == 1
    return jnp.where(negative, ~bits, bits | jnp.uint32(2**31))


# --------------------------------------------------------------------------------------------
# Weights.

# Products of weights and losses must not overflow either.
LARGEST_TOTAL = 1e30


@functools.partial(jax.jit, inline=True)  # one program instead of one per operation
def present(logits: Logits, labels: Array, weights: Weights | None) -> Batch:
    """Replace labels and logits by 0 where the weight is 0, so that absent rows cause no NaN.

    Where a weight is invalid, the logits become NaN and the weight 1.
    """
    if weights is None:
        return logits, labels, None
    absent = weights == 0
    usable = (weights >= 0) & (jnp.sum(weights) <= LARGEST_TOTAL)  # the sum keeps NaN and inf
    fill = jnp.where(absent & usable, 0, jnp.nan).astype(logits.dtype)
    counts = usable & ~absent
    logits = jnp.where(counts[..., None], logits, fill[..., None])
    soft = labels.ndim == logits.ndim
    labels = jnp.where(counts[..., None] if soft else counts, labels, 0)
    return logits, labels, jnp.where(usable, weights, jnp.ones_like(weights))


@functools.partial(jax.jit, inline=True)
def counted(weights: Weights) -> Weights:
    r"""Scale weights to a mean of 1 where they cannot count copies of an example.

    Weights count copies: weight 2 is an example given twice. A positive weight below 1 counts no
    copies, so only the ratios of such weights have a meaning. They are scaled to a mean of 1 over
    the rows of positive weight, and weights that sum to 1 give the values of no weights.

    The number of examples matters to debiased errors, to refinement, to penalties of a fit and to
    ESD. Every function of whole data sets therefore scales weights once, where they enter.
    Statistics of parts, which are merged, keep the scale of their weights.

    >>> counted(jnp.array([0.25, 0.75, 0.0])), counted(jnp.array([1.0, 3.0, 0.0]))
    (Array([0.5, 1.5, 0. ], dtype=float32), Array([1., 3., 0.], dtype=float32))
    """
    present = weights > 0
    below_1 = jnp.any(present & (weights < 1))
    # Relative to the largest weight, equal weights become exactly 1.
    relative = weights / jnp.max(jnp.where(present, weights, 0), initial=0)
    number = jnp.sum(present, dtype=weights.dtype)
    mean = jnp.sum(jnp.where(present, relative, 0)) / number
    return jnp.where(below_1, relative / mean, weights)


def weigh(values: Float[Array, "..."], weights: Weights | None) -> Float[Array, "..."]:
    """Multiply values by the weights of their rows; weight 0 gives exactly 0 for any value.

    A negative, infinite or NaN weight gives NaN.
    """
    if weights is None:
        return values
    weights = weights.reshape(*weights.shape, *[1] * (values.ndim - weights.ndim))
    usable = (weights >= 0) & (weights < jnp.inf)
    return jnp.where(usable, jnp.where(weights == 0, 0, weights * values), jnp.nan)
