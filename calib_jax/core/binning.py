r"""The binning convention of losses, metrics and calibrators.

Fixed bins are (lo, hi], and the first bin is also closed on the left. Values are compared in
float32 with float32 edges, so 0.0, 1.0 and every edge fall into the same bin on every machine.

Equal-mass bins each hold 1/B of the total weight. An example that straddles a boundary is
split, and examples of equal confidence are split in the same proportion. The bins therefore do
not depend on the order of the rows, and weight k equals k copies.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float, Integer

from calib_jax.core.numerics import widened
from calib_jax.core.types import Array, Labels, PerExample, Vector

SHORT_SUM = 4096  # rows whose sum in float32 is exact enough


class BinSums(NamedTuple):
    """Totals per bin: weight, weighted confidence, weighted hits."""

    weight: Float[Array, "*shape bins"]
    confidence: Float[Array, "*shape bins"]
    hit: Float[Array, "*shape bins"]

    @property
    def gap(self) -> Float[Array, "*shape bins"]:
        """Mean confidence minus accuracy; 0 in an empty bin."""
        size = jnp.where(self.weight > 0, self.weight, 1)
        return jnp.where(self.weight > 0, (self.confidence - self.hit) / size, 0)


Binned: TypeAlias = tuple[BinSums, Float[Array, " edges"]]  # sums per bin and the edges


def uniform_edges(num_bins: int) -> np.ndarray:
    """Cut [0, 1] into bins of equal width: float32 edges 0, 1/B, ..., 1."""
    return np.linspace(0, 1, num_bins + 1, dtype=np.float32)


def bin_index(
    values: Float[Array, "*shape"],
    edges: Float[Array, " edges"] | np.ndarray,
    side: Literal["left", "right"] = "left",
) -> Integer[Array, "*shape"]:
    """Compute the bin (lo, hi] of each value; values out of range use the first or last bin.

    Args:
      values: the values.
      edges: ascending, one more than the bins.
      side: "right" for bins [lo, hi).
    """
    # `jnp.searchsorted(method="compare_all")` of constants is wrong under `vmap` in jaxlib 0.10.2.
    inner = jnp.asarray(edges)[1:-1].reshape(-1, *[1] * values.ndim)
    values = values.astype(inner.dtype)[None]
    within = values <= inner if side == "left" else values < inner
    return jnp.sum(~within, axis=0, dtype=jnp.int32)  # NaN is within no bin, so in the last one


def _ceil(values: Array, num_bins: int) -> Array:
    if values.dtype == jnp.float64:
        return jnp.clip(jnp.ceil(num_bins * values - 1).astype(jnp.int32), 0, num_bins - 1)
    # float64 arithmetic on a float32 value is exact here: comparing the value with the fraction
    # b/B equals comparing it with the largest float32 that is at most b/B.
    exact = np.arange(num_bins + 1) / num_bins
    edges = exact.astype(np.float32)
    edges = np.where(edges > exact, np.nextafter(edges, np.float32(0)), edges)
    return bin_index(values, edges)


# Functions that compute the bin of each value in [0, 1], by the name of the rule.
BINNING_RULES: dict[str, Callable[[Array, int], Array]] = {
    "right": lambda values, num_bins: bin_index(values, uniform_edges(num_bins)),
    "left": lambda values, num_bins: bin_index(values, uniform_edges(num_bins), "right"),
    "ceil": _ceil,
}


def class_sums(labels: Labels, values: PerExample, num_classes: int) -> Float[Array, " classes"]:
    """Sum values over the examples of each class; skip labels out of range."""
    return cell_sums(widened(labels).reshape(-1), values.reshape(-1), num_classes)


def cell_sums(
    cell: Integer[Array, "rows *entries"],
    values: Float[Array, "rows *entries"],
    num_cells: int,
    in_range: bool = False,
) -> Float[Array, " cells"]:
    """Sum values over the entries of each cell, of which a row has at most one.

    Cells out of range are skipped; `in_range` promises that there are none, which saves time.

    Many rows are summed in parts, and the sums of the parts are added: one long float32 sum loses
    digits, and the mean of two million confidences of .99 would be .98. There are about as many
    parts as rows per part, and at most as many cells of parts as rows.
    """
    num_rows, mode = len(values), "promise_in_bounds" if in_range else None
    num_parts = max(1, min(2 ** (num_rows.bit_length() // 2), num_rows // max(1, num_cells)))
    flat = values.reshape(-1)
    if num_rows <= SHORT_SUM or num_parts == 1:
        return jax.ops.segment_sum(flat, cell.reshape(-1), num_cells, mode=mode)
    part = jnp.arange(num_rows, dtype=cell.dtype) // -(-num_rows // num_parts)
    shifted = cell + num_cells * part.reshape(-1, *[1] * (cell.ndim - 1))
    if not in_range:
        inside = (cell >= 0) & (cell < num_cells)
        shifted = jnp.where(inside, shifted, num_parts * num_cells)  # the last cell is dropped
    of_parts = jax.ops.segment_sum(flat, shifted.reshape(-1), num_parts * num_cells, mode=mode)
    return jnp.sum(of_parts.reshape(num_parts, num_cells), axis=0)


def equal_mass_bins(confidence: Vector, hit: Vector, weight: Vector, num_bins: int) -> Binned:
    r"""Cut sorted examples into bins of equal weight, splitting examples at the boundaries.

    With $W, C, H$ the cumulative weight, confidence and hits over the examples sorted by
    confidence, joined linearly from one distinct confidence to the next, bin b holds
    $C(\tfrac{b+1}{B} W) - C(\tfrac{b}{B} W)$ and likewise for H.

    Weights must not be negative. Absent rows may be at the end with confidence inf, or anywhere
    with weight 0. Sorting takes most of the time, and a bootstrap changes only the weights, so a
    bootstrap sorts once.

    Returns:
      The sums per bin and the edges: the lowest confidence, then the confidence at which each
      bin ends. If a boundary lies between two examples, the edge is the lower confidence.
      If the total weight is 0, the sums are 0 and the edges NaN.
    """
    finite = jnp.where(jnp.isfinite(confidence), confidence, 0)
    running = _RunningSums.of(jnp.stack([jnp.ones_like(finite), finite, hit], axis=1), weight)
    mass = running.before_block[-1, 0]

    # A quotient b W / B may round to either side of a sum of weights; products compare exactly.
    targets = mass * jnp.arange(num_bins + 1, dtype=mass.dtype)
    # A sum of weights that rounding keeps just below a boundary reaches it: neither the order of
    # tied rows nor the scale of the weights then moves an edge.
    reached = targets - 4 * jnp.finfo(mass.dtype).eps * targets[-1]
    row = jnp.minimum(running.first_row_reaching(reached, num_bins), running.last_present)
    # The last example ends the last bin, even if its weight is below the rounding of the total.
    edges = confidence[row.at[-1].set(running.last_present)]
    # All examples with the confidence of a boundary are split in the same proportion.
    below = running.before(jnp.searchsorted(confidence, edges, side="left"))
    through = running.before(jnp.searchsorted(confidence, edges, side="right"))
    width = through[:, 0] - below[:, 0]
    inside = targets - num_bins * below[:, 0]
    part = jnp.clip(inside / jnp.where(width > 0, num_bins * width, 1), 0, 1)
    sums = jnp.diff(below + part[:, None] * (through - below), axis=0)
    return BinSums(*sums.T), jnp.where(mass > 0, edges, jnp.nan)


class _RunningSums(NamedTuple):
    """Running sums of weighted columns, evaluated at a few rows.

    A running sum over all rows is the slowest operation here. Summing blocks of rows,
    accumulating the block sums and reading only the requested blocks takes a tenth of the time.
    """

    columns: Float[Array, "blocks size columns"]
    weight: Float[Array, "blocks size"]
    before_block: Float[Array, "blocks_and_end columns"]

    @classmethod
    def of(cls, columns: Float[Array, "rows columns"], weight: Vector) -> "_RunningSums":
        num_rows = weight.shape[0]
        size = max(16, 2 ** ((num_rows - 1).bit_length() // 2))
        gap = -num_rows % size
        columns = jnp.pad(columns, ((0, gap), (0, 0))).reshape(-1, size, columns.shape[1])
        weight = jnp.pad(weight, (0, gap)).reshape(-1, size)
        totals = jnp.einsum("bs,bsc->bc", weight, columns, precision=lax.Precision.HIGHEST)
        return cls(columns, weight, jnp.pad(jnp.cumsum(totals, axis=0), ((1, 0), (0, 0))))

    @property
    def last_present(self) -> Integer[Array, ""]:
        """The last row with weight above 0; row 0 if there is none.

        Under `vmap`, a maximum over all rows would double the time of the whole.
        """
        num_blocks, size = self.weight.shape
        number = jnp.arange(num_blocks, dtype=jnp.int32)
        block = jnp.max(jnp.where(jnp.sum(self.weight, axis=1) > 0, number, 0))
        within = jnp.arange(size, dtype=jnp.int32)
        return size * block + jnp.max(jnp.where(self.weight[block] > 0, within, 0))

    def before(self, row: Integer[Array, " queries"]) -> Float[Array, "queries columns"]:
        """Sum the columns over all rows before each given row."""
        num_blocks, size = self.weight.shape
        block = jnp.minimum(row // size, num_blocks - 1)
        within = jnp.arange(size, dtype=row.dtype)[None] < (row - size * block)[:, None]
        weight = jnp.where(within, self.weight[block], 0)
        return self.before_block[block] + jnp.sum(weight[..., None] * self.columns[block], axis=1)

    def first_row_reaching(self, mass: Vector, factor: int) -> Integer[Array, " rows"]:
        """Find the first row at which `factor` times the running sum of weights reaches `mass`."""
        num_blocks, size = self.weight.shape
        ends = factor * self.before_block[1:, 0]
        block = jnp.minimum(jnp.searchsorted(ends, mass, side="left"), num_blocks - 1)
        running = self.before_block[block, 0][:, None] + jnp.cumsum(self.weight[block], axis=1)
        within = jnp.sum(factor * running < mass[:, None], axis=1, dtype=block.dtype)
        return size * block + jnp.minimum(within, size - 1)


def whole_example_bins(confidence: Vector, hit: Vector, weight: Vector, num_bins: int) -> Binned:
    r"""Cut the examples into bins of about equal count as the released code does.

    The edges interpolate the sorted confidences linearly at the positions $bN/B$ (the last edge
    clamped to N - 1). Each example falls whole into one bin (lo, hi]; examples equal to the
    lowest confidence fall into no bin. A weight of k means k copies.
    """
    present = weight > 0
    order = jnp.argsort(jnp.where(present, confidence, jnp.inf))
    copies = jnp.cumsum(jnp.where(present, weight, 0)[order])
    count = copies[-1]

    def at(position: Vector) -> Vector:  # the confidence of copy number `position`
        position = jnp.minimum(position, count - 1)
        return confidence[order][jnp.searchsorted(copies, position, side="right")]

    # A rounded quotient would move an edge off its example, and the example over the edge.
    low, rest = jnp.divmod(count * jnp.arange(num_bins + 1, dtype=count.dtype), num_bins)
    edges = at(low) + rest / num_bins * (at(low + 1) - at(low))

    inside = (confidence[:, None] > edges[None, :-1]) & (confidence[:, None] <= edges[None, 1:])
    columns = jnp.stack([jnp.ones_like(confidence), confidence, hit], axis=1)
    weighted = jnp.where(present[:, None], weight[:, None] * columns, 0)
    in_bin = inside.astype(weighted.dtype)
    sums = jnp.einsum("nb,nc->cb", in_bin, weighted, precision=lax.Precision.HIGHEST)
    return BinSums(*sums), jnp.where(count > 0, edges, jnp.nan)
