"""What one step computes: against NumPy, with padding, in parts, mixed, and by its keys."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from calib_jax import losses, metrics, models, train
from tests.selection import first_case
from tests.train import tasks

CROSS_ENTROPY = losses.objective("cross_entropy")


def batch_of(source, weights=None, index=None):
    count = len(source)
    return train.Batch(
        jnp.asarray(source.inputs),
        jnp.asarray(source.labels),
        jnp.ones(count) if weights is None else jnp.asarray(weights),
        jnp.arange(count) if index is None else jnp.asarray(index),
    )


def moved(objective, batch, *, tx=None, start=None, **options):
    """One step of plain SGD with rate 1: the parameters fall by the gradient."""
    tx = optax.sgd(1.0) if tx is None else tx
    state = tasks.state_of(objective, tx) if start is None else start
    step = jax.jit(train.make_train_step(tasks.forward, objective, tx, **options))
    return step(state, batch)


def reference_gradient(source, weights, *, mean):
    """Backpropagation through the two layers by hand, for cross-entropy."""
    p = {k: np.asarray(v, np.float64) for k, v in tasks.variables()["params"].items()}
    x, y = np.asarray(source.inputs, np.float64), source.labels
    hidden = np.tanh(x @ p["in"] + p["in_bias"])
    z = hidden @ p["out"] + p["out_bias"]
    q = np.exp(z - z.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    loss = -np.log(q[np.arange(len(y)), y])
    d = q.copy()
    d[np.arange(len(y)), y] -= 1
    d *= weights[:, None] / (weights.sum() if mean else 1)
    back = (d @ p["out"].T) * (1 - hidden**2)
    gradient = {
        "in": x.T @ back, "in_bias": back.sum(0), "out": hidden.T @ d, "out_bias": d.sum(0)
    }  # fmt: skip
    hit = z.argmax(1) == y
    return gradient, (weights * loss).sum(), (weights * hit).sum()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_step_falls_by_the_gradient(reduction, x64):
    source = tasks.examples(12)
    weights = np.array([1.0] * 9 + [0.0, 2.0, 0.5])
    state, measured = moved(CROSS_ENTROPY, batch_of(source, weights), reduction=reduction)
    gradient, loss, hits = reference_gradient(source, weights, mean=reduction == "mean")
    for name, start in tasks.variables()["params"].items():
        np.testing.assert_allclose(start - state.params[name], gradient[name], atol=1e-12)
    assert float(measured["loss"]) == pytest.approx(loss, rel=1e-12)
    assert float(measured["hit"]) == hits
    assert float(measured["weight"]) == weights.sum()
    norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
    assert float(measured["gradient_norm"]) == pytest.approx(norm, rel=1e-12)
    assert int(state.step) == 1


def test_parameters_of_16_bits_are_divided_by_a_mass_that_they_cannot_hold():
    start = tasks.state_of(CROSS_ENTROPY, optax.sgd(1.0))
    half = start._replace(params=jax.tree.map(lambda leaf: leaf.astype(jnp.float16), start.params))
    batch = batch_of(tasks.examples(7), np.full(7, 10_000.0, np.float32))
    steps = [moved(CROSS_ENTROPY, batch, start=one, reduction="mean") for one in (start, half)]
    norms = [float(measured["gradient_norm"]) for _, measured in steps]
    assert norms[1] == pytest.approx(norms[0], rel=0.01)
    changes = [
        jax.tree.map(lambda new, old: np.asarray(old - new, np.float64), state.params, one.params)
        for (state, _), one in zip(steps, (start, half), strict=True)
    ]
    for expected, found in zip(*map(jax.tree.leaves, changes), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-3)


def test_unknown_reduction():
    with pytest.raises(ValueError, match="'sum', 'mean', 'examples', got 'average'"):
        train.make_train_step(tasks.forward, CROSS_ENTROPY, optax.sgd(1.0), reduction="average")


@pytest.mark.parametrize("name", ["adafocal", "recall", "mmce", "brier"])
def test_padding_changes_nothing(name, x64):
    objective = losses.objective(name)
    source = tasks.examples(7)
    padded = tasks.InMemory(
        np.concatenate([source.inputs, np.full((3, tasks.NUM_FEATURES), 1e30)]),
        np.concatenate([source.labels, [255, -1, 0]]).astype(np.int32),
    )
    plain = moved(objective, batch_of(source))
    filled = moved(objective, batch_of(padded, np.array([1.0] * 7 + [0.0] * 3)))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(filled), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["cross_entropy", "recall"])
def test_a_batch_without_a_label_leaves_everything_where_it_is(name, x64):
    """Momentum, Adam's moments, weight decay and averages too: nothing was seen to learn from."""
    objective = losses.objective(name)
    tx = optax.chain(optax.add_decayed_weights(1e-2), optax.trace(0.9), optax.adam(1e-2))
    batch = batch_of(tasks.examples(12))
    start = tasks.state_of(objective, tx, averaged=True)
    before, _ = moved(objective, batch, tx=tx, start=start, average=0.9)
    void = batch_of(tasks.examples(12), np.zeros(12))
    after, measured = moved(objective, void, tx=tx, start=before, average=0.9)
    assert float(measured["weight"]) == 0
    assert int(after.step) == 2
    for part in ("params", "opt_state", "loss_state", "model_state", "average"):
        leaves = [jax.tree.leaves(getattr(state, part)) for state in (before, after)]
        for old, new in zip(*leaves, strict=True):
            np.testing.assert_array_equal(old, new, err_msg=part)


@pytest.mark.parametrize("name", ["cross_entropy", "flsd53", "brier"])
def test_parts_of_a_batch_add_up_to_the_whole(name, x64):
    objective = losses.objective(name)
    batch = batch_of(tasks.examples(12), np.array([1.0] * 10 + [0.0] * 2))
    whole, measured_whole = moved(objective, batch)
    parts, measured_parts = moved(objective, batch, accumulate=3)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    for key, value in measured_whole.items():
        np.testing.assert_allclose(value, measured_parts[key], rtol=1e-12)


def remembering():
    """A transformation that needs `value`, as optax's `reduce_on_plateau`, and keeps the last."""

    def update(updates, state, params=None, *, value, **others):
        return updates, jnp.asarray(value, state.dtype)

    return optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update)


@pytest.mark.parametrize(
    ("reduction", "accumulate"), [("mean", 1), ("mean", 3), ("sum", 1), ("examples", 3)]
)
def test_the_optimizer_gets_the_loss_whose_gradient_it_gets(reduction, accumulate, x64):
    """The hand-made reference of the whole batch, over the same mass as the gradient."""
    source, weights = tasks.examples(12), np.array([1.0] * 9 + [0.0, 2.0, 0.5])
    tx = optax.chain(optax.sgd(1.0), remembering())
    options = {"reduction": reduction, "accumulate": accumulate}
    state, _ = moved(CROSS_ENTROPY, batch_of(source, weights), tx=tx, **options)
    _, loss, _ = reference_gradient(source, weights, mean=False)
    mass = 1.0 if reduction == "sum" else weights.sum()
    assert float(state.opt_state[1]) == pytest.approx(loss / mass, rel=1e-12)
    void = batch_of(source, np.zeros(12))
    after, _ = moved(CROSS_ENTROPY, void, tx=tx, start=state, **options)
    assert float(after.opt_state[1]) == float(state.opt_state[1])


@first_case
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_optimizer_gets_the_same_loss_on_every_device(accumulate, x64):
    options = {"steps": 4, "tx": optax.chain(remembering(), tasks.sgd()), "accumulate": accumulate}
    source = tasks.examples(38)  # the last batch has 8 rows, so devices hold unequal numbers
    for num_devices in (1, 4):
        states, measured = tasks.trained(CROSS_ENTROPY, source, num_devices=num_devices, **options)
        assert tasks.differing(states) == []
        mean = measured["loss"][-1] / measured["weight"][-1]
        assert train.first(states).opt_state[0] == pytest.approx(mean, rel=1e-12)


def test_a_plateau_of_the_loss_lowers_the_rate():
    batch = batch_of(tasks.examples(12))
    plateau = optax.contrib.reduce_on_plateau(0.5, patience=2, accumulation_size=1)
    tx = optax.chain(optax.sgd(0.0), plateau)
    state = None
    for _ in range(5):  # the first is the best, and every second one after it halves the rate
        state, _ = moved(CROSS_ENTROPY, batch, tx=tx, start=state)
    assert float(state.opt_state[1].scale) == 0.25


def test_the_loss_of_an_optimizer_that_ignores_it_is_not_compiled():
    """Chains take any extra argument; a program without it is the same, so its numbers are too."""

    def program(tx):
        step = jax.jit(train.make_train_step(tasks.forward, CROSS_ENTROPY, tx))
        lowered = step.lower(tasks.state_of(CROSS_ENTROPY, tx), batch_of(tasks.examples(12)))
        places = r", metadata={[^}]*}|^(File|Function|Stack)\w+$|^\d+ .*$"  # in the source code
        return re.sub(places, "", lowered.compile().as_text(), flags=re.MULTILINE).split()

    chain = tasks.sgd()
    assert isinstance(chain, optax.GradientTransformationExtraArgs)
    plain = optax.GradientTransformation(
        chain.init, lambda updates, state, params=None: chain.update(updates, state, params)
    )
    assert program(chain) == program(plain)


def test_a_batch_that_a_step_cannot_take_is_named():
    source = tasks.examples(10)
    whole = batch_of(source)
    with pytest.raises(ValueError, match=r"accumulate=4 does not divide the 10 rows of a batch"):
        moved(CROSS_ENTROPY, whole, accumulate=4)
    for name in ("weights", "index"):
        with pytest.raises(TypeError, match=f"batch .*needs {name}, .*got None"):
            moved(CROSS_ENTROPY, dataclasses.replace(whole, **{name: None}))
    with pytest.raises(ValueError, match=r"weights must have the shape .* \(9,\), got \(10,\)"):
        moved(CROSS_ENTROPY, dataclasses.replace(whole, labels=whole.labels[:9]))
    for shape in ((10, 1), ()):
        with pytest.raises(ValueError, match=r"weights must have the shape of the labels \(10,\)"):
            moved(CROSS_ENTROPY, dataclasses.replace(whole, weights=np.ones(shape)))
    with pytest.raises(ValueError, match="lengths must agree: labels has 10, index has 4"):
        moved(CROSS_ENTROPY, dataclasses.replace(whole, index=whole.index[:4]))
    evaluate = train.make_eval_step(tasks.forward, {})
    with pytest.raises(TypeError, match=r"needs weights, got None: give jnp.ones\(10\)"):
        evaluate(tasks.state_of(CROSS_ENTROPY), dataclasses.replace(whole, weights=None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda logits: logits,
            r"must return \(logits, model_state, aux\), got a .*(Array|Tracer)",
        ),
        (lambda logits: (logits, {}), r"must return \(logits, model_state, aux\), got 2 values"),
        (lambda logits: (logits[:4], {}, None), r"10 examples, got .*\(4, 5\)|logits \(4, 5\)"),
        (lambda logits: (logits[:1], {}, None), r"10 examples, got .*\(1, 5\)|logits \(1, 5\)"),
        (lambda logits: ([logits], {}, None), r"10 examples, got a list|\(1, 10, 5\)"),
    ],
)
def test_outputs_of_a_forward_pass_that_are_no_logits_of_the_batch(change, message):
    def forward(*args, **options):
        return change(tasks.forward(*args, **options)[0])

    source, state = tasks.examples(10), tasks.state_of(CROSS_ENTROPY)
    with pytest.raises((TypeError, ValueError), match=message):
        train.make_train_step(forward, CROSS_ENTROPY, optax.sgd(1.0))(state, batch_of(source))
    with pytest.raises((TypeError, ValueError), match=message):
        train.make_eval_step(forward, {})(state, batch_of(source))
    with pytest.raises((TypeError, ValueError), match=message):
        train.predict(forward, state, source, devices=train.local_devices(1))


def test_parts_of_a_step_of_another_kind_are_named():
    with pytest.raises(TypeError, match="forward must be a function, got Perceptron"):
        train.make_eval_step(models.linear(), {})
    with pytest.raises(TypeError, match=r"objective must be what losses\.objective.* got 'focal'"):
        train.make_train_step(tasks.forward, "focal", optax.sgd(1.0))


def test_rows_without_an_axis_of_devices_are_refused():
    devices = train.local_devices(2)
    with pytest.raises(ValueError, match=r"over the 2 devices, got the shape \(10, 6\): reshape"):
        train.split(np.ones((10, 6)), devices)


def test_parts_hold_the_same_examples_on_any_number_of_devices(x64):
    """Recall loss looks at each part: were the parts others, the trajectories would be.

    Parts of 5 are filled up for 4 devices, and the last batch of an epoch has 2 examples.
    """
    objective = losses.objective("recall", alpha=0.5)
    source = tasks.examples(32)
    one, _ = tasks.trained(objective, source, num_devices=1, steps=4, batch_size=10, accumulate=2)
    four, _ = tasks.trained(objective, source, num_devices=4, steps=4, batch_size=10, accumulate=2)
    whole, _ = tasks.trained(objective, source, num_devices=1, steps=4, batch_size=10)
    for a, b in zip(*map(jax.tree.leaves, map(train.first, (one, four))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert not np.allclose(
        train.first(one).loss_state.miss_rate, train.first(whole).loss_state.miss_rate
    )


def test_averages_follow_the_weights_and_are_what_is_evaluated(x64):
    batch = batch_of(tasks.examples(12))
    state = tasks.state_of(CROSS_ENTROPY, averaged=True)
    start = state.params["out"]
    step = jax.jit(train.make_train_step(tasks.forward, CROSS_ENTROPY, tasks.sgd(), average=0.15))
    expected = np.asarray(start)
    for t in range(3):
        state, _ = step(state, batch)
        decay = min(0.15, (1 + t) / (10 + t))  # .1, .15, .15
        expected = decay * expected + (1 - decay) * np.asarray(state.params["out"])
    np.testing.assert_allclose(state.average[0]["out"], expected, rtol=1e-6)
    assert not np.allclose(state.params["out"], expected, rtol=1e-3)

    evaluate = train.make_eval_step(tasks.forward, {"nll": metrics.nll})
    averages = state._replace(params=state.average[0], average=())
    own = state._replace(average=())
    one, same, other = (
        float(metrics.nll.value(evaluate(s, batch)["metrics"]["nll"]))
        for s in (state, averages, own)
    )
    assert one == same != other


def test_the_step_clock_ticks_before_the_state_is_used(x64):
    """With alpha = 1 the miss rates are those of the very batch they weigh."""
    objective = losses.objective("recall")
    source = tasks.examples(20)
    state, measured = moved(objective, batch_of(source))
    logits, _, _ = tasks.forward(tasks.variables()["params"], {}, source.inputs, train=True)
    labels, predicted = source.labels, np.argmax(np.asarray(logits), axis=1)
    missed = np.array([np.mean(predicted[labels == k] != k) for k in range(tasks.NUM_CLASSES)])
    np.testing.assert_allclose(state.loss_state.miss_rate, missed, atol=1e-12)
    terms = CROSS_ENTROPY.value((), logits, labels)
    assert float(measured["loss"]) == pytest.approx(float(np.sum(missed[labels] * terms)))


def test_a_clock_that_is_not_the_steps_leaves_the_state_alone():
    objective = losses.objective("adafocal")
    state, _ = moved(objective, batch_of(tasks.examples(20)))
    for a, b in zip(state.loss_state, objective.init(tasks.NUM_CLASSES), strict=True):
        np.testing.assert_array_equal(a, b)


# --------------------------------------------------------------------------------------------
# Keys: of an example, its step, and nothing else.


def noisy(key, example):
    noise = jax.random.normal(key, example.inputs.shape)
    return example._replace(inputs=example.inputs + noise)


def test_augmentation_depends_on_the_example_and_not_on_its_place():
    source = tasks.examples(12)
    order = np.array([7, 3, 11, 0, 1, 2, 4, 5, 6, 8, 9, 10])
    turned = batch_of(tasks.InMemory(*source[order]), index=order)
    plain, _ = moved(CROSS_ENTROPY, batch_of(source), augment=noisy)
    other, _ = moved(CROSS_ENTROPY, turned, augment=noisy)
    without, _ = moved(CROSS_ENTROPY, batch_of(source))
    for a, b in zip(jax.tree.leaves(plain.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not np.allclose(plain.params["in"], without.params["in"], atol=1e-3)


def test_augmentation_differs_from_step_to_step_and_from_seed_to_seed():
    batch, tx = batch_of(tasks.examples(12)), optax.sgd(0.0)
    losses_seen = set()
    for seed in (0, 1):
        state = tasks.state_of(CROSS_ENTROPY, tx, seed=seed)
        for _ in range(3):
            state, measured = moved(CROSS_ENTROPY, batch, tx=tx, start=state, augment=noisy)
            losses_seen.add(float(measured["loss"]))
    assert len(losses_seen) == 6


def halves(key, keys, real, inputs, labels, axis_name):
    """Mix every example with the next one, 3 : 1."""
    roll = lambda leaf: jnp.roll(leaf, 1, axis=0)  # noqa: E731
    return 0.75 * inputs + 0.25 * roll(inputs), roll(labels), jnp.asarray(0.75)


@first_case
@pytest.mark.parametrize("name", ["cross_entropy", "brier", "dual_focal"])
def test_mixing_takes_soft_labels_or_both_losses(name, x64):
    objective = losses.objective(name)
    source = tasks.examples(12)
    _, measured = moved(objective, batch_of(source), mix=halves)
    inputs = 0.75 * source.inputs + 0.25 * np.roll(source.inputs, 1, axis=0)
    logits, _, _ = tasks.forward(tasks.variables()["params"], {}, inputs, train=True)
    one, other = source.labels, np.roll(source.labels, 1)
    if name == "brier":  # a square of the difference to the mixed distribution
        q = 0.75 * np.eye(tasks.NUM_CLASSES)[one] + 0.25 * np.eye(tasks.NUM_CLASSES)[other]
        wanted = np.sum((np.asarray(jax.nn.softmax(logits)) - q) ** 2)
    else:
        wanted = sum(
            share * np.sum(objective.value((), logits, labels))
            for share, labels in ((0.75, one), (0.25, other))
        )
    assert float(measured["loss"]) == pytest.approx(float(wanted), rel=1e-9)


@pytest.mark.slow
def test_pixels_take_the_weight_of_their_example():
    def per_pixel(params, model_state, inputs, *, train, rng=None, weights=None):
        assert weights.shape == (4,)
        return inputs * params["scale"][None, None, None], model_state, None

    objective = CROSS_ENTROPY
    random = np.random.default_rng(0)
    inputs = jnp.asarray(random.normal(size=(4, 3, 2, 5)), jnp.float32)
    labels = jnp.asarray(random.integers(5, size=(4, 3, 2)))
    tx = optax.sgd(0.1)
    state = train.create({"params": {"scale": jnp.ones(5)}}, objective, tx, 5, 0)
    step = train.make_train_step(per_pixel, objective, tx)
    weights = jnp.array([1.0, 1.0, 0.0, 1.0])
    _, measured = step(state, train.Batch(inputs, labels, weights, jnp.arange(4)))
    assert float(measured["weight"]) == 3 * 6
    kept = np.array([0, 1, 3])
    terms = objective.value((), inputs[kept], labels[kept])
    assert float(measured["loss"]) == pytest.approx(float(jnp.sum(terms)), rel=1e-5)
