r"""Optimizers in the order of torch: clip, add weight decay, update moments, scale by the rate.

    tx = train.optimizer("sgd", 0.1, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)

As in the papers, weight decay applies to every parameter, including batch norm's and biases, and
goes through the momentum. Clipping applies to the gradient without weight decay.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax.core.inputs import checks
from calib_jax.core.inputs.options import check_options
from calib_jax.core.types import PyTree

Rate = float | Callable[[Any], Any]


def sgd(
    learning_rate: Rate,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    r"""Build SGD: $v \leftarrow \mu v + (g + \lambda w)$, $w \leftarrow w - \eta v$.

    Args:
      learning_rate: $\eta$, or a function of the step.
      momentum: $\mu$.
      nesterov: use $g + \lambda w + \mu v$ instead of v.
      weight_decay: $\lambda$.
      clip_norm: the maximum gradient norm; 0 disables clipping.
    """
    checks.between("momentum", momentum, 0, 1)
    rule = optax.trace(momentum, nesterov=nesterov) if momentum else optax.identity()
    return _chain(rule, learning_rate, weight_decay, clip_norm)


def adam(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    """Build Adam with weight decay added to the gradient, as in torch and the papers."""
    return _chain(_adam_rule(b1, b2, eps), learning_rate, weight_decay, clip_norm)


def adamw(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    """Build AdamW, with weight decay decoupled from the moments of the gradient."""
    checks.at_least("weight_decay", weight_decay, 0)
    rule = optax.chain(_adam_rule(b1, b2, eps), optax.add_decayed_weights(weight_decay))
    return _chain(rule, learning_rate, 0.0, clip_norm)


def _adam_rule(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    checks.between("b1", b1, 0, 1)
    checks.between("b2", b2, 0, 1)
    return optax.scale_by_adam(b1, b2, eps)


def adagrad(
    learning_rate: Rate,
    *,
    eps: float = 1e-10,
    rate_decay: float = 0.0,
    initial_accumulator: float = 0.0,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    r"""Build AdaGrad: $s \leftarrow s + g^2$, $w \leftarrow w - \eta_t g / (\sqrt s + \epsilon)$.

    Args:
      learning_rate: $\eta$, or a function of the step.
      eps: $\epsilon$.
      rate_decay: $\gamma$ of $\eta_t = \eta / (1 + \gamma t)$, with t from 0.
      initial_accumulator: the first s.
      weight_decay: added to the gradient.
      clip_norm: the maximum gradient norm; 0 disables clipping.
    """
    checks.at_least("rate_decay", rate_decay, 0)
    checks.at_least("initial_accumulator", initial_accumulator, 0)
    rule = _adagrad_rule(eps, rate_decay, initial_accumulator)
    return _chain(rule, learning_rate, weight_decay, clip_norm)


class Adagrad(NamedTuple):
    """The number of steps, and the sum of squared gradients."""

    count: Any
    squares: PyTree


def _adagrad_rule(
    eps: float, rate_decay: float, initial_accumulator: float
) -> optax.GradientTransformation:
    """Build AdaGrad's step without the rate, as in torch; Optax adds eps inside the square root."""

    def init(params: PyTree) -> Adagrad:
        filled = jax.tree.map(lambda w: jnp.full_like(w, initial_accumulator), params)
        return Adagrad(jnp.zeros([], jnp.int32), filled)

    def update(g: PyTree, state: Adagrad, params: PyTree = None) -> tuple[PyTree, Adagrad]:
        squares = jax.tree.map(lambda s, g: s + g**2, state.squares, g)
        # float32, so the step is cast back to its own dtype
        slower = 1 + rate_decay * state.count.astype(float)
        step = jax.tree.map(
            lambda g, s: (g / (jnp.sqrt(s) + eps) / slower).astype(jnp.asarray(g).dtype), g, squares
        )
        return step, Adagrad(state.count + 1, squares)

    return optax.GradientTransformation(init, update)


def adadelta(
    learning_rate: Rate,
    *,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    r"""Build AdaDelta: $w \leftarrow w - \eta \sqrt{d + \epsilon} / \sqrt{s + \epsilon} \, g$.

    s and d are means of the squared gradients and steps with decay `rho`; $\eta$ is usually 1.
    """
    checks.between("rho", rho, 0, 1)
    return _chain(optax.scale_by_adadelta(rho, eps), learning_rate, weight_decay, clip_norm)


def rmsprop(
    learning_rate: Rate,
    *,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    r"""Build RMSprop: the gradient divided by $\sqrt s + \epsilon$, then momentum.

    Args:
      learning_rate: the rate, or a function of the step.
      alpha: the decay of s, the mean of squared gradients.
      eps: $\epsilon$.
      momentum: the momentum of the steps.
      centered: subtract the squared mean of the gradients from s.
      weight_decay: added to the gradient.
      clip_norm: the maximum gradient norm; 0 disables clipping.
    """
    checks.between("alpha", alpha, 0, 1)
    checks.between("momentum", momentum, 0, 1)
    scale = optax.scale_by_stddev if centered else optax.scale_by_rms
    rule = scale(alpha, eps, eps_in_sqrt=False)
    rule = optax.chain(rule, optax.trace(momentum)) if momentum else rule
    return _chain(rule, learning_rate, weight_decay, clip_norm)


def adamax(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    r"""Build Adamax: Adam divided by $u \leftarrow \max(\beta_2 u, |g| + \epsilon)$."""
    checks.between("b1", b1, 0, 1)
    checks.between("b2", b2, 0, 1)
    return _chain(optax.scale_by_adamax(b1, b2, eps), learning_rate, weight_decay, clip_norm)


def clipped(max_norm: float) -> optax.GradientTransformation:
    r"""Clip a gradient by global norm: scale by $\min(1, c / (\|g\| + 10^{-6}))$, as in torch."""

    def update(gradient: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        factor = jnp.minimum(max_norm / (optax.tree.norm(gradient) + 1e-6), 1)
        return jax.tree.map(lambda g: g * factor.astype(jnp.asarray(g).dtype), gradient), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _chain(
    rule: optax.GradientTransformation, rate: Rate, weight_decay: float, clip_norm: float
) -> optax.GradientTransformation:
    """Clip, add weight decay, apply a rule, and scale by the rate."""
    if not callable(rate):
        checks.at_least("learning_rate", rate, 0)
    checks.at_least("weight_decay", weight_decay, 0)
    checks.at_least("clip_norm", clip_norm, 0)
    return optax.chain(
        clipped(clip_norm) if clip_norm else optax.identity(),
        optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity(),
        rule,
        optax.scale_by_learning_rate(rate),
    )


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
    "adagrad": adagrad,
    "adadelta": adadelta,
    "rmsprop": rmsprop,
    "adamax": adamax,
}


def optimizer(name: str, learning_rate: Rate, **options: Any) -> optax.GradientTransformation:
    """Build an optimizer by name; `OPTIMIZERS` maps each name to its function."""
    checks.one_of("optimizer", name, OPTIMIZERS)
    check_options(name, OPTIMIZERS[name], options)
    return OPTIMIZERS[name](learning_rate, **options)


def options_of(optimizer: optax.GradientTransformation) -> dict[str, Any]:
    """List the numbers and texts inside the functions of an optimizer, by function and variable.

    They compare the optimizers of two programs. Optax stores options in the closures of its
    functions. Numbers that a function holds in arrays, in objects or in its own code are not seen.

    >>> options_of(optax.sgd(0.1, momentum=0.9))
    {'trace.decay': 0.9, 'trace.nesterov': False, 'scale.step_size': -0.1}
    """
    options: dict[str, list[Any]] = {}
    seen: set[int] = set()

    def visit(name: str, value: Any) -> None:
        if isinstance(value, functools.partial):
            value = (value.func, value.args, value.keywords)
        if isinstance(value, bool | int | float | str):
            options.setdefault(name, []).append(value)
        elif isinstance(value, np.number):
            options.setdefault(name, []).append(value.item())
        elif isinstance(value, tuple | list):
            for element in value:
                visit(name, element)
        elif isinstance(value, dict):
            for key, element in value.items():
                visit(f"{name}.{key}", element)
        elif isinstance(value, types.FunctionType) and id(value) not in seen:
            seen.add(id(value))
            function = value.__qualname__.split(".")[0]
            for variable, cell in zip(
                value.__code__.co_freevars, value.__closure__ or (), strict=True
            ):
                visit(f"{function}.{variable}", cell.cell_contents)

    visit("", optimizer.update)
    return {name: of[0] if len(of) == 1 else of for name, of in options.items()}
