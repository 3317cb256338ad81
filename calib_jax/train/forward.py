"""The forward pass: the interface between a step and a network."""

from __future__ import annotations

import inspect
from typing import Any, Protocol, runtime_checkable

from calib_jax.core.types import Array, PyTree, Weights
from calib_jax.train.last_layer import HEAD


@runtime_checkable
class Forward(Protocol):
    """`(params, model_state, inputs, *, train, rng, weights) -> (logits, model_state, aux)`."""

    def __call__(
        self,
        params: PyTree,
        model_state: PyTree,
        inputs: PyTree,
        *,
        train: bool,
        rng: Array | None,
        weights: Weights | None,
    ) -> tuple[Array, PyTree, Any]:
        """Apply the network.

        Args:
          params: the parameters.
          model_state: the running statistics.
          inputs: the inputs of the examples.
          train: whether to use batch statistics and apply dropout.
          rng: one key per example.
          weights: one weight per example; batch norm ignores examples of weight 0.
        """
        ...


def linen(module: Any, *, features: bool = False) -> Forward:
    """Convert a Flax linen module, called as `module(inputs, train=..., mask=...)`, to a `Forward`.

    A module whose `__call__` has a parameter `keys`, such as one with dropout, receives one key per
    example in training.

    Args:
      module: the network.
      features: whether `aux` holds the inputs of the layer "head" in evaluation; else it is None.
    """
    parameters = inspect.signature(module.__call__).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    missing = [name for name in ("train", "mask") if name not in parameters and not takes_any]
    if missing:
        raise TypeError(
            f"{type(module).__name__}.__call__ has no parameter {' and no '.join(missing)}: write"
            " it as (self, inputs, *, train, mask=None), where mask has the real rows of a batch."
        )
    takes_keys = "keys" in parameters

    def forward(
        params: PyTree,
        model_state: PyTree,
        inputs: PyTree,
        *,
        train: bool,
        rng: Array | None = None,
        weights: Weights | None = None,
    ) -> tuple[Array, PyTree, Any]:
        variables = {"params": params, **model_state}
        call = {"train": train, "mask": None if weights is None else weights > 0}
        if train and takes_keys:
            call["keys"] = rng
        if features and not train:
            logits, given = _with_features(module, variables, inputs, call["mask"])
            return logits, model_state, given
        if not (train and model_state):
            return module.apply(variables, inputs, **call), model_state, None
        logits, changed = module.apply(variables, inputs, **call, mutable=list(model_state))
        return logits, {**model_state, **changed}, None

    return forward


def _with_features(module: Any, variables: PyTree, inputs: PyTree, mask: Any) -> tuple[Array, Any]:
    """Evaluate a network, and capture the inputs of its last layer."""
    from flax import linen as nn

    given = []

    def keep(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.module.name == HEAD and context.method_name == "__call__":
            given.append(args[0])
        return call(*args, **kwargs)

    with nn.intercept_methods(keep):
        logits = module.apply(variables, inputs, train=False, mask=mask)
    return logits, given[-1] if given else None
