r"""One step of training, and one of evaluation, for any objective.

A training step does, on every device with its part of the batch:

    logits -> evidence -> all_reduce -> update         clock "step" alone: before the state is used
    loss = sum_n w_n l_n  or  sum_n w_n l_n / sum_n w_n,   over the batches of all devices
    gradient = psum of the devices' gradients -> optimiser

The terms of a batch are summed over devices and never averaged over them: devices whose parts
hold different numbers of real examples, or labelled pixels, weigh as much as these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from calib_jax.core import checks
from calib_jax.core.numerics import first_argmax
from calib_jax.core.progress import Progress
from calib_jax.core.rows import weigh
from calib_jax.core.statistics import NOTHING, Joint, total
from calib_jax.core.types import Array, AxisName, PyTree
from calib_jax.train.forward import Forward
from calib_jax.train.last_layer import LastLayer
from calib_jax.train.state import TrainState

REDUCTIONS = ("sum", "mean")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """Examples of one step.

    Attributes:
      inputs: a tree of arrays.
      labels: `[rows, ...]`.
      weights: `[rows]` or of the shape of the labels; 0 for rows that only fill the batch.
      index: `[rows]`, the number of each example, from which its random key is made.
    """

    inputs: PyTree
    labels: Any
    weights: Any
    index: Any


# (key of the step, keys of the examples, which are real, inputs, labels, axis_name) -> inputs
# between two examples each, the labels of the others, the share of the ones.
Mix = Callable[..., tuple[PyTree, Array, Array]]


def identity(inputs: PyTree) -> PyTree:
    """Leave inputs as they are."""
    return inputs


def make_train_step(
    forward: Forward,
    objective: Any,
    tx: optax.GradientTransformation,
    *,
    reduction: str = "mean",
    axis_name: AxisName = None,
    accumulate: int = 1,
    augment: Callable[[Array, PyTree], PyTree] | None = None,
    prepare: Callable[[PyTree], PyTree] = identity,
    mix: Mix | None = None,
    progress_at: Callable[[Array], Progress] = lambda step: Progress(step, 0, 1),
    average: float = 0.0,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """Make the step `(state, batch) -> (state, measured)`.

    Args:
      forward: of the network; `linen(module)` makes one.
      objective: what is minimised.
      tx: the optimiser.
      reduction: "mean" over the weights of the batch, or "sum", as in the papers' recipes.
      axis_name: of the devices, inside `data_parallel`.
      accumulate: parts of the batch that are taken one after another, for want of memory. What
        couples the examples of a batch (MMCE, batch norm, clock "step", mixup) sees one part.
      augment: `(key, inputs of one example) -> inputs`, before `prepare`.
      prepare: `(inputs) -> inputs` of a batch: such as bytes to normalised floats.
      mix: `data.mixup(alpha)`: from two examples one. An objective that takes no soft labels
        gets `share l(a) + (1 - share) l(b)`.
      progress_at: from the step to how far training has come, for objectives of clock "step".
      average: the decay of the state's moving averages, if it has some.

    Returns:
      The step. `measured` are totals over the global batch: weighted `loss` and `hit`,
      `weight`; and `gradient_norm`, before any clipping.
    """
    checks.one_of("reduction", reduction, REDUCTIONS)
    checks.at_least("accumulate", accumulate, 1)
    checks.between("average", average, 0, 1)

    def loss_of(
        params: PyTree, model_state: PyTree, loss_state: PyTree, batch: Batch, key: Array, now: Any
    ) -> tuple[Array, Any]:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch.index)
        inputs = batch.inputs if augment is None else jax.vmap(augment)(keys, batch.inputs)
        inputs, weights = prepare(inputs), weights_of(batch)
        real = _per_row(weights)
        parts: tuple[_Labelled, ...] = ((batch.labels, weights),)
        if mix is not None:
            inputs, others, share = mix(key, keys, real > 0, inputs, batch.labels, axis_name)
            parts = ((batch.labels, weights * share), (others, weights * (1 - share)))
        logits, model_state, _ = forward(
            params, model_state, inputs, train=True, rng=keys, weights=real
        )
        if objective.clock == "step":
            seen = [objective.evidence(loss_state, logits, labels, w) for labels, w in parts]
            evidence = (seen[0] + seen[1] if mix else seen[0]).all_reduce(axis_name)
            loss_state = objective.update(loss_state, evidence, progress_at(now))
        if mix is not None and takes_soft_labels(objective, loss_state, logits, batch.labels):
            classes = logits.shape[-1]
            one, other = (jax.nn.one_hot(labels, classes) for labels, _ in parts)
            parts = ((share * one + (1 - share) * other, weights),)
        loss = sum(
            jnp.sum(
                weigh(objective.value(loss_state, logits, labels, part, axis_name=axis_name), part)
            )
            for labels, part in parts
        )
        hit = weigh((first_argmax(logits) == batch.labels).astype(jnp.float32), weights)
        measured = {"loss": loss, "hit": jnp.sum(hit), "weight": jnp.sum(weights)}
        return jnp.asarray(loss), (model_state, loss_state, measured)

    gradient_of = jax.grad(loss_of, has_aux=True)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)

        def add(carry: Any, part: Batch) -> tuple[Any, None]:
            gradient, model_state, loss_state, measured = carry
            more, (model_state, loss_state, found) = gradient_of(
                state.params, model_state, loss_state, part, key, state.step
            )
            summed = jax.tree.map(jnp.add, (gradient, measured), (more, found))
            return (summed[0], model_state, loss_state, summed[1]), None

        if accumulate == 1:
            gradient, (model_state, loss_state, measured) = gradient_of(
                state.params, state.model_state, state.loss_state, batch, key, state.step
            )
        else:
            parts = jax.tree.map(lambda leaf: leaf.reshape(accumulate, -1, *leaf.shape[1:]), batch)
            first = jax.tree.map(lambda leaf: leaf[0], parts)
            start = (state.params, state.model_state, state.loss_state)
            shapes = jax.eval_shape(gradient_of, *start, first, key, state.step)
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (shapes[0], shapes[1][2]))
            carry = (zeros[0], state.model_state, state.loss_state, zeros[1])
            (gradient, model_state, loss_state, measured), _ = lax.scan(add, carry, parts)
        gradient, measured = total((gradient, measured), axis_name)
        if reduction == "mean":
            mass = measured["weight"]
            mass = jnp.where(mass > 0, mass, 1)
            gradient = jax.tree.map(lambda leaf: leaf / mass.astype(leaf.dtype), gradient)
        measured["gradient_norm"] = optax.tree.norm(gradient)
        updates, opt_state = tx.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        averages = state.average
        if averages:
            averages = moved(averages, (params, model_state), state.step, average)
        return TrainState(
            step=state.step + 1,
            params=params,
            model_state=model_state,
            opt_state=opt_state,
            loss_state=loss_state,
            rng=state.rng,
            average=averages,
        ), measured

    return train_step


_Labelled = tuple[Array, Array]


def moved(averages: PyTree, values: PyTree, step: Array, decay: float) -> PyTree:
    r"""Move averages towards values: $a \leftarrow d_t a + (1 - d_t) x$.

    The decay grows as $d_t = \min(d, (1 + t) / (10 + t))$: weights of the beginning, which are
    random, would else stay in the average for long.
    """
    share = jnp.minimum(decay, (1 + step) / (10 + step))
    return jax.tree.map(
        lambda a, x: (share * a + (1 - share) * x).astype(a.dtype), averages, values
    )


def make_eval_step(
    forward: Forward,
    metrics: Mapping[str, Any],
    *,
    objective: Any = None,
    axis_name: AxisName = None,
    prepare: Callable[[PyTree], PyTree] = identity,
    last_layer: LastLayer | None = None,
) -> Callable[[TrainState, Batch], Joint]:
    """Make the step `(state, batch) -> statistics`, which merge over batches with `+`.

    Args:
      forward: of the network.
      metrics: by name; each has `stat(logits, labels, weights)`.
      objective: whose evidence is wanted too.
      axis_name: of the devices: the statistics are then those of all.
      prepare: as in training.
      last_layer: statistics of it are wanted too; `aux` of the forward pass must be its inputs.

    Returns:
      The step; it gives a `Joint` of `"metrics"`, a `Joint` by their names, `"evidence"` and
      `"last_layer"`.
    """

    def eval_step(state: TrainState, batch: Batch) -> Joint:
        weights = weights_of(batch)
        logits, _, aux = forward(
            *state.evaluated,
            prepare(batch.inputs),
            train=False,
            rng=None,
            weights=_per_row(weights),
        )
        seen = (logits, batch.labels, weights)
        stats = Joint({name: metric.stat(*seen) for name, metric in metrics.items()})
        evidence = NOTHING if objective is None else objective.evidence(state.loss_state, *seen)
        norms = NOTHING if last_layer is None else last_layer.stat(state.loss_state, *seen, aux)
        found = {"metrics": stats, "evidence": evidence, "last_layer": norms}
        return Joint(found).all_reduce(axis_name)

    return eval_step


def weights_of(batch: Batch) -> Array:
    """Give every label its weight: that of its example, if there is only one."""
    missing = batch.labels.ndim - batch.weights.ndim
    weights = batch.weights.reshape(batch.weights.shape + (1,) * missing)
    return jnp.broadcast_to(weights, batch.labels.shape)


def _per_row(weights: Array) -> Array:
    return weights if weights.ndim == 1 else jnp.max(weights.reshape(len(weights), -1), axis=1)


def takes_soft_labels(objective: Any, state: PyTree, logits: Array, labels: Array) -> bool:
    """Find out whether an objective takes distributions for labels, by asking it."""
    soft = jax.ShapeDtypeStruct(logits.shape, logits.dtype)
    weights = jax.ShapeDtypeStruct(labels.shape, jnp.float32)
    try:
        jax.eval_shape(lambda z, q, w: objective.value(state, z, q, w), logits, soft, weights)
    except (TypeError, ValueError):
        return False
    return True
