"""The train state: everything that a step changes, and nothing else."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calib_jax.core.types import Array, PyTree


class TrainState(NamedTuple):
    """Arrays only, so that it is donated, saved and compared whole.

    Attributes:
      step: optimiser steps done.
      params: what is trained.
      model_state: what a network keeps beside its parameters: running statistics.
      opt_state: of the optimiser.
      loss_state: of the objective: the gammas of AdaFocal, the miss rates of recall loss.
      rng: raw key data. It never changes: the key of an example is folded from it, the step and
        the example's number, so that neither resuming nor the number of devices matters.
      average: moving averages of `params` and `model_state`, if they are wanted.
    """

    step: Array
    params: PyTree
    model_state: PyTree
    opt_state: PyTree
    loss_state: PyTree
    rng: Array
    average: PyTree = ()

    @property
    def evaluated(self) -> tuple[PyTree, PyTree]:
        """The parameters and the model state that are evaluated: the averages, if there are any."""
        return self.average or (self.params, self.model_state)


def values_of(state: TrainState) -> dict[str, PyTree]:
    """Take what the network computes with: parameters, statistics, and averages of both.

    Neither the optimiser's state nor the objective's, where an infinity may belong.
    """
    return {name: getattr(state, name) for name in ("params", "model_state", "average")}


def not_finite(values: PyTree) -> str:
    """Name the first array, on the host, with a NaN or an infinity; "" if there is none."""
    for path, leaf in jax.tree.leaves_with_path(values):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not np.isfinite(leaf).all():
            return jax.tree_util.keystr(path, simple=True, separator="/")
    return ""


def create(
    variables: PyTree,
    objective: Any,
    tx: optax.GradientTransformation,
    num_classes: int,
    seed: int,
    *,
    averaged: bool = False,
) -> TrainState:
    """Make the state before the first step.

    Args:
      variables: of a linen network: `params`, and whatever other collections it has.
      objective: its `init` makes the loss state.
      tx: the optimiser.
      num_classes: for the objective.
      seed: of everything random in training.
      averaged: whether moving averages are kept; they begin as what they are of.
    """
    others = {name: value for name, value in variables.items() if name != "params"}
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=variables["params"],
        model_state=others,
        opt_state=tx.init(variables["params"]),
        loss_state=objective.init(num_classes),
        rng=jax.random.key_data(jax.random.key(seed)),
        # Other buffers than the state's own: all of them are donated.
        average=jax.tree.map(jnp.copy, (variables["params"], others)) if averaged else (),
    )
