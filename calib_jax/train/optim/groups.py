"""One optimizer with groups of parameters, each with its own rule, rate and decay, or frozen.

    tx = train.grouped("sgd", 0.1, weight_decay=5e-4, groups={
        "*/bias": {"weight_decay": 0.0},
        "head/*": {"learning_rate_factor": 10.0},
        "embedding/*": {"name": "adam", "b2": 0.98},
        "stem/*": {"frozen": True},
    })

A key is a shell pattern (`fnmatch`) for the path of a parameter, such as "layer1/conv1/kernel"; `*`
also matches slashes. The first matching group wins, and all other parameters follow the default.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from calib_jax.core.inputs import checks
from calib_jax.core.inputs.options import options_of
from calib_jax.core.types import PyTree
from calib_jax.train.optim.optimizers import OPTIMIZERS, Rate, clipped, optimizer

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
    """Build an optimizer with groups of parameters.

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
    known = set(options_of(OPTIMIZERS[name])) - {"clip_norm"}
    if unknown := sorted(set(own) - known):
        allowed = [*sorted(known), "frozen", "learning_rate_factor", "name"]
        raise TypeError(
            f"{where} has no option {unknown[0]!r} (it has {', '.join(allowed)})"
            f"{checks.nearest(unknown[0], allowed)}"
        )
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
    ValueError: the pattern '*/bias' of the optimizer's groups matches no parameter.
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
    for pattern in patterns:
        if pattern not in labels:
            shown = ", ".join(paths[:SHOWN])
            more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
            matched = any(fnmatch.fnmatchcase(path, pattern) for path in paths)
            only = "only parameters of the groups before it" if matched else "no parameter"
            raise ValueError(
                f"the pattern {pattern!r} of the optimizer's groups matches {only}.\n"
                f"There are: {shown}{more}."
            )
    return jax.tree.unflatten(jax.tree.structure(tree), labels)
