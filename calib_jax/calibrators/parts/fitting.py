"""One Newton iteration for all convex fits, and logistic regression by it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Integer

from calib_jax.core import numerics
from calib_jax.core.types import Array, Number, PyTree, Scalar, Vector

EXACT = lax.Precision.HIGHEST  # by default accelerators round the factors of a product


class Local(NamedTuple):
    """The value and gradient of a function at a point, and its Hessian or what stands for it."""

    value: Scalar
    gradient: PyTree
    curvature: PyTree


class _Walk(NamedTuple):
    """The state of a Newton iteration, in which the end of a step is still to be judged."""

    point: PyTree
    here: Local
    step: PyTree
    damping: Scalar
    last: Bool[Array, ""]
    ended: Bool[Array, ""]
    iteration: Integer[Array, ""]


def dot(a: PyTree, b: PyTree) -> Scalar:
    """Sum the products of the entries of two trees."""
    return jax.tree.reduce(jnp.add, jax.tree.map(lambda x, y: jnp.sum(x * y), a, b))


def newton(
    local: Callable[[PyTree], Local],
    step_from: Callable[[Local, Number], PyTree],
    done: Callable[[Local, PyTree], Bool[Array, ""]],
    start: PyTree,
    *,
    max_iterations: Number = 100,
) -> tuple[PyTree, Local, PyTree]:
    """Minimise a convex function by damped Newton steps, which never increase it.

    The start is the end of a step of 0, so that the program holds the function and the step once:
    they take most of the seconds in which a fit is compiled.

    Args:
      local: the function with its derivatives; infinite or NaN outside its domain.
      step_from: the Newton step, for a multiple of the curvature added to every curvature.
      done: whether a step is the last one.
      start: the initial point, a tree of arrays.
      max_iterations: the largest number of steps.

    Returns:
      The best point, the function there, and the step from there without damping.
    """
    eps = float(jnp.finfo(jax.tree.leaves(start)[0].dtype).eps)

    def iterate(walk: _Walk) -> _Walk:
        reached = jax.tree.map(jnp.add, walk.point, walk.step)
        there = local(reached)
        size = jnp.abs(walk.here.value)
        better = there.value <= walk.here.value + 4 * eps * size
        # Where rounding of large scores hides the gain of a step, the slope shows it: a convex
        # function that still falls at the end of a step has fallen all the way.
        falling = dot(there.gradient, walk.step) <= 0
        better |= falling & (there.value <= walk.here.value + eps**0.5 * size)
        better |= walk.iteration == 0  # the start
        point, here = jax.tree.map(
            lambda new, old: jnp.where(better, new, old), (reached, there), (walk.point, walk.here)
        )
        # Use the smallest damping that suffices, so that steps are long: in a valley without
        # curvature, a step without damping leads far past the minimum, and a step with much damping
        # hardly moves.
        less = jnp.where(walk.damping < 8 * eps, 0, 0.1 * walk.damping)
        more = jnp.where(walk.damping == 0, 1e-3, 10 * walk.damping)
        damping = jnp.where(better, less, more)
        ended = walk.last | (walk.iteration >= max_iterations) | (damping >= 1e6)
        step = step_from(here, jnp.where(ended, 0, damping))
        return _Walk(point, here, step, damping, done(here, step), ended, walk.iteration + 1)

    shapes = jax.eval_shape(lambda: (local(start), start))
    here, step = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    no, iteration = jnp.array(False), jnp.zeros((), jnp.int32)
    first = _Walk(start, here, step, jnp.zeros_like(here.value), no, no, iteration)
    end = lax.while_loop(lambda walk: ~walk.ended, iterate, first)
    return end.point, end.here, end.step


def dense_step(here: Local, damping: Number, free: Bool[Array, " d"]) -> Float[Array, " d"]:
    """Solve for the minimum of the local quadratic; parameters that are not free stay.

    Args:
      here: the function with its Hessian as the curvature.
      damping: a multiple of the mean curvature, which is added to every curvature.
      free: which parameters to change.
    """
    eps = jnp.finfo(here.gradient.dtype).eps
    gradient = jnp.where(free, here.gradient, 0)
    hessian = jnp.where(free[:, None] & free[None, :], here.curvature, 0)
    size = jnp.trace(hessian) / jnp.maximum(jnp.sum(free, dtype=hessian.dtype), 1)
    # In directions that do not change the function, the gradient and thus the step are 0.
    pinned = jnp.where(free, (damping + 8 * eps) * size, 1)
    return -jnp.linalg.solve(hessian + jnp.diag(pinned), gradient)


def dense_newton(
    local: Callable[[Array], Local], start: Float[Array, " d"], free: Bool[Array, " d"]
) -> tuple[Float[Array, " d"], Scalar, Bool[Array, ""]]:
    """Minimise a convex function of a few parameters whose natural scale is 1.

    Args:
      local: the function with its Hessian.
      start: the initial point; parameters that are not free keep their initial values.
      free: which parameters to fit.

    Returns:
      The best point, its value, and whether the Newton step there is short.
    """
    eps = float(jnp.finfo(start.dtype).eps)
    short = eps**0.5 if eps < 1e-10 else 1e-4
    step_from = lambda here, damping: dense_step(here, damping, free)  # noqa: E731
    done = lambda here, step: ~(jnp.max(jnp.abs(step)) > short)  # noqa: E731
    point, here, step = newton(local, step_from, done, start)
    # Test the step without damping, since damping also makes steps short.
    return point, here.value, jnp.max(jnp.abs(step)) <= 100 * short


def logistic(
    columns: Float[Array, "d rows"], target: Vector, share: Vector, free: Bool[Array, " d"]
) -> tuple[Float[Array, " d"], Scalar, Scalar, Bool[Array, ""]]:
    r"""Fit $\sigma(\sum_j s_j x_j + c)$ to targets in [0, 1].

    Args:
      columns: the features x; the slope of a constant column keeps its initial value.
      target: the target of each row.
      share: the weights, with sum 1.
      free: which slopes to fit, starting from 1; the others are 0.

    Returns:
      The slopes s, the intercept c, the mean NLL, and whether the fit converged.
    """
    # Standardise the columns (mean 0, deviation 1): parameters of one scale need few iterations.
    # Divide by powers of two first, since the squares of raw columns could overflow.
    size = numerics.power_of_two(jnp.max(jnp.where(share > 0, jnp.abs(columns), 0), axis=1))
    mean = _total(columns / size[:, None], share)
    centred = columns / size[:, None] - mean[:, None]
    deviation = jnp.sqrt(_total(jnp.square(centred), share))
    blank = deviation <= 8 * jnp.finfo(columns.dtype).eps * jnp.abs(mean)
    deviation = jnp.where(blank, 1 / size, deviation)
    scaled = jnp.where(blank[:, None], 0, centred / deviation[:, None])
    mean, deviation = size * mean, size * deviation
    features = jnp.concatenate([scaled, jnp.ones_like(target)[None]])

    def local(point: Array) -> Local:
        score = jnp.sum(point[:, None] * features, axis=0)
        p = jax.nn.sigmoid(score)
        losses = jax.nn.softplus(score) - target * score
        curved = features * (share * p * (1 - p))[None]
        return Local(
            jnp.sum(share * losses),
            _total(features, share * (p - target)),
            jnp.matmul(curved, features.T, precision=EXACT),
        )

    # Start from slope 1, limited to 2 on the standardised scale so that few sigmoids saturate.
    start = jnp.append(jnp.where(free, jnp.minimum(deviation, 2), 0), 0.0)
    point, nll, settled = dense_newton(local, start, jnp.append(free, True))
    slopes = point[:-1] / deviation
    return slopes, point[-1] - jnp.sum(slopes * mean), nll, settled


def _total(columns: Float[Array, "d rows"], weights: Vector) -> Float[Array, " d"]:
    return jnp.sum(columns * weights[None], axis=1)
