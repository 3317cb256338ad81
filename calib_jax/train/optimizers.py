"""Optimizers in the order of torch.

    rate = train.of_steps(train.schedule("multi_step", 0.1, milestones=(150, 250)), 352)
    tx = train.optimizer("sgd", rate, momentum=0.9, weight_decay=5e-4, clip_norm=2.0)

An optimizer clips, adds weight decay, updates moments and scales by the rate. As in the papers,
weight decay applies to every parameter, including batch norm's and biases, and goes through the
momentum. Clipping applies to the gradient without weight decay.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from calib_jax.core import checks
from calib_jax.core.numerics import at_least_float32
from calib_jax.core.types import PyTree
from calib_jax.train.schedules import Schedule

Rate = float | Schedule


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
    for name, decay in (("b1", b1), ("b2", b2)):
        checks.at_least(name, decay, 0)
        checks.above(f"1 - {name}", 1 - decay, 0)  # the moments are divided by 1 - b^t
    checks.at_least("eps", eps, 0)
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
    checks.at_least("eps", eps, 0)
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


def clipped(max_norm: float) -> optax.GradientTransformation:
    r"""Clip a gradient by global norm: scale by $\min(1, c / (\|g\| + 10^{-6}))$, as in torch."""

    def update(gradient: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        # In float16 the squares of a norm of 256 are infinite.
        norm = optax.tree.norm(jax.tree.map(at_least_float32, gradient))
        factor = jnp.minimum(max_norm / (norm + 1e-6), 1)
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
    function.__name__: function for function in (sgd, adam, adamw, adagrad)
}


def optimizer(name: str, learning_rate: Rate, **options: Any) -> optax.GradientTransformation:
    """Build an optimizer by name; `OPTIMIZERS` maps each name to its function."""
    checks.one_of("optimizer", name, OPTIMIZERS)
    checks.check_options(name, OPTIMIZERS[name], options)
    return OPTIMIZERS[name](learning_rate, **options)


# ------------------------------------------------------------------------------------------------
# Groups of parameters.

DEFAULT = ""
SHOWN = 8  # The number of paths that an error message lists.


def grouped(
    name: str,
    learning_rate: Rate,
    *,
    groups: Mapping[str, Mapping[str, Any]],
    clip_norm: float = 0.0,
    **options: Any,
) -> optax.GradientTransformation:
    """Build an optimizer with groups of parameters, each with its own rule and rate, or frozen.

        tx = train.grouped("sgd", 0.1, weight_decay=5e-4, groups={
            "*/bias": {"weight_decay": 0.0},
            "head/*": {"learning_rate_factor": 10.0},
            "embedding/*": {"name": "adam", "b2": 0.98},
            "stem/*": {"frozen": True},
        })

    A key is a shell pattern (`fnmatch`) for the path of a parameter, such as "layer1/conv1/kernel";
    `*` also matches slashes. The first matching group wins, and all other parameters follow the
    default.

    Clipping uses the norm of all gradients except those of frozen parameters, as in torch.

    Args:
      name: the optimizer of the parameters that are in no group.
      learning_rate: the rate, or a function of the step.
      groups: the settings of each group by pattern. A group may set "frozen", or "name",
        "learning_rate_factor" and the options of its optimizer; other options are the default's, if
        the group's optimizer accepts them.
      clip_norm: the maximum gradient norm; 0 disables clipping.
      options: the options of the default.
    """
    checks.at_least("clip_norm", clip_norm, 0)
    rules = {DEFAULT: optimizer(name, learning_rate, **options)}
    frozen = {pattern for pattern, settings in groups.items() if settings.get("frozen")}
    for pattern, settings in groups.items():
        rules[pattern] = _rule(pattern, name, learning_rate, options, settings)

    def labels(tree: PyTree) -> PyTree:
        return labels_of(tree, list(groups))

    def without_frozen(gradient: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        zeroed = lambda g, label: jnp.zeros_like(g) if label in frozen else g  # noqa: E731
        return jax.tree.map(zeroed, gradient, labels(gradient)), state

    return optax.chain(
        optax.GradientTransformation(lambda params: optax.EmptyState(), without_frozen),
        clipped(clip_norm) if clip_norm else optax.identity(),
        optax.partition(rules, labels),
    )


def _rule(
    pattern: str,
    default: str,
    learning_rate: Rate,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> optax.GradientTransformation:
    """Build the update rule of one group."""
    own = dict(settings)
    frozen, name = own.pop("frozen", False), own.pop("name", default)
    factor = own.pop("learning_rate_factor", 1.0)
    where = f"the group {pattern!r} of the optimizer"
    if frozen:
        if len(settings) > 1:
            raise ValueError(f"{where} is frozen, so it takes no other settings.")
        return optax.set_to_zero()
    checks.one_of("optimizer", name, OPTIMIZERS)
    checks.at_least("learning_rate_factor", factor, 0)
    known = set(checks.options_of(OPTIMIZERS[name])) - {"clip_norm"}
    checks.known_options(where, {*known, "frozen", "learning_rate_factor", "name"}, own)
    inherited = {key: value for key, value in options.items() if key in known}
    return optimizer(name, _times(factor, learning_rate), **{**inherited, **own})


def _times(factor: float, rate: Rate) -> Rate:
    return (lambda step: factor * rate(step)) if callable(rate) else factor * rate


def labels_of(tree: PyTree, patterns: list[str]) -> PyTree:
    """Return the first matching pattern of every leaf, or "" where none matches.

    >>> labels_of({"conv": {"kernel": 1.0, "bias": 0.0}}, ["*/bias"])
    {'conv': {'bias': '*/bias', 'kernel': ''}}
    >>> labels_of({"conv": {"kernel": 1.0}}, ["*/bias"])
    Traceback (most recent call last):
    ValueError: the pattern '*/bias' of the optimizer's groups matches no parameter that is free.
    There are: conv/kernel.
    """
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree.leaves_with_path(tree)
    ]
    labels = [
        next((pattern for pattern in patterns if fnmatch.fnmatchcase(path, pattern)), DEFAULT)
        for path in paths
    ]
    if unused := [pattern for pattern in patterns if pattern not in labels]:
        shown = ", ".join(paths[:SHOWN]) + ", ..." * (len(paths) > SHOWN)
        raise ValueError(
            f"the pattern {unused[0]!r} of the optimizer's groups matches no parameter that is"
            f" free.\nThere are: {shown}."
        )
    return jax.tree.unflatten(jax.tree.structure(tree), labels)
