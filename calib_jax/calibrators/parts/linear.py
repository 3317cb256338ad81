r"""The common fit of vector, matrix and Dirichlet scaling: $z' = W x + b$ by L-BFGS on the NLL.

The three differ in the features x (logits or log-probabilities) and in whether W is diagonal. The
fit starts from the identity, W = I, b = 0, and never increases the criterion.

An impossible class (a logit of -inf) has the score -inf, which only a diagonal W can preserve.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from calib_jax.calibrators.parts import contract, fitting
from calib_jax.calibrators.parts.contract import Code, FitData, FitRows, losses_of
from calib_jax.core import numerics
from calib_jax.core.rows import weigh
from calib_jax.core.types import Array, Number, Scalar, Vector

Features: TypeAlias = Float[Array, "rows classes"]
# Up to this number of parameters, a fit ends with Newton's method, which needs the Hessian.
_NEWTON_PARAMETERS = 128
_NEWTON_STEPS = 50
GAIN = 1e-4  # a fit has converged if a Newton step promises a smaller share of the criterion
LARGEST_START = 100  # the largest standard deviation of a score at the start


def scores(weights: Array, intercept: Float[Array, " classes"], features: Features) -> Features:
    """Compute W x + b for every row."""
    if weights.ndim == 1:
        return weights[None] * features + intercept[None]
    return jnp.matmul(features, weights.T, precision=fitting.EXACT) + intercept[None]


@functools.partial(jax.jit, static_argnames=("kind", "features_of", "diagonal"))
def fit_params(
    kind: Callable[..., Any],
    features_of: Callable[[Array], Array],
    examples: FitData,
    penalties: tuple[Number, Number],
    max_iterations: Number,
    *,
    diagonal: bool,
) -> Any:
    """Fit `vector`, `matrix` or `dirichlet`: minimise the sum of the mean NLL and the penalties.

    Args:
      kind: the type of the parameters: W (or its diagonal), b and the state.
      features_of: a function from logits to the features that W multiplies.
      examples: the checked examples.
      penalties: the factor of the mean square of the diagonal minus 1 if W is diagonal, else of
        the entries off the diagonal (the diagonal is then free), and that of the intercepts.
      max_iterations: the largest number of steps.
      diagonal: whether W is diagonal.
    """
    rows = examples.rows(mixes_classes=not diagonal)
    given = features_of(rows.logits)
    weight_penalty, intercept_penalty = penalties
    num_classes = given.shape[1]
    share = rows.decisive
    possible = rows.logits != -jnp.inf
    features = jnp.where(possible, given, 0)
    # Standardise the columns, so that all parameters have one scale: W x + b = V u + c. With a
    # penalty on b keep the mean, because rounding in b = c - W mean would exceed small values of
    # b. Divide by powers of two first, since the squares of raw features could overflow.
    each = contract.shares(jnp.where(possible, share[:, None], 0).T).T
    size = numerics.power_of_two(jnp.max(jnp.where(each > 0, jnp.abs(features), 0), axis=0))
    scaled = features / size[None]
    mean = jnp.sum(each * scaled, axis=0)
    blank = jnp.sum(each * jnp.abs(scaled - mean[None]), axis=0)
    blank = blank <= 8 * jnp.finfo(features.dtype).eps * jnp.abs(mean)
    mean = jnp.where(jnp.asarray(intercept_penalty) == 0, mean, 0)
    deviation = jnp.sqrt(jnp.sum(each * jnp.square(scaled - mean[None]), axis=0))
    deviation = jnp.where(blank, 1 / size, deviation)
    scaled = (scaled - mean[None]) / deviation[None]
    mean, deviation = size * mean, size * deviation
    off_diagonal = ~jnp.eye(num_classes, dtype=bool)

    def unscaled(point: tuple[Array, Array]) -> tuple[Array, Array]:
        v, c = point
        if diagonal:
            w = v / deviation
            return w, c - w * mean
        w = v / deviation[None]
        return w, c - jnp.matmul(w, mean, precision=fitting.EXACT)

    def penalty(point: tuple[Array, Array]) -> Scalar:
        w, b = unscaled(point)
        if diagonal:
            unlike = jnp.mean(jnp.square(w - 1))
        else:
            unlike = jnp.sum(jnp.square(jnp.where(off_diagonal, w, 0)))
            unlike /= num_classes * (num_classes - 1)
        return weight_penalty * unlike + intercept_penalty * jnp.mean(jnp.square(b))

    def criterion(point: tuple[Array, Array]) -> Scalar:
        v, c = point
        z = jnp.where(possible, scores(v, c, scaled), -jnp.inf)
        return jnp.sum(weigh(losses_of(z, rows), share)) + penalty(point)

    nothing = (deviation if diagonal else jnp.diag(deviation), mean)
    # A start with far larger scores is far from the minimum: rounding would end L-BFGS on the way.
    nearer = jnp.minimum(1, LARGEST_START / jnp.max(deviation))
    start = jax.tree.map(lambda leaf: nearer * leaf, nothing)
    point, slope, steps = fitting.lbfgs(criterion, start, max_iterations=max_iterations)
    penalised = (jnp.asarray(weight_penalty) > 0) | (jnp.asarray(intercept_penalty) > 0)
    fine, coarse = fitting.slopes(slope.dtype)
    settled = slope <= coarse
    if (2 if diagonal else num_classes + 1) * num_classes <= _NEWTON_PARAMETERS:
        design = _design(scaled, diagonal=diagonal)
        local = functools.partial(
            _local, criterion, penalty, design, possible, share, diagonal=diagonal, gauge=~penalised
        )
        point, settled = _improved(local, point, slope <= fine, max_iterations - steps)
    better = criterion(point) <= criterion(nothing)
    v, c = jax.tree.map(lambda new, old: jnp.where(better, new, old), point, nothing)
    weights, intercept = unscaled((v, c))

    ended = jnp.where(settled, Code.CONVERGED, Code.STOPPED)
    z = jnp.where(possible, scores(v, c, scaled), -jnp.inf)
    limitless = _has_no_optimum(z, features, rows, diagonal=diagonal)
    ended = jnp.where(~penalised & limitless, Code.NO_OPTIMUM, ended)
    occurs = jnp.any((rows.weight > 0)[:, None] & is_true(rows), axis=0)
    all_occur = jnp.all(occurs | ~jnp.any(each > 0, axis=0))
    ended = jnp.where(jnp.all(blank) & all_occur, Code.INDISTINCT, ended)
    params = kind(weights, intercept, contract.placeholder(rows.logits.dtype))
    calibrated = (diagonal_scores if diagonal else scores)(weights, intercept, given)
    return contract.finished(params, ended, rows, calibrated)


def unchanged(logits: Array) -> Array:
    """Return the logits, the features of `vector` and `matrix`."""
    return logits


def _design(features: Features, *, diagonal: bool) -> Float[Array, "rows classes inputs"]:
    """Return the inputs of every score: all features, or the feature of the class, and 1."""
    rows, num_classes = features.shape
    if diagonal:
        return jnp.stack([features, jnp.ones_like(features)], axis=2)
    inputs = jnp.concatenate([features, jnp.ones_like(features[:, :1])], axis=1)
    return jnp.broadcast_to(inputs[:, None], (rows, num_classes, num_classes + 1))


def _local(
    criterion: Callable[[tuple[Array, Array]], Scalar],
    penalty: Callable[[tuple[Array, Array]], Scalar],
    design: Float[Array, "rows classes inputs"],
    possible: Bool[Array, "rows classes"],
    share: Vector,
    point: Float[Array, " d"],
    *,
    diagonal: bool,
    gauge: Bool[Array, ""],
) -> fitting.Local:
    r"""Compute the criterion and its derivatives in all parameters, `[classes * inputs]`.

    With $D_n = \mathrm{diag}(p_n) - p_n p_n^T$ the Hessian of the mean NLL has the blocks
    $\sum_n w_n (D_n)_{kl} x_{nk} x_{nl}^T$. Directions that change all scores of a row alike do not
    change the criterion; `gauge` adds a curvature to them, so that no step leads there.
    """
    rows, num_classes, num_inputs = design.shape
    width = num_classes * num_inputs

    def parameters(point: Float[Array, " d"]) -> tuple[Array, Array]:
        table = point.reshape(num_classes, num_inputs)
        return (table[:, 0] if diagonal else table[:, :-1]), table[:, -1]

    value, gradient = jax.value_and_grad(lambda point: criterion(parameters(point)))(point)
    z = jnp.sum(design * point.reshape(num_classes, num_inputs)[None], axis=2)
    p = jax.nn.softmax(jnp.where(possible, z, -jnp.inf))
    root = jnp.sqrt(share)[:, None, None]
    inputs = jnp.where(root > 0, root * design, 0)
    p = jnp.where(share[:, None] > 0, p, 0)[:, :, None]
    weighted = (p * inputs).reshape(rows, width)
    hessian = -jnp.matmul(weighted.T, weighted, precision=fitting.EXACT)
    blocks = jnp.einsum("nki,nkj->kij", p * inputs, inputs, precision=fitting.EXACT)
    classes = jnp.arange(num_classes)
    hessian = hessian.reshape(num_classes, num_inputs, num_classes, num_inputs)
    hessian = hessian.at[classes, :, classes].add(blocks).reshape(width, width)
    hessian += jax.hessian(lambda point: penalty(parameters(point)))(point)
    shared = jnp.ones((num_classes, num_classes), point.dtype) / num_classes
    alike = jnp.eye(num_inputs, dtype=point.dtype).at[: int(diagonal)].set(0)
    curvature = jnp.where(gauge, jnp.trace(hessian) / width, 0)
    return fitting.Local(value, gradient, hessian + curvature * jnp.kron(shared, alike))


def _improved(
    local: Callable[[Array], fitting.Local],
    point: tuple[Array, Array],
    done: Bool[Array, ""],
    left: Number,
) -> tuple[tuple[Array, Array], Bool[Array, ""]]:
    """Continue a fit by Newton's method, whose steps are exact where rounding ends a line search.

    Args:
      local: the criterion and its derivatives.
      point: where L-BFGS ended.
      done: whether the gradient vanishes there; the point is then returned.
      left: the largest number of steps; a few are needed, or some dozens in a flat valley.
    """
    v, c = point
    flat = jnp.concatenate([v.reshape(len(c), -1), c[:, None]], axis=1).reshape(-1)
    free = jnp.ones(flat.shape, bool)
    steps = jnp.where(done, 0, jnp.minimum(left, _NEWTON_STEPS))
    flat, _, _ = fitting.newton(local, flat, free, max_iterations=steps)
    here = local(flat)
    gain = -jnp.sum(here.gradient * fitting.newton_step(here, free)) / 2
    table = flat.reshape(len(c), -1)
    return (table[:, :-1].reshape(v.shape), table[:, -1]), done | (gain <= GAIN * here.value)


def _has_no_optimum(
    z: Features, features: Features, rows: FitRows, *, diagonal: bool
) -> Bool[Array, ""]:
    """Check two sufficient conditions for an NLL without a finite minimum.

    Either all rows are classified correctly, so scaling W and b up lowers the NLL further.
    Or some class never occurs, or a threshold on a score of the class separates it from the rest,
    so W and b of that class can grow without bound. The scores are the features, and the fitted
    scores minus the mean of their row. With more than two classes, the second scores are left out
    if W is diagonal: the score of a class then cannot grow by a multiple of the other scores,
    unless these scores grow as well.
    """
    possible = z != -jnp.inf
    of_class = (rows.weight > 0)[:, None] & is_true(rows) & possible
    of_others = (rows.decisive > 0)[:, None] & ~of_class & possible

    def separates(score: Features) -> Bool[Array, ""]:
        """Check whether a threshold on this score separates some class from the others."""
        lowest, smallest = (
            jnp.min(jnp.where(mark, score, jnp.inf), axis=0) for mark in (of_class, of_others)
        )
        largest, highest = (
            jnp.max(jnp.where(mark, score, -jnp.inf), axis=0) for mark in (of_class, of_others)
        )
        constant = (lowest == largest) & (smallest == highest) & (lowest == highest)
        never_possible = (lowest == jnp.inf) & (smallest == jnp.inf)
        apart = (highest <= lowest) | (largest <= smallest)
        return jnp.any(apart & ~constant & ~never_possible)

    separated = all_right(z, rows) | separates(features)
    if diagonal and z.shape[1] > 2:
        return separated
    return separated | separates(_above_mean(z, possible))


def all_right(z: Features, rows: FitRows) -> Bool[Array, ""]:
    """Check whether every row is classified correctly."""
    others = numerics.max_where(z, ~is_true(rows))
    return jnp.all((rows.decisive == 0) | (numerics.true_class(z, rows.labels) > others))


def _above_mean(z: Features, possible: Bool[Array, "rows classes"]) -> Features:
    """Subtract from scores the mean over the possible classes of their row."""
    z = jnp.where(possible, z, 0)
    return z - (jnp.sum(z, axis=1) / jnp.sum(possible, axis=1, dtype=z.dtype))[:, None]


def is_true(rows: FitRows) -> Bool[Array, "rows classes"]:
    """Mark the true class of each row."""
    return numerics.is_true_class(rows.labels, rows.logits.shape[1])


def diagonal_scores(
    slope: Float[Array, " classes"], intercept: Float[Array, " classes"], logits: Features
) -> Features:
    """Compute w z + b; impossible classes stay impossible."""
    possible = logits != -jnp.inf
    return jnp.where(possible, scores(slope, intercept, jnp.where(possible, logits, 0)), -jnp.inf)
