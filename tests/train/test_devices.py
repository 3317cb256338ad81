"""One device and eight give the same training, for every objective."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from calib_jax.core.statistics import Joint
from tests.train import tasks

# 38 examples in batches of 10: the last batch of an epoch has 8, on 8 devices one or two each.
SOURCE = tasks.examples(38)


def close(one, other, tolerance, name=""):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


# One of every way in which examples meet: by a state, by a sum over pairs or bins, or not at all.
DISTINCT = ("adafocal", "brier", "mmce", "recall", "soft_ece")
OTHERS = [name for name in tasks.objectives() if name not in DISTINCT]
# Several objectives are trained by one program, each with a network of its own: what a program
# needs beside the losses is compiled once for all of them.
together = pytest.mark.parametrize(
    "names",
    [DISTINCT, *(pytest.param(OTHERS[start::3], marks=pytest.mark.slow) for start in range(3))],
)


def joined(names):
    """Make one objective of many: each has its classes of the logits and its own state."""
    members = {name: losses.objective(name) for name in names}

    def parts(logits):
        split = jnp.split(logits, len(members), axis=-1)
        return zip(members.items(), split, strict=True)

    def value(state, logits, labels, weights, *, axis_name=None):
        return sum(
            member.value(state[name], own, labels, weights, axis_name=axis_name)
            for (name, member), own in parts(logits)
        )

    def evidence(state, logits, labels, weights):
        return Joint(
            {
                name: member.evidence(state[name], own, labels, weights)
                for (name, member), own in parts(logits)
                if member.clock == "step"
            }
        )

    def update(state, stat, progress):
        seen = {
            name: members[name].update(state[name], part, progress)
            for name, part in stat.parts.items()
        }
        return state | seen

    def init(num_classes, class_counts=None):
        return {name: member.init(num_classes, class_counts) for name, member in members.items()}

    clock = "step" if any(member.clock == "step" for member in members.values()) else "never"
    return losses.Objective(init, value, evidence, update, clock)


def forward(params, model_state, inputs, **options):
    """Apply all networks; the classes of the first one come first."""
    logits = jax.vmap(lambda own: tasks.forward(own, {}, inputs, **options)[0], out_axes=1)(params)
    return logits.reshape(len(inputs), -1), model_state, None


def trained(names, *, num_devices, steps):
    """Train a network with each objective; return each one's parameters, and what was measured."""
    objective, tx = joined(names), tasks.sgd()
    devices = train.local_devices(num_devices)
    start = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(names)), tasks.variables())
    counts = np.arange(1, tasks.NUM_CLASSES + 1)
    state = train.create(start, objective, tx, tasks.NUM_CLASSES, 0, class_counts=counts)
    state = train.replicate(state, devices)
    step = train.make_train_step(forward, objective, tx, axis_name=train.AXIS)
    run_steps = train.Resident(SOURCE, devices).training(step)
    measured = []
    for epoch in range(-(-steps // 4)):
        order = train.shuffled(len(SOURCE), 0, epoch)
        batches = train.in_batches(order, 10, multiple=num_devices)
        state, read = run_steps(state, batches, None, 0, min(4, steps - 4 * epoch))
        measured.append(read())
    assert tasks.differing(state) == []
    state = train.first(state)
    each = {
        name: {
            "params": jax.tree.map(lambda leaf: leaf[number], state.params),  # noqa: B023
            "state": state.loss_state[name],
        }
        for number, name in enumerate(names)
    }
    return each, measured


@together
def test_ten_steps_on_one_and_on_eight_devices(names, x64):
    one, measured_one = trained(names, num_devices=1, steps=10)
    eight, measured_eight = trained(names, num_devices=8, steps=10)
    for name in names:
        moved = one[name]["params"]["in"] - np.asarray(tasks.variables()["params"]["in"])
        assert np.abs(moved).max() > 1e-6, name
        close(one[name], eight[name], 1e-9, name)
    for step in (*measured_one, *measured_eight):
        del step["hit"]  # of all networks' classes together, where equal networks have equal logits
    close(measured_one, measured_eight, 1e-9)


def test_evidence_of_a_validation_pass_is_that_of_all_examples():
    objective, devices = losses.objective("adafocal"), train.local_devices(8)
    step = train.make_eval_step(tasks.forward, {}, objective=objective, axis_name=train.AXIS)
    state = tasks.state_of(objective)
    everywhere = train.replicate(state, devices)

    def evidence(feed):
        return feed(SOURCE, devices).evaluation(step, 10)(everywhere)["evidence"]

    result = evidence(train.Resident)
    logits, _, _ = tasks.forward(state.params, {}, SOURCE.inputs, train=False)
    wanted = jax.jit(objective.evidence)(state.loss_state, logits, SOURCE.labels, None)

    def real(rows):
        kept = np.asarray(rows["weight"]) > 0
        return np.sort(np.asarray(rows["confidence"])[kept])

    np.testing.assert_allclose(real(result), real(wanted), rtol=1e-5)
    np.testing.assert_array_equal(real(evidence(train.Streamed)), real(result))


class Normalised(nn.Module):
    """Two dense layers with batch norm and dropout between them."""

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, *, train, mask=None, keys=None):
        x = nn.Dense(8, param_dtype=jnp.float64)(x)
        x = models.BatchNorm(axis_name=self.axis_name, dtype=jnp.float64)(x, train=train, mask=mask)
        x = models.Dropout(0.3)(jnp.tanh(x), train, keys)
        return nn.Dense(tasks.NUM_CLASSES, param_dtype=jnp.float64)(x)


@pytest.mark.slow
def test_batch_norm_and_dropout_on_one_and_on_eight_devices_and_with_padding(x64):
    """Statistics are those of the real examples of the whole batch, wherever they lie.

    So are the examples' keys, and what dropout drops.
    """
    objective, tx = losses.objective("cross_entropy"), tasks.sgd()
    source = tasks.examples(10)
    variables = Normalised().init(jax.random.key(0), source.inputs, train=False)
    assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(variables))

    def trained(num_devices, rows):
        devices = train.local_devices(num_devices)
        module = Normalised(axis_name=train.AXIS)
        step = train.make_train_step(train.linen(module), objective, tx, axis_name=train.AXIS)
        state = train.create(variables, objective, tx, tasks.NUM_CLASSES, 0)
        run_steps = train.Resident(source, devices).training(step)
        order = train.in_batches(np.arange(10), 10, multiple=rows)
        state = train.replicate(state, devices)
        for start in range(3):
            state, _ = run_steps(state, order, None, 0, 1)
            assert tasks.differing(state) == [], start
        return train.first(state)

    plain, padded, eight = trained(1, 1), trained(1, 16), trained(8, 8)
    moved = np.asarray(variables["batch_stats"]["BatchNorm_0"]["mean"])
    assert np.abs(plain.model_state["batch_stats"]["BatchNorm_0"]["mean"] - moved).max() > 1e-3
    close(plain, padded, 1e-12)
    close(plain, eight, 1e-9)
