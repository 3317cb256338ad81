r"""The fit of vector scaling, $z' = w \circ z + b$, to a stream: Newton steps on sums over pieces.

A pass computes the NLL, its gradient and its Hessian for the 2 K parameters, so about eight passes
suffice, while L-BFGS needs dozens. The Hessian has 4 K^2 entries: use this for tens or hundreds
of classes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.calibrators.parts import contract, fitting, linear
from calib_jax.calibrators.parts.contract import Code, FitRows, losses_of
from calib_jax.calibrators.parts.fitting import Local
from calib_jax.calibrators.parts.streaming import Pieces
from calib_jax.core import numerics
from calib_jax.core.rows import weigh
from calib_jax.core.types import Labels, Logits, Scalar, Vector, Weights

_Params = TypeVar("_Params")


def fit(
    kind: Callable[..., _Params],
    pieces: Pieces,
    *,
    slope_penalty: float,
    intercept_penalty: float,
    max_iterations: int,
) -> _Params:
    """Minimise the sum of the mean NLL and the penalties, as a diagonal `linear.fit_params`."""
    results = pieces.results(_moments)
    first = next(results)
    dtype, moments = first.mean.dtype, functools.reduce(_merged, results, _in_float64(first))
    epsilon = float(np.finfo(dtype).eps)
    deviation = np.sqrt(moments.square)
    blank = deviation <= 8 * epsilon * np.abs(moments.mean)
    # With a penalty on b keep the mean: rounding in b = c - w mean would exceed small values of b.
    mean = np.where(intercept_penalty == 0, moments.mean, 0)
    deviation = np.where(blank, 1, np.hypot(deviation, moments.mean - mean))
    of_features = mean.astype(dtype), deviation.astype(dtype)
    num_classes = len(mean)

    def local(point: np.ndarray) -> Local:
        v, c = np.split(point, 2)
        means: Any = pieces.means(_local, *of_features, v.astype(dtype), c.astype(dtype))
        penalty = np.array([slope_penalty, intercept_penalty]) / num_classes
        apart = v / deviation - 1
        curvature = np.concatenate([penalty[0] / deviation**2, np.full(num_classes, penalty[1])])
        pull = np.concatenate([penalty[0] * apart / deviation, penalty[1] * c])
        gradient: Any = means.gradient + 2 * pull
        hessian: Any = means.hessian + 2 * np.diag(curvature)
        if intercept_penalty == 0:  # a shift of all intercepts changes nothing: keep their mean
            gradient[num_classes:] -= gradient[num_classes:].mean()
            hessian[num_classes:, num_classes:] += np.trace(hessian) / num_classes**2
        value = means.value + penalty @ [np.sum(apart**2), np.sum(c**2)]
        return Local(value, gradient, hessian)

    identity = np.concatenate([deviation, mean])
    # From a start with far larger logits, steps would not progress.
    nearer = min(1, linear.LARGEST_START / deviation.max())
    start = local(nearer * identity)
    point, value, settled = _newton(
        local, nearer * identity, start, max_iterations=max_iterations, epsilon=epsilon
    )
    if value > (start if nearer == 1 else local(identity)).value:
        point = identity
    v, c = np.split(point, 2)
    slope, intercept = v / deviation, c - v / deviation * mean
    slope, intercept = slope.astype(dtype), intercept.astype(dtype)

    ends = functools.reduce(_Ends.merged, pieces.results(_ends, slope, intercept))
    code = Code.CONVERGED if settled else Code.STOPPED
    if not (slope_penalty > 0 or intercept_penalty > 0) and ends.has_no_optimum():
        code = Code.NO_OPTIMUM
    if blank.all() and np.all(moments.occurs | (moments.weight == 0)):
        code = Code.INDISTINCT
    after = pieces.means(_loss, slope, intercept)
    ends = (np.inf if moments.impossible else x for x in (moments.loss, after))
    before, after = (jnp.asarray(x, dtype) for x in ends)
    params = kind(jnp.asarray(slope), jnp.asarray(intercept), contract.placeholder(dtype))
    return contract.ended(params, code, pieces.usable, before, after)


def _newton(
    local: Any, point: np.ndarray, here: Local, *, max_iterations: int, epsilon: float
) -> tuple[np.ndarray, float, bool]:
    """Minimise a convex function by damped Newton steps, which end as in `fitting.newton`.

    Args:
      local: the function with its derivatives.
      point: the start.
      here: the function at the start.
      max_iterations: the largest number of steps.
      epsilon: the precision of the derivatives.

    Returns:
      The best point, its value, and whether a Newton step there promises almost no decrease.
    """
    short = epsilon**0.5 if epsilon < 1e-10 else 1e-4
    damping, idle = 0.0, 0

    def proposal(here: Local, damping: float) -> np.ndarray:
        size = np.trace(here.hessian) / len(point)
        # In directions that do not change the function, the gradient and thus the step are 0.
        # If all rows are certain, the curvature vanishes: the gradient then scales the damping.
        ridge = 8 * epsilon * size + damping * (size + np.max(np.abs(here.gradient)))
        ridge = np.maximum(ridge, np.finfo(float).tiny)
        return -np.linalg.solve(here.hessian + ridge * np.eye(len(point)), here.gradient)

    for _ in range(max_iterations):
        step = proposal(here, damping)
        there = local(point + step)
        idle = 0 if there.value < here.value * (1 - 2 * epsilon) else idle + 1
        if there.value <= here.value * (1 + 4 * epsilon):
            point, here = point + step, there
            damping = 0.0 if damping < 8 * epsilon else 0.1 * damping
        else:
            damping = 10 * damping if damping else 1e-3
        # Without an optimum the steps stay long, with no gain once rounding hides the slope.
        if np.max(np.abs(step)) <= short or damping >= 1e6 or (idle >= 5 and damping == 0):
            break
    gain = -here.gradient @ proposal(here, 0.0) / 2
    return point, float(here.value), bool(gain <= linear.GAIN * here.value)


# --------------------------------------------------------------------------------------------
# Functions of a piece, and the merging of their results.


class _Moments(NamedTuple):
    """Weight, mean and mean squared deviation of each feature; the NLL before; class counts."""

    weight: Any
    mean: Any
    square: Any
    occurs: Any
    total: Any
    loss: Any
    impossible: Any


@jax.jit
def _moments(logits: Logits, labels: Labels, weights: Weights) -> _Moments:
    rows, total = _prepared(logits, labels, weights)
    share, possible = rows.decisive, rows.logits != -jnp.inf
    features = jnp.where(possible, rows.logits, 0)
    weight = jnp.sum(jnp.where(possible, share[:, None], 0), axis=0)
    each = contract.shares(jnp.where(possible, share[:, None], 0).T).T
    # The squares of raw features could overflow.
    size = numerics.power_of_two(jnp.max(jnp.where(each > 0, jnp.abs(features), 0), axis=0))
    scaled = features / size[None]
    mean = jnp.sum(each * scaled, axis=0)
    deviation = jnp.sqrt(jnp.sum(each * jnp.square(scaled - mean[None]), axis=0))
    loss = jnp.sum(weigh(losses_of(rows.logits, rows), share))
    occurs = jnp.any((rows.weight > 0)[:, None] & linear.is_true(rows), axis=0)
    impossible = jnp.any((rows.weight > 0) & (share == 0))
    return _Moments(weight, size * mean, size * deviation, occurs, total, loss, impossible)


def _in_float64(piece: _Moments) -> _Moments:
    """Convert the moments of a piece: weights by the piece's total, deviations squared."""
    total = np.float64(piece.total)
    return piece._replace(
        weight=total * piece.weight.astype(np.float64),
        mean=piece.mean.astype(np.float64),
        square=np.square(piece.square.astype(np.float64)),
        total=total,
        loss=np.float64(piece.loss),
    )


def _merged(a: _Moments, piece: _Moments) -> _Moments:
    b = _in_float64(piece)
    weight, total = a.weight + b.weight, a.total + b.total
    of_b = b.weight / np.where(weight > 0, weight, 1)
    square = (1 - of_b) * a.square + of_b * b.square
    return _Moments(
        weight=weight,
        mean=a.mean + of_b * (b.mean - a.mean),
        square=square + of_b * (1 - of_b) * np.square(b.mean - a.mean),
        occurs=a.occurs | b.occurs,
        total=total,
        loss=(a.total * a.loss + b.total * b.loss) / (total if total > 0 else 1),
        impossible=a.impossible | b.impossible,
    )


@jax.jit
def _local(
    logits: Logits,
    labels: Labels,
    weights: Weights,
    mean: Vector,
    deviation: Vector,
    v: Vector,
    c: Vector,
) -> tuple[Scalar, Local]:
    """Compute the mean NLL of a piece with its derivatives by v and c."""
    rows, total = _prepared(logits, labels, weights)
    share, possible = rows.decisive, rows.logits != -jnp.inf
    features = jnp.where(possible, (rows.logits - mean[None]) / deviation[None], 0)
    z = jnp.where(possible, linear.scores(v, c, features), -jnp.inf)
    p = jax.nn.softmax(z, axis=-1)
    residual = share[:, None] * (p - linear.is_true(rows).astype(p.dtype))
    gradient = jnp.concatenate([jnp.sum(residual * features, axis=0), jnp.sum(residual, axis=0)])
    # The Hessian by z is diag(p) - p p', applied to the derivatives of z, one per column.
    columns = jnp.concatenate([p * features, p], axis=1)
    products = jnp.matmul((share[:, None] * columns).T, columns, precision=fitting.EXACT)
    curved = share[:, None] * p
    by_v, by_both = (jnp.sum(curved * features**k, axis=0) for k in (2, 1))
    by_c = jnp.sum(curved, axis=0)
    diagonals = jnp.block(
        [[jnp.diag(by_v), jnp.diag(by_both)], [jnp.diag(by_both), jnp.diag(by_c)]]
    )
    value = jnp.sum(weigh(losses_of(z, rows), share))
    return total, Local(value, gradient, diagonals - products)


class _Ends(NamedTuple):
    """The conditions at the end of a fit that decide whether the NLL has an optimum."""

    extents: tuple[linear.Extent, ...]
    all_right: Any

    def merged(self, other: "_Ends") -> "_Ends":
        """Merge with the conditions of another piece."""
        return _Ends(
            tuple(map(linear.Extent.merged, self.extents, other.extents)),
            self.all_right & other.all_right,
        )

    def has_no_optimum(self) -> Any:
        """Check the sufficient conditions of `linear.fit_params`."""
        return self.all_right or any(extent.separates() for extent in self.extents)


@jax.jit
def _ends(
    logits: Logits, labels: Labels, weights: Weights, slope: Vector, intercept: Vector
) -> _Ends:
    rows, _ = _prepared(logits, labels, weights)
    z = linear.diagonal_scores(slope, intercept, rows.logits)
    features = jnp.where(z == -jnp.inf, 0, rows.logits)
    extents = linear.extents(z, features, rows, diagonal=True)
    return _Ends(extents, linear.all_right(z, rows))


@jax.jit
def _loss(
    logits: Logits, labels: Labels, weights: Weights, slope: Vector, intercept: Vector
) -> tuple[Scalar, Scalar]:
    rows, total = _prepared(logits, labels, weights)
    z = linear.diagonal_scores(slope, intercept, rows.logits)
    return total, jnp.sum(weigh(losses_of(z, rows), rows.decisive))


def _prepared(logits: Logits, labels: Labels, weights: Weights) -> tuple[FitRows, Scalar]:
    """Prepare the rows of a piece; also return the weight of rows with a possible true class."""
    rows = contract.FitData(logits, labels, weights).rows()
    decisive = numerics.true_class(rows.logits, rows.labels) != -jnp.inf
    return rows, jnp.sum(jnp.where(decisive, rows.weight, 0))
