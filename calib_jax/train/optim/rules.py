r"""Update rules as torch defines them, where those of Optax differ: gradient to step, without rate.

Each returns a transformation from a gradient g to the step s of $w \leftarrow w - \eta s$; only
`asgd` includes the rate, because its decay and its average depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from calib_jax.core.types import PyTree


class Adagrad(NamedTuple):
    """The number of steps, and the sum of squared gradients."""

    count: Any
    squares: PyTree


def adagrad(
    eps: float, rate_decay: float, initial_accumulator: float
) -> optax.GradientTransformation:
    r"""Make $s \leftarrow s + g^2$ and the step $g / (\sqrt s + \epsilon) / (1 + \gamma t)$."""

    def init(params: PyTree) -> Adagrad:
        filled = jax.tree.map(lambda w: jnp.full_like(w, initial_accumulator), params)
        return Adagrad(jnp.zeros([], jnp.int32), filled)

    def update(g: PyTree, state: Adagrad, params: PyTree = None) -> tuple[PyTree, Adagrad]:
        squares = jax.tree.map(lambda s, g: s + g**2, state.squares, g)
        slower = 1 + rate_decay * state.count
        step = jax.tree.map(lambda g, s: _as(g / (jnp.sqrt(s) + eps) / slower, g), g, squares)
        return step, Adagrad(state.count + 1, squares)

    return optax.GradientTransformation(init, update)


class Adadelta(NamedTuple):
    """Running means of the squared gradients and of the squared steps."""

    squares: PyTree
    steps: PyTree


def adadelta(rho: float, eps: float) -> optax.GradientTransformation:
    r"""Make the step $\sqrt{d + \epsilon} / \sqrt{s + \epsilon} \, g$ from running means s, d."""

    def init(params: PyTree) -> Adadelta:
        return Adadelta(*(jax.tree.map(jnp.zeros_like, params) for _ in range(2)))

    def update(g: PyTree, state: Adadelta, params: PyTree = None) -> tuple[PyTree, Adadelta]:
        squares = _mean(state.squares, g, rho, power=2)
        step = jax.tree.map(
            lambda g, s, d: jnp.sqrt(d + eps) / jnp.sqrt(s + eps) * g, g, squares, state.steps
        )
        return step, Adadelta(squares, _mean(state.steps, step, rho, power=2))

    return optax.GradientTransformation(init, update)


class RMSprop(NamedTuple):
    """Running means of the squared gradients and, if centered, of the gradients."""

    squares: PyTree
    gradients: PyTree


def rmsprop(alpha: float, eps: float, centered: bool) -> optax.GradientTransformation:
    r"""Make the step $g / (\sqrt{s - m^2} + \epsilon)$; $m = 0$ unless centered."""

    def init(params: PyTree) -> RMSprop:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return RMSprop(zeros, zeros if centered else None)

    def update(g: PyTree, state: RMSprop, params: PyTree = None) -> tuple[PyTree, RMSprop]:
        variance = squares = _mean(state.squares, g, alpha, power=2)
        gradients = None
        if centered:
            gradients = _mean(state.gradients, g, alpha, power=1)
            variance = jax.tree.map(lambda s, m: s - m**2, squares, gradients)
        step = jax.tree.map(lambda g, v: g / (jnp.sqrt(v) + eps), g, variance)
        return step, RMSprop(squares, gradients)

    return optax.GradientTransformation(init, update)


class Adamax(NamedTuple):
    """The number of steps, the running mean and the decaying maximum of the gradients."""

    count: Any
    mean: PyTree
    largest: PyTree


def adamax(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    r"""Make the step $m / u / (1 - \beta_1^t)$, $u \leftarrow \max(\beta_2 u, |g| + \epsilon)$."""

    def init(params: PyTree) -> Adamax:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return Adamax(jnp.zeros([], jnp.int32), zeros, zeros)

    def update(g: PyTree, state: Adamax, params: PyTree = None) -> tuple[PyTree, Adamax]:
        count, mean = state.count + 1, _mean(state.mean, g, b1, power=1)
        largest = jax.tree.map(lambda u, g: jnp.maximum(b2 * u, abs(g) + eps), state.largest, g)
        unbiased = 1 - jnp.asarray(b1, float) ** count
        step = jax.tree.map(lambda m, u: _as(m / u / unbiased, m), mean, largest)
        return step, Adamax(count, mean, largest)

    return optax.GradientTransformation(init, update)


class ASGD(NamedTuple):
    """The number of steps, and the average of the parameters since step t0."""

    count: Any
    average: PyTree


def asgd(
    rate: Callable[[Any], Any], lambd: float, alpha: float, t0: float
) -> optax.GradientTransformation:
    r"""Make $w \leftarrow w - \eta_t (g + \lambda w)$ and the average of w from step $t_0$ on.

    $\eta_t = \eta / (1 + \lambda \eta t)^\alpha$, with t from 0 and $\eta$ the rate of this step.
    torch takes the rate of the step before, which differs only if the rate follows a schedule.
    The updates include the sign and the rate.
    """

    def init(params: PyTree) -> ASGD:
        return ASGD(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(g: PyTree, state: ASGD, params: PyTree = None) -> tuple[PyTree, ASGD]:
        if params is None:
            raise ValueError("asgd needs the parameters: call update(gradient, state, params).")
        base = jnp.asarray(rate(state.count), float)
        eta = base / (1 + lambd * base * state.count) ** alpha
        mu = 1 / jnp.maximum(1.0, jnp.asarray(state.count, float) - t0)
        step = jax.tree.map(lambda g, w: _as(-eta * (g + lambd * w), g), g, params)
        average = jax.tree.map(
            lambda a, w, s: _as(a + mu * (w + s - a), a), state.average, params, step
        )
        return step, ASGD(state.count + 1, average)

    return optax.GradientTransformation(init, update)


def _mean(before: PyTree, new: PyTree, decay: float, *, power: int) -> PyTree:
    return jax.tree.map(lambda m, x: decay * m + (1 - decay) * x**power, before, new)


def _as(value: Any, like: Any) -> Any:
    """Keep the dtype of a gradient, because the rate and the count are float32."""
    return value.astype(jnp.asarray(like).dtype)
