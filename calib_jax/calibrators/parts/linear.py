r"""The common fit of all scores that are linear in features: $z' = W x + b$ by Newton's method.

W is a matrix, a diagonal, or one number for all classes:

    one number   bias_corrected_temperature
    diagonal     vector; svs after temperature scaling
    matrix       matrix; dirichlet of log-probabilities; sms after temperature scaling

The criterion is the mean NLL plus ridge penalties on W - I and b. The fit starts from W = I, b = 0
and never increases the criterion. Conjugate gradients solve for the steps by products with the
Hessian, so the number of classes may be large.

An impossible class (a logit of -inf) has the score -inf, which a matrix cannot preserve.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
from jaxtyping import Bool, Float

from calib_jax.calibrators.parts import contract, fitting
from calib_jax.calibrators.parts.contract import Code, FitData, FitRows, losses_of
from calib_jax.calibrators.parts.fitting import EXACT, Local
from calib_jax.core import checks, numerics
from calib_jax.core.types import Array, Logits, Number, Scalar, Vector

Features: TypeAlias = Float[Array, "rows classes"]
_Point: TypeAlias = tuple[Array, Array]  # W and b
GAIN = 1e-4  # a fit has converged if a Newton step promises a smaller share of the criterion
_LARGEST_START = 100  # the largest standard deviation of a score at the start
_PRODUCTS = 200  # the largest number of products with the Hessian for one step


def scores(weights: Array, intercept: Float[Array, " classes"], features: Features) -> Features:
    """Compute W x + b for every row; impossible classes stay impossible, unless W is a matrix."""
    if weights.ndim == 2:
        return jnp.matmul(features, weights.T, precision=EXACT) + intercept[None]
    possible = features != -jnp.inf
    # Not `weights * -inf`, because the weight may be 0.
    finite = jnp.where(possible, features, 0)
    scaled = _by_class(weights) * finite + intercept[None]
    return jnp.where(possible, scaled, -jnp.inf)


class _Curvature(NamedTuple):
    """The probabilities, and the parts of the Hessian that couple no two classes.

    Attributes:
      p: the probabilities.
      weights: the diagonal of the Hessian by W.
      both: the entries by W_kk and b_k; 0 if W is one number.
      intercept: the diagonal of the Hessian by b.
    """

    p: Features
    weights: Array
    both: Float[Array, " classes"]
    intercept: Float[Array, " classes"]


def fit(
    rows: FitRows,
    features: Features,
    ridges: tuple[Number | Array, Number],
    max_iterations: Number,
    *,
    ndim: int,
) -> tuple[Array, Float[Array, " classes"], Array]:
    """Minimise the sum of the mean NLL and the penalties, inside a compiled function.

    Args:
      rows: the prepared examples.
      features: the features that W multiplies, -inf for impossible classes.
      ridges: the factors of the squares of the entries of W - I, and of b.
      max_iterations: the largest number of steps.
      ndim: 2 if W is a matrix, 1 if it is diagonal, 0 if it is one number.

    Returns:
      W, b and the code of the state.
    """
    share, num_classes = rows.decisive, features.shape[1]
    possible = features != -jnp.inf
    x, mean, deviation, blank, seen = _standardised(features, share, ridges[1], ndim)
    true = is_true(rows).astype(x.dtype)
    # The parameters of the standardised features: W x + b = V u + c.
    by_input = deviation[None] if ndim == 2 else deviation
    identity = by_input * (jnp.eye(num_classes, dtype=x.dtype) if ndim == 2 else 1), mean
    ridge = jnp.asarray(ridges[0], x.dtype) / jnp.square(by_input)
    ridges = jnp.broadcast_to(ridge, identity[0].shape), jnp.asarray(ridges[1], x.dtype)

    def linear(point: _Point) -> Features:
        return jnp.where(possible, scores(*point, x), 0)

    def sums(residual: Features, x: Features) -> _Point:
        """Multiply by the transpose of `linear`."""
        if ndim == 2:
            by_weight = jnp.matmul(residual.T, x, precision=EXACT)
        else:
            by_weight = jnp.sum(residual * x, axis=0 if ndim else None)
        return by_weight, jnp.sum(residual, axis=0)

    def local(point: _Point) -> Local:
        z = jnp.where(possible, linear(point), -jnp.inf)
        change = jax.tree.map(jnp.subtract, point, identity)
        penalty = jax.tree.map(lambda r, one: r * one, ridges, change)
        value = jnp.sum(numerics.weigh(losses_of(z, rows), share)) + fitting.dot(penalty, change)
        p = jnp.where(share[:, None] > 0, jax.nn.softmax(z), 0)
        by_weight, by_intercept = sums(share[:, None] * (p - true), x)
        # The scores of all classes may rise together: in this direction without curvature a step
        # would make rounding huge.
        by_intercept -= jnp.where(seen, jnp.mean(by_intercept, where=seen), 0)
        gradient = by_weight + 2 * penalty[0], by_intercept + 2 * penalty[1]
        return Local(value, gradient, curvature(p))

    def curvature(p: Features) -> _Curvature:
        """Compute the diagonal of the Hessian by the variance of each indicator of a class."""
        binary = share[:, None] * p * (1 - p)
        both = jnp.sum(binary * x, axis=0)
        by_weight, by_intercept = sums(binary, jnp.square(x))
        if ndim == 0:
            average = jnp.sum(p * x, axis=1, keepdims=True)
            by_weight = jnp.sum(share[:, None] * p * jnp.square(x - average))
            both = jnp.zeros_like(both)
        return _Curvature(p, by_weight + 2 * ridges[0], both, by_intercept + 2 * ridges[1])

    def step_from(here: Local, damping: Number) -> _Point:
        p = here.curvature.p

        def product(direction: _Point) -> _Point:
            """Multiply by the Hessian: diag(p) - p p' applied to the changes of each row."""
            change = linear(direction)
            average = jnp.sum(p * change, axis=1, keepdims=True)
            curved = sums(share[:, None] * p * (change - average), x)
            return jax.tree.map(
                lambda s, r, one: s + (2 * r + more) * one, curved, ridges, direction
            )

        parts = here.curvature.weights, here.curvature.intercept
        more = damping * jnp.mean(jnp.concatenate([jnp.ravel(part) for part in parts]))
        inverse = functools.partial(_divided, here.curvature, more)
        downhill = jax.tree.map(jnp.negative, here.gradient)
        # Near the minimum the promised gain is a small part of the value.
        promised = fitting.dot(downhill, inverse(downhill)) / here.value
        precision = jnp.clip(jnp.sqrt(promised), 3e-3, 0.2)
        return cg(product, downhill, tol=precision, maxiter=_PRODUCTS, M=inverse)[0]

    eps = float(jnp.finfo(x.dtype).eps)

    def done(here: Local, step: _Point) -> Bool[Array, ""]:
        # An NLL of 0 has no relative error.
        return (_promised(here, step) <= 8 * eps * here.value) | (here.value <= 10 * eps)

    # A start with far larger scores is far from the minimum, and probabilities of 0 or 1 are flat.
    nearer = jnp.minimum(1, _LARGEST_START / jnp.max(deviation))
    start = jax.tree.map(lambda leaf: nearer * leaf, identity)
    point, here, step = fitting.newton(local, step_from, done, start, max_iterations=max_iterations)
    settled = _promised(here, step) <= GAIN * here.value
    better = here.value <= local(identity).value
    point = jax.tree.map(lambda new, old: jnp.where(better, new, old), point, identity)
    v, c = _nearest(point, identity, ridges)
    weights = v / by_input
    moved = jnp.matmul(weights, mean, precision=EXACT) if ndim == 2 else weights * mean

    occurs = jnp.any((rows.weight > 0)[:, None] & is_true(rows), axis=0)
    absent = jnp.any(~occurs & seen)
    limitless = absent | all_right(jnp.where(possible, linear((v, c)), -jnp.inf), rows)
    if ndim:
        limitless |= _separable(linear((v, c)), features, rows, diagonal=ndim == 1)
    penalised = jnp.any(ridges[0] > 0) | (ridges[1] > 0)
    code = jnp.where(settled, Code.CONVERGED, Code.STOPPED)
    code = jnp.where(~penalised & limitless, Code.NO_OPTIMUM, code)
    code = jnp.where(jnp.all(blank) & ~absent, Code.INDISTINCT, code)
    return weights, c - moved, code


def no_head(rows: FitRows) -> tuple[tuple[()], Any]:
    """Return no parameters before W and b."""
    return (), Code.CONVERGED


def mean_squares(
    penalties: tuple[Number, ...], rows: FitRows, num_classes: int, ndim: int
) -> tuple[Number | Array, Number]:
    """Penalise the mean square of W - I, off the diagonal only if W is a matrix, and that of b."""
    by_weight, by_intercept = penalties or (0.0, 0.0)
    ridge = by_weight / num_classes
    if ndim == 2:
        ridge = jnp.where(jnp.eye(num_classes, dtype=bool), 0, ridge / (num_classes - 1))
    return ridge, by_intercept / num_classes


class Form(NamedTuple):
    """A calibrator of the parameters `(*head, W, b, state)`.

    Attributes:
      kind: the type of the parameters.
      features: `(logits, *head) -> features`, which W multiplies.
      ndim: as in `fit`.
      head: `rows -> (head, code)`, parameters that are fitted first, and how their fit ended.
      ridges: `(penalties, rows, num_classes, ndim) -> (factors by W, factor by b)`, as in `fit`.
      check: the check of a penalty.
    """

    kind: Any
    features: Callable[..., Features]
    ndim: int
    head: Callable[[FitRows], tuple[tuple[Any, ...], Any]] = no_head
    ridges: Callable[..., tuple[Any, Any]] = mean_squares
    check: Callable[..., None] = checks.at_least

    def fit(
        self, given: tuple[Any, Any, Any], penalties: Mapping[str, Number], max_iterations: Number
    ) -> Any:
        """Validate logits, labels, weights and the penalties that `ridges` takes, and fit."""
        checks.at_least("max_iterations", max_iterations, 1)
        for name, factor in penalties.items():
            self.check(name, factor, 0)
        examples = contract.examples(contract.name_of(self.kind), *given)
        return _fit(self, examples, tuple(penalties.values()), max_iterations)

    def apply(self, params: Any, logits: Any) -> Logits:
        """Compute W x + b for logits of any leading axes."""
        return contract.applied(self.kind, self.calibrated, params, logits)

    def calibrated(self, params: Any, logits: Float[Array, "rows classes"]) -> Features:
        """Compute W x + b for every row."""
        *head, weights, intercept, _ = params
        return scores(weights, intercept, self.features(logits, *head))


@functools.partial(jax.jit, static_argnums=0)
def _fit(
    form: Form, examples: FitData, penalties: tuple[Number, ...], max_iterations: Number
) -> Any:
    rows = examples.rows(mixes_classes=form.ndim == 2)
    head, code_of_head = form.head(rows)
    features = form.features(rows.logits, *head)
    ridges = form.ridges(penalties, rows, features.shape[1], form.ndim)
    weights, intercept, code = fit(rows, features, ridges, max_iterations, ndim=form.ndim)
    code = jnp.where(code_of_head == Code.CONVERGED, code, code_of_head)
    params = form.kind(*head, weights, intercept, contract.PENDING)
    return contract.finished(params, code, rows, scores(weights, intercept, features))


def _by_class(values: Array) -> Array:
    """Add the axis of the rows to one value for each class; return one number unchanged."""
    return values[None] if values.ndim else values


def _standardised(
    features: Features, share: Vector, intercept_ridge: Number, ndim: int
) -> tuple[Features, Float[Array, " classes"], Array, Array, Bool[Array, " classes"]]:
    """Standardise the columns, so that all parameters have one scale.

    With a penalty on b keep the mean, because rounding in b = c - W mean would exceed small values
    of b. If W is one number, so is the deviation.

    Returns:
      The features, 0 for impossible classes; their mean and deviation; whether they are constant;
      and which classes are possible in some row.
    """
    possible = features != -jnp.inf
    x = jnp.where(possible & (share > 0)[:, None], features, 0)
    each = contract.shares(jnp.where(possible, share[:, None], 0).T).T
    # Divide by powers of two first, since the squares of raw features could overflow.
    size = numerics.power_of_two(jnp.max(jnp.abs(x), axis=0 if ndim else None))
    x = x / _by_class(size)
    mean = jnp.sum(each * x, axis=0)
    eps = jnp.finfo(x.dtype).eps
    scatter = jnp.sum(each * jnp.abs(x - mean[None]), axis=0)
    blank = scatter <= 8 * eps * jnp.abs(mean)
    mean = jnp.where(jnp.asarray(intercept_ridge) == 0, mean, 0)
    square = jnp.sum(each * jnp.square(x - mean[None]), axis=0)
    if ndim == 0:
        square, blank = jnp.mean(square), jnp.all(blank)
    deviation = jnp.where(blank, 1 / size, jnp.sqrt(square))
    # Rounding would give a constant column without a mean a huge slope.
    kept = possible & (share > 0)[:, None] & ~_by_class(blank & (jnp.asarray(intercept_ridge) == 0))
    x = jnp.where(kept, (x - mean[None]) / _by_class(deviation), 0)
    return x, size * mean, size * deviation, blank, jnp.any(each > 0, axis=0)


def _promised(here: Local, step: _Point) -> Scalar:
    """Compute the change of the local quadratic by a Newton step.

    Where probabilities of 0 and 1 leave no curvature, rounding makes a huge step uphill: that is
    no sign of a minimum.
    """
    return jnp.abs(fitting.dot(here.gradient, step)) / 2


def _divided(curvature: _Curvature, more: Number, residual: _Point) -> _Point:
    """Divide by the diagonal of the Hessian, or by the 2 x 2 block of W_kk and b_k.

    Args:
      curvature: the Hessian.
      more: a number that is added to its diagonal.
      residual: what to divide.
    """
    by_weight, by_intercept = residual
    # A little more keeps the blocks of constant features definite.
    first = 1.001 * curvature.weights + more
    last = 1.001 * curvature.intercept + more
    if first.ndim == 0:
        return _quotient(by_weight, first), _quotient(by_intercept, last)
    own, of_own = by_weight, first
    if first.ndim == 2:
        own, of_own = jnp.diag(by_weight), jnp.diag(first)
    determinant = of_own * last - jnp.square(curvature.both)
    weights = _quotient(last * own - curvature.both * by_intercept, determinant)
    # A column of zeros has no curvature of its own.
    alone = of_own == 0
    by_both = jnp.where(alone, by_intercept, of_own * by_intercept - curvature.both * own)
    intercept = _quotient(by_both, jnp.where(alone, last, determinant))
    if first.ndim == 2:
        eye = jnp.eye(len(own), dtype=bool)
        weights = jnp.where(eye, weights[:, None], _quotient(by_weight, first))
    return weights, intercept


def _quotient(a: Array, b: Array) -> Array:
    return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)


def _nearest(point: _Point, identity: _Point, ridges: _Point) -> _Point:
    """Return the equivalent point nearest to the identity.

    Adding one vector to all rows of W, or one number to b, changes no probability. A penalty makes
    the optimum unique.
    """
    v, c = point
    if v.ndim == 2:
        shared = jnp.mean(v - identity[0], axis=0, keepdims=True)
        v = jnp.where(jnp.any(ridges[0] > 0), v, v - shared)
    return v, jnp.where(ridges[1] > 0, c, c - jnp.mean(c - identity[1]))


def _separable(
    z: Features, features: Features, rows: FitRows, *, diagonal: bool
) -> Bool[Array, ""]:
    """Check whether a threshold on a score of some class separates it from the others.

    W and b of that class can then grow without bound, and the NLL has no finite minimum. The scores
    are the features, and the fitted scores minus the mean of their row. With more than two classes,
    the second scores are left out if W is diagonal: the score of a class then cannot grow by a
    multiple of the other scores, unless these scores grow as well.
    """
    possible = features != -jnp.inf
    of_class = (rows.weight > 0)[:, None] & is_true(rows) & possible
    of_others = (rows.decisive > 0)[:, None] & ~of_class & possible

    def separates(score: Features) -> Bool[Array, ""]:
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

    separated = separates(jnp.where(possible, features, 0))
    if diagonal and z.shape[1] > 2:
        return separated
    z = jnp.where(possible, z, 0)
    mean = jnp.sum(z, axis=1) / jnp.sum(possible, axis=1, dtype=z.dtype)
    return separated | separates(z - mean[:, None])


def all_right(z: Features, rows: FitRows) -> Bool[Array, ""]:
    """Check whether every row is classified correctly."""
    others = numerics.max_where(z, ~is_true(rows))
    return jnp.all((rows.decisive == 0) | (numerics.true_class(z, rows.labels) > others))


def is_true(rows: FitRows) -> Bool[Array, "rows classes"]:
    """Mark the true class of each row."""
    return numerics.is_true_class(rows.labels, rows.logits.shape[1])
