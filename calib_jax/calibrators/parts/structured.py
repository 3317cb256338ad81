r"""The common fit of structured vector and matrix scaling: $z' = x + W x + b$, near the identity.

The features are $x = \log ((1 - u)\, \mathrm{softmax}(z / T) + u / K)$ with the T of temperature
scaling and u = 1 / (n + 1) for n examples. Ridge penalties, smaller for more examples, hold W and b
near 0. The criterion is strongly convex, so Newton steps find the single optimum for any number of
classes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float

from calib_jax.calibrators import temperature
from calib_jax.calibrators.parts import contract, fitting, linear
from calib_jax.calibrators.parts.contract import Code, FitData, losses_of
from calib_jax.core.rows import weigh
from calib_jax.core.temperature import scaled
from calib_jax.core.types import Array, Logits, Number, Scalar

_Point: TypeAlias = tuple[Array, Array]  # changes of W and of b


class Penalties(NamedTuple):
    """The factors of the squares of diagonal entries, entries off the diagonal, and intercepts."""

    diagonal: Number
    off_diagonal: Number
    intercept: Number


def features(logits: Logits, temperature: Number, uniform: Number) -> Logits:
    """Compute the logarithm of the mixture of softmax(z / T) and the uniform distribution.

    The mixture keeps features finite. Impossible classes stay impossible, outside the mixture.

    Args:
      logits: `[*batch, classes]`.
      temperature: T.
      uniform: the weight of the uniform distribution.
    """
    possible = logits != -jnp.inf
    # Subtract first: the rounding of a quotient depends on the size of the logits.
    below = logits - jnp.max(logits, axis=-1, keepdims=True)
    x = jax.nn.log_softmax(scaled(below, temperature)) + jnp.log1p(-uniform)
    even = jnp.log(uniform / jnp.sum(possible, axis=-1, keepdims=True, dtype=x.dtype))
    return jnp.where(possible, jnp.logaddexp(x, even), -jnp.inf)


def calibrated(params: Any, logits: Float[Array, "rows classes"]) -> Float[Array, "rows classes"]:
    """Compute W x + b for the parameters T, u, W (or its diagonal) and b."""
    fitted_temperature, uniform, weights, intercept, _ = params
    scores = linear.diagonal_scores if weights.ndim == 1 else linear.scores
    return scores(weights, intercept, features(logits, fitted_temperature, uniform))


@functools.partial(jax.jit, static_argnames=("kind", "diagonal"))
def fit(
    kind: Callable[..., Any],
    examples: FitData,
    penalties: Penalties,
    max_iterations: Number,
    *,
    diagonal: bool,
) -> Any:
    r"""Minimise the sum of the mean NLL and the penalties.

    For K classes and examples of total weight n the factors are multiplied by K / n (diagonal and
    intercepts) and K (K - 1) / n (off the diagonal).

    Args:
      kind: the type of the parameters: T, the weight of the uniform distribution in the features, W
        (or its diagonal), b and the state.
      examples: the checked examples.
      penalties: the factors.
      max_iterations: the largest number of Newton steps.
      diagonal: whether W is diagonal.
    """
    rows = examples.rows(mixes_classes=not diagonal)
    num_classes = rows.logits.shape[1]
    scaling = temperature.fit_rows(rows)
    share = rows.decisive
    total = jnp.sum(jnp.where(share > 0, rows.weight, 0))
    uniform = 1 / (total + 1)
    x = features(rows.logits, scaling.temperature, uniform)
    possible = x != -jnp.inf
    x = jnp.where(possible, x, 0)
    per_parameter = num_classes / jnp.where(total > 0, total, 1)
    ridge = jnp.asarray(penalties.diagonal * per_parameter, x.dtype)
    if not diagonal:
        others = penalties.off_diagonal * per_parameter * (num_classes - 1)
        ridge = jnp.where(jnp.eye(num_classes, dtype=bool), ridge, others)
    ridges = (ridge, jnp.asarray(penalties.intercept * per_parameter, x.dtype))

    def changes(point: _Point) -> Array:
        """Compute W x + b."""
        return jnp.where(possible, linear.scores(*point, x), 0)

    def sums(residual: Array) -> _Point:
        """Multiply by the transpose of `changes`."""
        by_weight = jnp.sum(residual * x, axis=0) if diagonal else _product(residual, x)
        return by_weight, jnp.sum(residual, axis=0)

    def local(point: _Point) -> tuple[Scalar, _Point, _Curvature]:
        z = jnp.where(possible, x + changes(point), -jnp.inf)
        penalty = [jnp.sum(r * jnp.square(leaf)) for r, leaf in zip(ridges, point, strict=True)]
        value = jnp.sum(weigh(losses_of(z, rows), share)) + sum(penalty)
        p = jax.nn.softmax(z)
        gradient = sums(share[:, None] * (p - linear.is_true(rows).astype(p.dtype)))
        gradient = jax.tree.map(lambda g, r, leaf: g + 2 * r * leaf, gradient, ridges, point)
        binary = share[:, None] * p * (1 - p)
        square = jnp.square(x)
        curvature = _Curvature(
            p,
            (jnp.sum(binary * square, axis=0) if diagonal else _product(binary, square))
            + 2 * ridges[0],
            jnp.sum(binary * x, axis=0),
            jnp.sum(binary, axis=0) + 2 * ridges[1],
        )
        return value, gradient, curvature

    def product(curvature: _Curvature, direction: _Point) -> _Point:
        """Multiply by the Hessian: diag(p) - p p' applied to the changes of each row."""
        change, p = changes(direction), curvature.p
        mean = jnp.sum(p * change, axis=1, keepdims=True)
        curved = sums(share[:, None] * p * (change - mean))
        return jax.tree.map(lambda s, r, leaf: s + 2 * r * leaf, curved, ridges, direction)

    shape = (num_classes,) if diagonal else (num_classes, num_classes)
    start = jnp.zeros(shape, x.dtype), jnp.zeros(num_classes, x.dtype)
    point, settled = fitting.newton_by_products(
        local, product, _divided, start, max_iterations=max_iterations
    )
    code = jnp.where(settled, Code.CONVERGED, Code.STOPPED)
    code = jnp.where(scaling.state.converged, code, scaling.state.code)
    identity = jnp.ones(shape, x.dtype) if diagonal else jnp.eye(num_classes, dtype=x.dtype)
    values = scaling.temperature, uniform, identity + point[0], point[1]
    params = kind(*values, contract.placeholder(rows.logits.dtype))
    return contract.finished(params, code, rows, calibrated(params, rows.logits))


class _Curvature(NamedTuple):
    """The probabilities, and the parts of the Hessian that couple no two classes.

    Attributes:
      p: the probabilities.
      weights: the diagonal of the Hessian by W.
      both: the entries by W_kk and b_k.
      intercept: the diagonal of the Hessian by b.
    """

    p: Float[Array, "rows classes"]
    weights: Array
    both: Float[Array, " classes"]
    intercept: Float[Array, " classes"]


def _divided(curvature: _Curvature, residual: _Point) -> _Point:
    """Divide by the diagonal of the Hessian, or by the 2 x 2 block of W_kk and b_k."""
    by_weight, by_intercept = residual
    one = by_weight.ndim == 1
    first, mixed, last = curvature.weights, curvature.both, curvature.intercept
    own, of_own = (by_weight, first) if one else (jnp.diag(by_weight), jnp.diag(first))
    determinant = of_own * last - jnp.square(mixed)
    weights = (last * own - mixed * by_intercept) / determinant
    intercept = (of_own * by_intercept - mixed * own) / determinant
    if not one:
        eye = jnp.eye(len(own), dtype=bool)
        weights = jnp.where(eye, weights[:, None], by_weight / first)
    return weights, intercept


def _product(residual: Float[Array, "rows classes"], x: Float[Array, "rows classes"]) -> Array:
    return jnp.matmul(residual.T, x, precision=fitting.EXACT)
