"""What a step calls to go from inputs to logits, so that it need not know the network."""

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
          params: its parameters.
          model_state: its running statistics.
          inputs: of the examples.
          train: whether statistics are those of the batch, and dropout drops.
          rng: one key for each example.
          weights: one for each example; batch norm leaves out those of weight 0.
        """
        ...


def linen(module: Any, *, features: bool = False) -> Forward:
    """Make a Flax linen module, called `module(inputs, train=..., mask=...)`, a forward pass.

    A module whose call takes `keys`, as those with dropout do, gets the key of each example
    while training.

    Args:
      module: the network.
      features: whether `aux` is what its layer "head" is given, in evaluation; else it is None.
    """
    parameters = inspect.signature(module.__call__).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
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
    """Evaluate a network, and keep what its last layer is given."""
    from flax import linen as nn

    given = []

    def keep(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if context.module.name == HEAD and context.method_name == "__call__":
            given.append(args[0])
        return call(*args, **kwargs)

    with nn.intercept_methods(keep):
        logits = module.apply(variables, inputs, train=False, mask=mask)
    return logits, given[-1] if given else None
