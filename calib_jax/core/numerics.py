"""Delicate numerics, each written once, with its limits named."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.core.rows import widened
from calib_jax.core.types import Array, Labels, Logits, Number, PerClass, PerExample

_Carry = TypeVar("_Carry")


def at_least_float32(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Cast half precision to float32; float32 and float64 stay as they are."""
    return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def tempered(logits: Logits, temperature: Number) -> Logits:
    """Divide logits by a temperature, less the largest of each row.

    The offset goes first: XLA fuses the product with 1/T into a subtraction of the maximum that
    comes later, and then `z/T - max(z/T)` is not 0 at the maximum, but as large as rounding of
    the logits is, which from 1e4 on is seen and from 1e12 on overflows.
    """
    logits = at_least_float32(logits)
    return (logits - lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))) / temperature


def times(weight: Float[Array, "*shape"], loss: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    r"""Multiply a loss, which may be infinite, by a weight; 0 times infinity is 0.

    A true class of probability 0 has $-\log p = \infty$. There the weight counts as a constant:
    what p adds to its derivative vanishes, as $p \log p \to 0$, and gradients stay finite.
    """
    infinite = loss == jnp.inf
    limit = lax.stop_gradient(weight)
    # Where one of the two is not wanted it must not send NaN back, either.
    finite_loss, infinite_loss = jnp.where(infinite, 0, loss), jnp.where(infinite, loss, 0)
    at_infinity = jnp.where(limit == 0, 0, limit * infinite_loss)
    return jnp.where(infinite, at_infinity, weight * finite_loss)


def power_of_two(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Find powers of two that numbers can be divided by exactly, to be about 1; 1 for 0."""
    exponent = jnp.where(values > 0, jnp.frexp(values)[1] - 1, 0)
    # The reciprocals of larger ones are flushed to 0.
    return jnp.ldexp(jnp.ones_like(values), jnp.clip(exponent, -126, 126))


def power(log_base: Float[Array, "*shape"], exponent: Number) -> Float[Array, "*shape"]:
    r"""Raise to a power from the logarithm: $b^a = \exp(a \log b)$.

    Unlike `b ** a` it has finite gradients at b = 0 for 0 < a < 1, as long as `log_base` is
    finite, which the fields of `Probabilities` are. $b^0 = 1$ everywhere.
    """
    return jnp.exp(exponent * log_base)


def is_true_class(labels: Labels, num_classes: int) -> Bool[Array, "*batch classes"]:
    """Mark the true class of each row; a row whose label is out of range has no mark."""
    shape = (*labels.shape, num_classes)
    labels = widened(labels)
    return lax.broadcasted_iota(labels.dtype, shape, len(shape) - 1) == labels[..., None]


def true_class(rows: Float[Array, "*batch classes"], labels: Labels) -> PerExample:
    """Pick each row's entry at its label; a label out of range picks some entry of its row."""
    index = jnp.clip(widened(labels), 0, rows.shape[-1] - 1)[..., None]
    return jnp.take_along_axis(rows, index, axis=-1)[..., 0]


def with_true_class(
    rows: Float[Array, "*batch classes"], labels: Labels, values: Number
) -> Float[Array, "*batch classes"]:
    """Replace each row's entry at its label.

    A comparison with the class index fuses with whatever made the rows, which is best on
    accelerators; on a CPU it keeps XLA from using vector instructions (it tripled the time of
    a maximum and nearly doubled that of a sum of exponentials), and a scatter of one entry a
    row is faster.
    """
    if jax.default_backend() == "cpu":
        return _scatter(rows, labels, values, "set")
    mark = is_true_class(labels, rows.shape[-1])
    return jnp.where(mark, _column(values, rows), rows)


def add_to_true_class(
    rows: Float[Array, "*batch classes"], labels: Labels, values: Number
) -> Float[Array, "*batch classes"]:
    """Add to each row's entry at its label; see `with_true_class`."""
    if jax.default_backend() == "cpu":
        return _scatter(rows, labels, values, "add")
    mark = is_true_class(labels, rows.shape[-1])
    return rows + jnp.where(mark, _column(values, rows), 0)


def _column(values: Number, rows: Float[Array, "*batch classes"]) -> Array:
    values = jnp.asarray(values, rows.dtype)
    return values[..., None] if values.ndim else values


def _scatter(
    rows: Float[Array, "*batch classes"], labels: Labels, values: Number, operation: str
) -> Float[Array, "*batch classes"]:
    num_classes = rows.shape[-1]
    flat = rows.reshape(-1, num_classes)
    index = jnp.clip(widened(labels), 0, num_classes - 1).reshape(-1)
    entries = jnp.broadcast_to(jnp.asarray(values, rows.dtype), labels.shape).reshape(-1)
    update = getattr(flat.at[jnp.arange(flat.shape[0]), index], operation)
    # One entry a row: the indices are unique and sorted as they stand.
    flat = update(entries, mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True)
    return flat.reshape(rows.shape)


def first_argmax(logits: Logits) -> Integer[Array, "*batch"]:
    """Find each row's largest entry, the first of equal ones, as NumPy and torch do.

    A row with a NaN gives the number of classes, which equals no label: it is counted as a wrong
    prediction.

    `jnp.argmax` reduces pairs, which is slow on a CPU, and a sum is fast: where one entry is the
    largest, the sum of index + K over the entries that equal the maximum is below 2 K. Where it
    is not (ties, a NaN, which is not below anything), pairs are reduced after all. Entries are
    compared, never subtracted: fused with a product, `z - max` is not 0 even at the maximum.
    """
    num_classes = logits.shape[-1]

    def by_pairs() -> Array:
        index = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        # `argmax` finds a NaN; `max` may drop it on a CPU.
        return jnp.where(jnp.isnan(true_class(logits, index)), num_classes, index)

    if jax.default_backend() != "cpu" or num_classes == 1:
        return by_pairs()
    top = jnp.max(logits, axis=-1)
    index = lax.broadcasted_iota(jnp.float32, logits.shape, logits.ndim - 1)
    coded = jnp.where(logits < top[..., None], 0, index + num_classes)
    code = jnp.sum(coded, axis=-1).astype(jnp.int32)
    one_each = jnp.all((code >= num_classes) & (code < 2 * num_classes))
    return lax.cond(one_each, lambda: code - num_classes, by_pairs)


@jax.custom_vjp
def max_where(
    rows: Float[Array, "*batch classes"], mask: Bool[Array, "*batch classes"]
) -> PerExample:
    """Find each row's largest entry where the mask is set; -inf where it is nowhere set.

    The gradient is shared by equal entries, as with `jnp.max`, which would keep three arrays of
    the size of the rows to compute it; this keeps none but the rows.
    """
    return jnp.max(jnp.where(mask, rows, -jnp.inf), axis=-1)


def _max_where_forward(rows: Array, mask: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    largest = max_where(rows, mask)
    return largest, (rows, mask, largest)


def _max_where_backward(
    residuals: tuple[Array, Array, Array], cotangent: Array
) -> tuple[Array, None]:
    rows, mask, largest = residuals
    is_largest = mask & (rows == largest[..., None])
    count = jnp.sum(is_largest, axis=-1)
    each = cotangent / jnp.maximum(count, 1)
    return jnp.where(is_largest, each[..., None], 0).astype(rows.dtype), None


max_where.defvjp(_max_where_forward, _max_where_backward)


def fold_entries_above(
    threshold: float,
    rows: Float[Array, "rows classes"],
    visit: Callable[[_Carry, Integer[Array, " rows"], Float[Array, " rows"]], _Carry],
    carry: _Carry,
) -> _Carry:
    """Visit the entries above a threshold, each row's largest first, one of every row at a time.

    Args:
      threshold: entries must be greater than it; few are, or it is slow.
      rows: finite entries greater than -inf; a row with a NaN is not visited.
      visit: `(carry, column, value) -> carry`; a row that has no more gives the value 0.
      carry: what the first visit starts from.
    """
    # Classes in groups: to find the next largest means a look at the groups' maxima and
    # at one group, not at all classes.
    num_rows, num_classes = rows.shape
    width = 16
    groups = jnp.pad(rows, ((0, 0), (0, -num_classes % width)), constant_values=-jnp.inf)
    groups = groups.reshape(num_rows, -1, width)
    row = jnp.arange(num_rows)

    def any_left(state: tuple[Array, Array, _Carry]) -> Array:
        return jnp.any(jnp.max(state[1], axis=-1) > threshold)

    def next_largest(state: tuple[Array, Array, _Carry]) -> tuple[Array, Array, _Carry]:
        groups, largest_of, carry = state
        value = jnp.max(largest_of, axis=-1)
        # Over few entries `jnp.argmax` is the fastest.
        which = jnp.argmax(largest_of, axis=-1).astype(jnp.int32)
        group = groups[row, which]
        place = jnp.argmax(group, axis=-1).astype(jnp.int32)
        column = jnp.minimum(width * which + place, num_classes - 1)
        carry = visit(carry, column, jnp.where(value > threshold, value, 0))
        group = jnp.where(jnp.arange(width)[None] == place[:, None], -jnp.inf, group)
        groups = groups.at[row, which].set(group, unique_indices=True, indices_are_sorted=True)
        left = jnp.max(group, axis=-1, keepdims=True)
        here = jnp.arange(largest_of.shape[-1])[None] == which[:, None]
        return groups, jnp.where(here, left, largest_of), carry

    return lax.while_loop(any_left, next_largest, (groups, jnp.max(groups, axis=-1), carry))[2]


def log_probabilities(logits: Logits) -> tuple[PerClass, PerClass]:
    r"""Compute $\log p_k$ and $\log(1 - p_k)$ for every class.

    At most one class has $p_k > 1/2$. For it, $\log(1 - p_k)$ is a logsumexp over the other
    classes; for the rest $\mathrm{log1p}(-p_k)$ is exact, and its derivative is at most 2.
    """
    logits = at_least_float32(logits)
    log_p = jax.nn.log_softmax(logits)
    dominant = log_p > -0.6931472
    tiny = jnp.finfo(logits.dtype).tiny
    others = jnp.sum(jnp.where(dominant, 0.0, jnp.exp(log_p)), axis=-1, keepdims=True)
    log_others = jnp.log(jnp.maximum(others, tiny))
    # The dominant class is masked inside as well, or its log1p would send NaN gradients back.
    others_p = jnp.exp(jnp.where(dominant, -1.0, log_p))
    return log_p, jnp.where(dominant, log_others, jnp.log1p(-others_p))
