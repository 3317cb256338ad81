"""Solvers for convex functions: damped Newton for few parameters, L-BFGS for many.

Neither solver increases the function, and both return whether they converged.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Bool, Float, Integer

from calib_jax.core import numerics
from calib_jax.core.types import Array, Number, PyTree, Scalar, Vector

EXACT = lax.Precision.HIGHEST  # by default accelerators round the factors of a product


class Local(NamedTuple):
    """The value, gradient and Hessian of a function at a point."""

    value: Scalar
    gradient: Float[Array, " d"]
    hessian: Float[Array, "d d"]


class _Walk(NamedTuple):
    """The state of a Newton iteration."""

    point: Float[Array, " d"]
    here: Local
    damping: Scalar
    step: Scalar  # the maximum norm of the last proposed step
    iteration: Integer[Array, ""]


def newton_step(here: Local, free: Bool[Array, " d"], damping: Number = 0.0) -> Float[Array, " d"]:
    """Compute the step to the minimum of the local quadratic; 0 for parameters that are not free.

    Args:
      here: the function at a point.
      free: which parameters to change.
      damping: a multiple of the mean curvature, which is added to every curvature.
    """
    eps = jnp.finfo(here.gradient.dtype).eps
    gradient = jnp.where(free, here.gradient, 0)
    hessian = jnp.where(free[:, None] & free[None, :], here.hessian, 0)
    size = jnp.trace(hessian) / jnp.maximum(jnp.sum(free, dtype=hessian.dtype), 1)
    # In directions that do not change the function, the gradient and thus the step are 0.
    pinned = jnp.where(free, (damping + 8 * eps) * size, 1)
    return -jnp.linalg.solve(hessian + jnp.diag(pinned), gradient)


def newton(
    local: Callable[[Array], Local],
    start: Float[Array, " d"],
    free: Bool[Array, " d"],
    *,
    max_iterations: Number = 100,
) -> tuple[Float[Array, " d"], Scalar, Bool[Array, ""]]:
    """Minimise a convex function of a few parameters whose natural scale is 1.

    Args:
      local: the function with its derivatives; infinite or NaN outside its domain.
      start: the initial point; parameters that are not free keep their initial values.
      free: which parameters to fit.
      max_iterations: the largest number of steps.

    Returns:
      The best point, its value, and whether the Newton step there is short.
    """
    eps = float(jnp.finfo(start.dtype).eps)
    short = eps**0.5 if eps < 1e-10 else 1e-4

    def going(walk: _Walk) -> Array:
        return (walk.step > short) & (walk.iteration < max_iterations) & (walk.damping < 1e6)

    def iterate(walk: _Walk) -> _Walk:
        step = newton_step(walk.here, free, walk.damping)
        there = local(walk.point + step)
        size = jnp.abs(walk.here.value)
        better = there.value <= walk.here.value + 4 * eps * size
        # Where rounding of large scores hides the gain of a step, the slope shows it: a convex
        # function that still falls at the end of a step has fallen all the way.
        falling = jnp.sum(jnp.where(free, there.gradient * step, 0)) <= 0
        better |= falling & (there.value <= walk.here.value + eps**0.5 * size)
        point, here = jax.tree.map(
            lambda a, b: jnp.where(better, a, b),
            (walk.point + step, there),
            (walk.point, walk.here),
        )
        # Use the smallest damping that suffices, so that steps are long: in a valley without
        # curvature, a step without damping leads far past the minimum, and a step with much damping
        # hardly moves.
        less = jnp.where(walk.damping < 8 * eps, 0, 0.1 * walk.damping)
        more = jnp.where(walk.damping == 0, 1e-3, 10 * walk.damping)
        damping = jnp.where(better, less, more)
        return _Walk(point, here, damping, jnp.max(jnp.abs(step)), walk.iteration + 1)

    zero = jnp.zeros((), start.dtype)
    first = _Walk(start, local(start), zero, jnp.ones_like(zero), jnp.zeros((), jnp.int32))
    end = lax.while_loop(going, iterate, first)
    # Test the step without damping, since damping also makes steps short.
    undamped = jnp.max(jnp.abs(newton_step(end.here, free)))
    return end.point, end.here.value, undamped <= 100 * short


class _Descending(NamedTuple):
    """The state of Newton steps by conjugate gradients."""

    point: PyTree
    value: Scalar
    gradient: PyTree
    curvature: PyTree
    factor: Scalar  # scales the next step, halved while steps do not decrease the function
    gain: Scalar  # the decrease that the last whole step promised
    iteration: Integer[Array, ""]
    idle: Integer[Array, ""]  # the number of consecutive steps without a gain


_PRODUCTS = 200  # the largest number of products with the Hessian for one step


def newton_by_products(
    local: Callable[[PyTree], tuple[Scalar, PyTree, PyTree]],
    product: Callable[[PyTree, PyTree], PyTree],
    divided: Callable[[PyTree, PyTree], PyTree],
    start: PyTree,
    *,
    max_iterations: Number = 100,
) -> tuple[PyTree, Bool[Array, ""]]:
    """Minimise a strongly convex function of many parameters by Newton steps.

    Only products with the Hessian are needed: preconditioned conjugate gradients solve for a step,
    more precisely nearer the minimum. After a step that does not decrease the function, the next
    step is half as long.

    Args:
      local: the value, the gradient, and anything that `product` and `divided` need.
      product: the product of the Hessian and a direction.
      divided: an approximate solution for the Hessian, which must be positive definite.
      start: the initial point, a tree of arrays.
      max_iterations: the largest number of steps.

    Returns:
      The best point, and whether a further step promises less than 1e-4 of the value.
    """
    eps = float(jnp.finfo(jax.tree.leaves(start)[0].dtype).eps)

    def dot(a: PyTree, b: PyTree) -> Scalar:
        return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b))))

    def moved(a: PyTree, factor: Scalar, b: PyTree) -> PyTree:
        return jax.tree.map(lambda x, y: x + factor * y, a, b)

    def newton_step(walk: _Descending, precision: Scalar) -> PyTree:
        downhill = jax.tree.map(jnp.negative, walk.gradient)
        hessian = functools.partial(product, walk.curvature)
        inverse = functools.partial(divided, walk.curvature)
        return cg(hessian, downhill, tol=precision, maxiter=_PRODUCTS, M=inverse)[0]

    def going(walk: _Descending) -> Array:
        promising = walk.gain > 8 * eps * walk.value
        return promising & (walk.idle < 5) & (walk.iteration < max_iterations)

    def iterate(walk: _Descending) -> _Descending:
        # Near the minimum the promised gain is a small part of the value.
        precision = jnp.clip(jnp.sqrt(walk.gain / walk.value), 3e-3, 0.2)
        step = newton_step(walk, precision)
        there = local(moved(walk.point, walk.factor, step))
        better = there[0] <= walk.value * (1 + 4 * eps)
        gains = there[0] < walk.value * (1 - 2 * eps)
        reached = moved(walk.point, walk.factor, step), *there
        kept = walk.point, walk.value, walk.gradient, walk.curvature
        point, value, gradient, curvature = jax.tree.map(
            lambda new, old: jnp.where(better, new, old), reached, kept
        )
        factor = jnp.where(better, 1, walk.factor / 2)
        gain = -dot(walk.gradient, step) / 2
        idle = jnp.where(gains, 0, walk.idle + 1)
        return _Descending(
            point, value, gradient, curvature, factor, gain, walk.iteration + 1, idle
        )

    value, gradient, curvature = local(start)
    one, nothing = jnp.ones_like(value), jnp.zeros((), jnp.int32)
    first = _Descending(start, value, gradient, curvature, one, value, nothing, nothing)
    end = lax.while_loop(going, iterate, first)
    promised = dot(end.gradient, divided(end.curvature, end.gradient)) / 2
    return end.point, promised <= 1e-4 * end.value


class Logistic(NamedTuple):
    """A fitted logistic regression: slopes, intercept, mean NLL, and whether it converged."""

    slopes: Float[Array, " d"]
    intercept: Scalar
    nll: Scalar
    settled: Bool[Array, ""]


def logistic(
    columns: Float[Array, "d rows"], target: Vector, share: Vector, free: Bool[Array, " d"]
) -> Logistic:
    r"""Fit $\sigma(\sum_j s_j x_j + c)$ to targets in [0, 1].

    Args:
      columns: the features x; the slope of a constant column keeps its initial value.
      target: the target of each row.
      share: the weights, with sum 1.
      free: which slopes to fit, starting from 1; the others are 0.
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
    point, nll, settled = newton(local, start, jnp.append(free, True))
    slopes = point[:-1] / deviation
    return Logistic(slopes, point[-1] - jnp.sum(slopes * mean), nll, settled)


def _total(columns: Float[Array, "d rows"], weights: Vector) -> Float[Array, " d"]:
    return jnp.sum(columns * weights[None], axis=1)


class _Descent(NamedTuple):
    """The state of an L-BFGS iteration."""

    point: PyTree
    value: Scalar
    gradient: PyTree
    memory: PyTree
    iteration: Integer[Array, ""]
    idle: Integer[Array, ""]  # the number of consecutive steps without a gain


def slopes(dtype: jnp.dtype) -> tuple[float, float]:
    """Return the relative gradient at which L-BFGS stops, and the bound for having converged.

    Rounding may end the line search between the two.
    """
    return (1e-8, 1e-6) if float(jnp.finfo(dtype).eps) < 1e-10 else (1e-5, 2e-3)


def lbfgs(
    function: Callable[[PyTree], Scalar], start: PyTree, *, max_iterations: Number = 1000
) -> tuple[PyTree, Scalar, Integer[Array, ""]]:
    """Minimise a convex function of many parameters, such as a mean loss of features of scale 1.

    Args:
      function: a non-negative function of a tree of arrays.
      start: the initial point.
      max_iterations: the largest number of steps.

    Returns:
      The best point, the norm of the gradient there divided by the value, and the number of steps.
    """
    dtype = jax.tree.leaves(start)[0].dtype
    eps = float(jnp.finfo(dtype).eps)
    fine, _ = slopes(dtype)
    import optax  # takes as long as all of calib_jax.calibrators

    solver = optax.lbfgs(memory_size=20)
    value_and_gradient = optax.value_and_grad_from_state(function)

    def slope(walk: _Descent) -> Scalar:
        # Relative to the loss, because the gradient also vanishes where the loss approaches 0.
        return optax.tree.norm(walk.gradient) / walk.value

    def going(walk: _Descent) -> Array:
        decided = walk.value <= 10 * eps
        moving = (slope(walk) > fine) & (walk.idle < 5) & ~decided
        return moving & (walk.iteration < max_iterations)

    def iterate(walk: _Descent) -> _Descent:
        update, memory = solver.update(
            walk.gradient,
            walk.memory,
            walk.point,
            value=walk.value,
            grad=walk.gradient,
            value_fn=function,
        )
        point = optax.apply_updates(walk.point, update)
        value, gradient = value_and_gradient(point, state=memory)
        better = value <= walk.value
        gains = value < walk.value - 2 * eps * jnp.abs(walk.value)
        point, value, gradient = jax.tree.map(
            lambda new, old: jnp.where(better, new, old),
            (point, value, gradient),
            (walk.point, walk.value, walk.gradient),
        )
        idle = jnp.where(gains, 0, walk.idle + 1)
        return _Descent(point, value, gradient, memory, walk.iteration + 1, idle)

    memory = solver.init(start)
    value, gradient = value_and_gradient(start, state=memory)
    nothing = jnp.zeros((), jnp.int32)
    end = lax.while_loop(going, iterate, _Descent(start, value, gradient, memory, nothing, nothing))
    return end.point, slope(end), end.iteration
