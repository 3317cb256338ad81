r"""Optimizers in the order of torch: clip, add weight decay, update moments, scale by the rate.

    tx = train.optimizer("sgd", 0.1, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)

As in the papers, weight decay applies to every parameter, including batch norm's and biases, and
goes through the momentum. Clipping applies to the gradient without weight decay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from calib_jax.core import checks
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
    r"""Make SGD: $v \leftarrow \mu v + (g + \lambda w)$, $w \leftarrow w - \eta v$.

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
    """Make Adam with weight decay added to the gradient, as in torch and the papers."""
    return _chain(optax.scale_by_adam(b1, b2, eps), learning_rate, weight_decay, clip_norm)


def adamw(
    learning_rate: Rate,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    """Make AdamW, with weight decay decoupled from the gradient's moments."""
    rule = optax.chain(optax.scale_by_adam(b1, b2, eps), optax.add_decayed_weights(weight_decay))
    return _chain(rule, learning_rate, 0.0, clip_norm)


def adagrad(
    learning_rate: Rate,
    *,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    clip_norm: float = 0.0,
) -> optax.GradientTransformation:
    r"""Make AdaGrad as in torch: $s \leftarrow s + g^2$ from 0, $g / (\sqrt s + \epsilon)$."""

    def init(params: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params)

    def update(gradient: PyTree, squares: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        squares = jax.tree.map(lambda s, g: s + g**2, squares, gradient)
        step = jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + eps), gradient, squares)
        return step, squares

    rule = optax.GradientTransformation(init, update)
    return _chain(rule, learning_rate, weight_decay, clip_norm)


def clipped(max_norm: float) -> optax.GradientTransformation:
    r"""Clip a gradient by global norm: scale by $\min(1, c / (\|g\| + 10^{-6}))$, as in torch."""

    def update(gradient: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        factor = jnp.minimum(max_norm / (optax.tree.norm(gradient) + 1e-6), 1)
        return jax.tree.map(lambda g: g * factor.astype(jnp.asarray(g).dtype), gradient), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _chain(
    rule: optax.GradientTransformation, rate: Rate, weight_decay: float, clip_norm: float
) -> optax.GradientTransformation:
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
}


def optimizer(name: str, learning_rate: Rate, **options: Any) -> optax.GradientTransformation:
    """Make an optimizer by name; `OPTIMIZERS` lists the names and their functions."""
    checks.one_of("optimizer", name, OPTIMIZERS)
    checks.check_options(name, OPTIMIZERS[name], options)
    return OPTIMIZERS[name](learning_rate, **options)
