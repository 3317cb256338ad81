"""The train state: the arrays that a training step updates."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax.core.display import short_repr
from calib_jax.core.inputs import checks
from calib_jax.core.types import Array, PyTree
from calib_jax.train.devices.parallel import canonical


class TrainState(NamedTuple):
    """The train state. It holds only arrays, so it can be donated, saved and compared as a whole.

    Attributes:
      step: the number of optimizer steps done.
      params: the trained parameters.
      model_state: the running statistics of the network.
      opt_state: the state of the optimizer.
      loss_state: the state of the objective, such as AdaFocal's gammas or recall loss's miss rates.
      rng: raw key data, which is constant. The key of an example is folded from it, the step and
        the example's index, so it does not depend on resumption or the number of devices.
      average: moving averages of `params` and `model_state`; `()` without averaging.
    """

    step: Array
    params: PyTree
    model_state: PyTree
    opt_state: PyTree
    loss_state: PyTree
    rng: Array
    average: PyTree = ()

    def __repr__(self) -> str:
        return short_repr(self)

    @property
    def evaluated(self) -> tuple[PyTree, PyTree]:
        """The parameters and model state used in evaluation: the averages, if there are any."""
        return self.average or (self.params, self.model_state)


def check_state(state: Any) -> None:
    """Raise TypeError for another value in place of a train state, such as variables."""
    if not isinstance(state, TrainState):
        raise TypeError(
            f"state must be a TrainState, got {type(state).__name__}: give the `state` that"
            " train.fit or train.create returns."
        )


def values_of(state: TrainState) -> dict[str, PyTree]:
    """Select the parameters, the model state and the averages of both.

    The states of the optimizer and of the objective are excluded, since they may hold infinities.
    """
    return {name: getattr(state, name) for name in ("params", "model_state", "average")}


def not_finite(values: PyTree) -> str:
    """Return the path of the first host array with a NaN or infinity; "" if there is none."""
    for path, leaf in jax.tree.leaves_with_path(values):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not np.isfinite(leaf).all():
            return jax.tree_util.keystr(path, simple=True, separator="/")
    return ""


def all_finite(states: TrainState) -> Array:
    """Return which runs on one device, `[slots, ...]`, have finite values: `[slots]`."""
    flags = jnp.ones(states.step.shape, bool)
    for leaf in jax.tree.leaves(values_of(states)):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            # The largest magnitude is NaN if any value is; XLA reduces it faster than `all`.
            largest = jnp.abs(leaf).max(axis=tuple(range(1, leaf.ndim)), initial=0)
            flags &= jnp.isfinite(largest)
    return flags


def create(
    variables: PyTree,
    objective: Any,
    tx: optax.GradientTransformation,
    num_classes: int,
    seed: int,
    *,
    averaged: bool = False,
    class_counts: Any = None,
) -> TrainState:
    """Create the initial train state.

    NumPy arrays and Python numbers in `variables` become JAX arrays with JAX's dtypes.

    Args:
      variables: the variables of a linen network: `params` and any other collections.
      objective: the loss, whose `init` creates the loss state.
      tx: the optimizer.
      num_classes: the number of classes, for the objective.
      seed: the seed of the random key.
      averaged: whether to keep moving averages; they start as copies of the variables.
      class_counts: the number of training examples of each class, for objectives that need it.
    """
    checks.seed(seed)
    # The `init` of a custom `Objective` may take no counts.
    counts = () if class_counts is None else (class_counts,)
    if "class_counts" not in inspect.signature(objective.init).parameters:
        counts = ()
    if "params" not in variables:
        raise ValueError(
            f"variables must have the collection 'params', got {', '.join(variables) or 'none'}:"
            " give all that train.init_variables returns."
        )
    params = _arrays(variables["params"])
    others = _arrays({name: value for name, value in variables.items() if name != "params"})
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        model_state=others,
        opt_state=_arrays(tx.init(params)),
        loss_state=_arrays(objective.init(num_classes, *counts)),
        rng=jax.random.key_data(jax.random.key(seed)),
        # Copy, because a buffer can be donated only once.
        average=jax.tree.map(jnp.copy, (params, others)) if averaged else (),
    )


def _arrays(tree: PyTree) -> PyTree:
    """Convert all leaves to JAX arrays with the dtypes of the devices."""

    def array(leaf: Any) -> Array:
        # A copy, because a step may donate the buffer.
        return leaf if isinstance(leaf, jax.Array) else jnp.array(canonical(leaf))

    return jax.tree.map(array, tree)
