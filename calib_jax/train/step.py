r"""Training and evaluation steps for any objective.

A training step computes, on every device with the device's part of the batch:

    logits -> evidence -> all_reduce -> update         with clock "step" only, before the loss
    loss = sum_n w_n l_n  or  sum_n w_n l_n / sum_n w_n,   over the labels of all devices' batches
    gradient = psum of the devices' gradients -> optimizer

The terms of a batch are summed over devices, never averaged, so each example or labelled pixel has
the same weight whichever device holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from calib_jax.core import checks
from calib_jax.core.examples import Examples, check_weights
from calib_jax.core.numerics import first_argmax, valid, weigh, wide
from calib_jax.core.statistics import NOTHING, Joint, Sums, total, varying
from calib_jax.core.types import Array, AxisName, Progress, PyTree
from calib_jax.train.forward import Forward, LastLayer, outputs_of
from calib_jax.train.state import REDUCTIONS, Augment, Batch, Mix, TrainState, check_parts, identity


def make_train_step(
    forward: Forward,
    objective: Any,
    tx: optax.GradientTransformation,
    *,
    reduction: str = "mean",
    axis_name: AxisName = None,
    accumulate: int = 1,
    augment: Augment | None = None,
    prepare: Callable[[PyTree], PyTree] = identity,
    mix: Mix | None = None,
    progress_at: Callable[[Array], Progress] = lambda step: Progress(step, 0, 1),
    average: float = 0.0,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Array]]]:
    """Build the training step `(state, batch) -> (state, measured)`.

    The step updates the state of an objective with clock "step". With the clocks "epoch" and
    "validation" the caller updates it, with `objective.update` and
    `state._replace(loss_state=...)`.

    Args:
      forward: the forward pass of the network, such as `linen(module)`.
      objective: the loss to minimise.
      tx: the optimizer. Transformations that need `value`, such as
        `optax.contrib.reduce_on_plateau`, get the loss of the batch after `reduction`.
      reduction: "mean" over the weights of the batch; "sum", as in the papers' recipes; or
        "examples": the sum over the labels of an example, and the mean over examples, where an
        example's weight is the largest weight of its labels.
      axis_name: the device axis inside `data_parallel`.
      accumulate: the number of sequential microbatches, to save memory. Operations that couple the
        examples of a batch (MMCE, batch norm, clock "step", mixup) act on one microbatch.
      augment: `(key, Examples) -> Examples` of one example, applied before `prepare`; its weights
        have the shape of its labels.
      prepare: `(inputs) -> inputs` of a batch, such as bytes to normalised floats.
      mix: mixes pairs of examples, such as `data.mixup(alpha)`. An objective without soft labels
        computes `share l(a) + (1 - share) l(b)`.
      progress_at: the training progress at a step, for objectives with clock "step".
      average: the decay of the state's moving averages, if it has any.

    Returns:
      The step. `measured` holds totals over the global batch (weighted `loss`, weighted `hit`,
      `weight` and `examples`) and `gradient_norm` before clipping. A batch whose weights are all 0
      changes nothing but the number of steps; a schedule inside `tx` does not count it.
    """
    check_parts(forward, {}, objective=objective, tx=tx)
    checks.one_of("reduction", reduction, REDUCTIONS)
    checks.at_least("accumulate", accumulate, 1)
    checks.between("average", average, 0, 1)

    def loss_of(
        params: PyTree, model_state: PyTree, loss_state: PyTree, batch: Batch, key: Array, now: Any
    ) -> tuple[Array, Any]:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, batch.index)
        examples = Examples(batch.inputs, batch.labels, weights_of(batch))
        if augment is not None:
            examples = _augmented(augment, keys, examples)
        inputs, labels, weights = prepare(examples.inputs), examples.labels, examples.weights
        real = _per_row(weights)
        parts: tuple[_Labelled, ...] = ((labels, weights),)
        if mix is not None:
            batch_of = (key, keys, real > 0, inputs)
            _, other_weights, _ = mix(*batch_of, weights, axis_name)
            inputs, others, share = mix(*batch_of, labels, axis_name)
            parts = ((labels, weights * share), (others, other_weights * (1 - share)))
        outputs = forward(params, model_state, inputs, train=True, rng=keys, weights=real)
        logits, model_state, _ = outputs_of(outputs, len(real))
        if objective.clock == "step":
            seen = [objective.evidence(loss_state, logits, labels, w) for labels, w in parts]
            evidence = (seen[0] + seen[1] if mix else seen[0]).all_reduce(axis_name)
            update = same_kind(objective.update)
            loss_state = update(loss_state, evidence, progress_at(now))
        if mix is not None and takes_soft_labels(objective, loss_state, logits, labels):
            parts = (_soft(parts, share, (weights, other_weights), logits.shape[-1]),)
        loss = sum(
            jnp.sum(
                weigh(objective.value(loss_state, logits, labels, part, axis_name=axis_name), part)
            )
            for labels, part in parts
        )
        hit = weigh((first_argmax(logits) == labels).astype(jnp.float32), weights)
        measured = {
            "loss": loss,
            "hit": jnp.sum(hit),
            "weight": jnp.sum(weights),
            "examples": jnp.sum(real),
        }
        return jnp.asarray(loss), (model_state, loss_state, measured)

    gradient_of = jax.grad(loss_of, has_aux=True)
    tx = optax.with_extra_args_support(tx)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Array]]:
        _check_batch(batch, accumulate)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)

        def add(carry: Any, part: Batch) -> tuple[Any, None]:
            gradient, model_state, loss_state, measured = carry
            more, (model_state, loss_state, more_measured) = gradient_of(
                state.params, model_state, loss_state, part, key, state.step
            )
            summed = jax.tree.map(jnp.add, (gradient, measured), (more, more_measured))
            carry = summed[0], model_state, loss_state, summed[1]
            return varying(carry, batch), None

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
            carry = varying(carry, batch)
            (gradient, model_state, loss_state, measured), _ = lax.scan(add, carry, parts)
        gradient, measured = total((gradient, measured), axis_name)
        mass = jnp.ones_like(measured["weight"])
        if reduction != "sum":
            mass = measured["weight" if reduction == "mean" else "examples"]
            mass = jnp.where(mass > 0, mass, 1)
        # In 16 bits a large mass would be rounded, or infinite.
        precise = jax.tree.map(lambda leaf: leaf.astype(wide(leaf.dtype)), gradient)
        measured["gradient_norm"] = optax.tree.norm(precise) / mass

        def updated() -> tuple[PyTree, PyTree, PyTree]:
            # Divide here, so that a large gradient is not written and read once more.
            divided = jax.tree.map(
                lambda leaf, of: (leaf / mass.astype(leaf.dtype)).astype(of.dtype),
                precise,
                gradient,
            )
            updates, opt_state = tx.update(
                divided, state.opt_state, state.params, value=measured["loss"] / mass
            )
            params = optax.apply_updates(state.params, updates)
            averages = state.average
            if averages:
                averages = moved(averages, (params, model_state), state.step, average)
            return params, opt_state, averages

        # Momentum and weight decay move the parameters even if the gradient is zero.
        params, opt_state, averages = _where_present(
            measured["weight"] > 0, updated, (state.params, state.opt_state, state.average)
        )
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


def _where_present(present: Array, updated: Callable[[], PyTree], old: PyTree) -> PyTree:
    """Return `updated()` if the batch has an example, and the old values otherwise.

    A branch is faster on a CPU. On an accelerator it copies all values, and waits for the host.
    Both refuse an optimizer that changes a type or a shape, which `jnp.where` would not.
    """
    if jax.default_backend() == "cpu":
        return lax.cond(present, updated, lambda: old)
    return jax.tree.map(lambda new, before: lax.select(present, new, before), updated(), old)


def same_kind(update: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Wrap the update of an objective: check that the result has the state's structure and types.

    Otherwise the steps would be compiled again, and a checkpoint would not fit the initial state.
    """

    def checked(state: PyTree, evidence: Any, progress: Progress) -> PyTree:
        new = update(state, evidence, progress)
        kind = lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"  # noqa: E731
        before, after = (jax.tree.map(kind, tree) for tree in (state, new))
        if before != after:
            raise TypeError(
                "the objective's update must keep the types of its state, got"
                f" {after} for {before}: return the types of init."
            )
        return new

    return checked


_Labelled = tuple[Array, Array]


def _augmented(augment: Augment, keys: Array, examples: Examples) -> Examples:
    """Augment each example with its key."""
    augmented = jax.vmap(augment)(keys, examples)
    if not isinstance(augmented, Examples):
        raise TypeError(
            f"augment must take a key and Examples and return Examples, got"
            f" {type(augmented).__name__}: wrap a function of the inputs alone in data.on_inputs."
        )
    weights = examples.weights if augmented.weights is None else augmented.weights
    if weights.shape != augmented.labels.shape:
        raise ValueError(
            f"augment must return weights of the shape of the labels {augmented.labels.shape[1:]},"
            f" got {weights.shape[1:]}."
        )
    return augmented._replace(weights=weights)


def _soft(
    parts: Sequence[_Labelled], share: Array, weights: tuple[Array, Array], num_classes: int
) -> _Labelled:
    """Mix two labels into a distribution; if one label is absent, return the other."""
    (first, second), (mass, other_mass) = zip(*parts, strict=True)
    # Without label weights the share itself is exact, and the sum of both masses is not.
    alike = weights[0] == weights[1]
    both = mass + other_mass
    share = jnp.where(alike, share, mass / jnp.where(both > 0, both, 1))[..., None]
    of_first, of_second = (jax.nn.one_hot(labels, num_classes) for labels in (first, second))
    labels = share * of_first + (1 - share) * of_second
    return labels, jnp.where(alike, weights[0], both)


def moved(averages: PyTree, values: PyTree, step: Array, decay: float) -> PyTree:
    r"""Update moving averages: $a \leftarrow d_t a + (1 - d_t) x$.

    The decay grows as $d_t = \min(d, (1 + t) / (10 + t))$, so that the random initial weights
    leave the average quickly. A value that is no float, such as a counter, is the newest one.
    """
    share = jnp.minimum(decay, (1 + step) / (10 + step))

    def of_leaf(a: Array, x: Array) -> Array:
        if not jnp.issubdtype(a.dtype, jnp.inexact):
            return x
        return (share * a + (1 - share) * x.astype(a.dtype)).astype(a.dtype)

    return jax.tree.map(of_leaf, averages, values)


def make_eval_step(
    forward: Forward,
    metrics: Mapping[str, Any],
    *,
    objective: Any = None,
    axis_name: AxisName = None,
    prepare: Callable[[PyTree], PyTree] = identity,
    last_layer: LastLayer | None = None,
) -> Callable[[TrainState, Batch], Joint]:
    """Build the evaluation step `(state, batch) -> statistics`, which merge over batches with `+`.

    Args:
      forward: the forward pass of the network.
      metrics: the metrics by name; each has `stat(logits, labels, weights)`.
      objective: the objective whose evidence to compute, if given.
      axis_name: the device axis over which to reduce the statistics.
      prepare: as in training.
      last_layer: the last-layer statistics to compute, if given; `aux` of the forward pass must
        hold the layer's inputs.

    Returns:
      The step. It returns a `Joint` with the keys `"metrics"` (a `Joint` by metric name),
      `"evidence"`, `"last_layer"`, `"wrong_labels"`, which counts labels out of range, and
      `"logits"`, which counts labels of positive weight, and outputs that cannot be probabilities.
    """
    check_parts(forward, metrics)

    def eval_step(state: TrainState, batch: Batch) -> Joint:
        weights = weights_of(batch)
        outputs = forward(
            *state.evaluated,
            prepare(batch.inputs),
            train=False,
            rng=None,
            weights=_per_row(weights),
        )
        logits, _, aux = outputs_of(outputs, len(weights))
        seen = (logits, batch.labels, weights)
        present = weights > 0
        wrong = ~valid(batch.labels, logits.shape[-1]) & present
        like_probabilities = jnp.all(logits >= 0, -1) & (jnp.abs(jnp.sum(logits, -1) - 1) <= 1e-3)
        stats = Joint({name: metric.stat(*seen) for name, metric in metrics.items()})
        evidence = NOTHING if objective is None else objective.evidence(state.loss_state, *seen)
        norms = NOTHING if last_layer is None else last_layer.stat(state.loss_state, *seen, aux)
        statistics = {
            "metrics": stats,
            "evidence": evidence,
            "last_layer": norms,
            "wrong_labels": Sums({"count": _number(wrong)}),
            "logits": Sums(
                {"count": _number(present & ~like_probabilities), "present": _number(present)}
            ),
        }
        return Joint(statistics).all_reduce(axis_name)

    return eval_step


def _check_batch(batch: Batch, accumulate: int) -> None:
    """Raise an error for a batch without weights or numbers, or with parts of unequal sizes."""
    weights_of(batch)
    rows = len(batch.labels)
    if batch.index is None:
        raise TypeError(
            f"a batch to train on needs index, the number of each of its {rows} examples, got None:"
            " give jnp.arange(rows)."
        )
    if len(batch.index) != rows:
        raise ValueError(f"lengths must agree: labels has {rows}, index has {len(batch.index)}.")
    if rows % accumulate:
        raise ValueError(
            f"accumulate={accumulate} does not divide the {rows} rows of a batch: pad it with rows"
            " of weight 0, as in_batches(..., accumulate=) does."
        )


def _number(chosen: Array) -> Array:
    return jnp.sum(chosen.astype(jnp.float32))


def weights_of(batch: Batch) -> Array:
    """Broadcast the weights of a batch to the shape of its labels."""
    if batch.weights is None:
        raise TypeError(
            f"a batch needs weights, got None: give jnp.ones({len(batch.labels)}), with 0 for rows"
            " that pad it."
        )
    check_weights(batch.weights, batch.labels)
    missing = batch.labels.ndim - batch.weights.ndim
    weights = batch.weights.reshape(batch.weights.shape + (1,) * missing)
    return jnp.broadcast_to(weights, batch.labels.shape)


def _per_row(weights: Array) -> Array:
    return weights if weights.ndim == 1 else jnp.max(weights.reshape(len(weights), -1), axis=1)


def takes_soft_labels(objective: Any, state: PyTree, logits: Array, labels: Array) -> bool:
    """Check by tracing whether an objective accepts distributions as labels."""
    soft = jax.ShapeDtypeStruct(logits.shape, logits.dtype)
    weights = jax.ShapeDtypeStruct(labels.shape, jnp.float32)
    try:
        jax.eval_shape(lambda z, q, w: objective.value(state, z, q, w), logits, soft, weights)
    except (TypeError, ValueError):
        return False
    return True
