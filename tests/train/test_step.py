"""One step of training: against NumPy, with padding, in parts, mixed, and by its keys."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from calib_jax import losses, metrics, train
from calib_jax.train.step import moved as moved_averages
from calib_jax.train.step import weights_of
from tests.options import assert_recorded
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


@pytest.mark.parametrize(
    ("reduction", "num_devices"), [("mean", 1), ("mean", 2), ("sum", 2), ("examples", 2)]
)
def test_the_gradient_of_a_reduction_is_that_by_hand(reduction, num_devices, x64):
    """A linear network with three labels per example, of which some are absent."""
    random = np.random.default_rng(3)
    inputs, kernel = random.normal(size=(4, 3, 2)), random.normal(size=(2, 5))
    labels = random.integers(5, size=(4, 3))
    weights = 0.1 * np.array([[1, 1, 1], [1, 0, 0], [0.5, 2, 0], [0, 0, 0]])
    z = inputs @ kernel
    q = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    by_label = np.einsum("nlf,nlc->nlfc", inputs, q - np.eye(5)[labels])
    summed = (weights[..., None, None] * by_label).sum(axis=(0, 1))
    divisor = {"sum": 1.0, "mean": 0.65, "examples": 0.1 + 0.1 + 0.2}[reduction]

    def forward(params, model_state, x, *, train, **options):
        assert train
        return x @ params["kernel"], model_state, None

    tx, devices = optax.sgd(1.0), train.local_devices(num_devices)
    variables = {"params": {"kernel": jnp.asarray(kernel)}}
    state = train.create(variables, CROSS_ENTROPY, tx, 5, 0)
    axis = train.AXIS if num_devices > 1 else None
    step = train.make_train_step(forward, CROSS_ENTROPY, tx, reduction=reduction, axis_name=axis)
    batch = train.Batch(inputs, labels, weights, np.arange(4))
    batch = jax.tree.map(lambda leaf: leaf.reshape(num_devices, -1, *leaf.shape[1:]), batch)
    run = train.data_parallel(step, devices)
    after, measured = run(train.replicate(state, devices), train.split(batch, devices))
    moved_by = kernel - train.first(after.params)["kernel"]
    np.testing.assert_allclose(moved_by, summed / divisor, rtol=1e-9)
    terms = -np.log(np.take_along_axis(q, labels[..., None], 2)[..., 0])
    wanted = {
        **{"weight": 0.65, "examples": 0.4, "loss": np.sum(weights * terms)},
        "hit": np.sum(weights * (z.argmax(-1) == labels)),
        "gradient_norm": np.linalg.norm(summed) / divisor,
    }
    for name, value in train.first(measured).items():
        assert float(value) == pytest.approx(wanted[name], rel=1e-6), name
    assert int(train.first(after.step)) == 1


def test_padding_changes_nothing(x64):
    objective = losses.objective("recall")
    source = tasks.examples(7)
    padded = tasks.InMemory(
        np.concatenate([source.inputs, np.full((3, tasks.NUM_FEATURES), 1e30)]),
        np.concatenate([source.labels, [255, -1, 0]]).astype(np.int32),
    )
    plain = moved(objective, batch_of(source))
    filled = moved(objective, batch_of(padded, np.array([1.0] * 7 + [0.0] * 3)))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(filled), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_batch_without_a_label_leaves_everything_where_it_is(monkeypatch, backend, x64):
    """Momentum, Adam's moments, weight decay and averages too: nothing was seen to learn from."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    objective = losses.objective("recall")
    tx = optax.chain(optax.add_decayed_weights(1e-2), optax.trace(0.9), optax.adam(1e-2))
    start = tasks.state_of(objective, tx, averaged=True)
    step = jax.jit(train.make_train_step(tasks.forward, objective, tx, average=0.9))
    before, _ = step(start, batch_of(tasks.examples(12)))
    after, measured = step(before, batch_of(tasks.examples(12), np.zeros(12)))
    assert float(measured["weight"]) == float(measured["gradient_norm"]) == 0
    assert int(after.step) == 2
    for part in ("params", "opt_state", "loss_state", "model_state", "average"):
        leaves = [jax.tree.leaves(getattr(state, part)) for state in (before, after)]
        for old, new in zip(*leaves, strict=True):
            np.testing.assert_array_equal(old, new, err_msg=part)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("last", [jnp.zeros(()), jnp.zeros(3, jnp.bfloat16)])
def test_an_optimizer_that_changes_its_state_is_refused(monkeypatch, backend, last):
    """Else the step would be compiled again, and a checkpoint would not fit."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    tx = optax.GradientTransformation(
        lambda params: jnp.zeros(3, jnp.float32), lambda updates, state, params: (updates, last)
    )
    with pytest.raises(TypeError):
        moved(CROSS_ENTROPY, batch_of(tasks.examples(12)), tx=tx)


def test_parts_of_a_batch_add_up_to_the_whole(x64):
    objective = losses.objective("brier")
    batch = batch_of(tasks.examples(12), np.array([1.0] * 10 + [0.0] * 2))
    whole, measured_whole = moved(objective, batch)
    parts, measured_parts = moved(objective, batch, accumulate=3)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    for key, value in measured_whole.items():
        np.testing.assert_allclose(value, measured_parts[key], rtol=1e-12)
    with pytest.raises(ValueError, match="labels has 12, index has 6"):
        moved(objective, batch_of(tasks.examples(12), index=np.arange(6)), accumulate=3)


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
    # Small moves of half precision count, and a counter is no average.
    start = {"params": {"w": jnp.ones(2, jnp.bfloat16)}, "counts": {"n": jnp.zeros((), int)}}
    averages = train.create(start, CROSS_ENTROPY, tasks.sgd(), 2, 0, averaged=True).average
    values = {"w": jnp.full(2, 1.125, jnp.bfloat16)}, {"counts": {"n": jnp.ones((), int)}}
    weights, others = moved_averages(averages, values, jnp.asarray(1000), 0.99)
    np.testing.assert_allclose(weights["w"], 1.00125, rtol=1e-6)
    assert others["counts"]["n"] == 1

    evaluate = jax.jit(train.make_eval_step(tasks.forward, {"nll": metrics.nll}))
    averages = state._replace(params=state.average[0], average=())
    own = state._replace(average=())
    one, same, other = (
        float(metrics.nll.value(evaluate(s, batch)["metrics"]["nll"]))
        for s in (state, averages, own)
    )
    assert one == same != other


# --------------------------------------------------------------------------------------------
# Keys: of an example, its step, and nothing else.


def noisy(key, example):
    noise = jax.random.normal(key, example.inputs.shape)
    return example._replace(inputs=example.inputs + noise)


def test_the_clock_step_tells_the_steps_done():
    """A step that was made by itself knows no epochs: it is in the first of one."""
    objective = losses.make_objective(
        lambda state, logits, labels, weights, *, axis_name: losses.cross_entropy(logits, labels),
        init=lambda num_classes: jnp.zeros(3),
        update=lambda state, stat, progress: jnp.stack([jnp.float32(each) for each in progress]),
        clock="step",
    )
    batch = batch_of(tasks.examples(12))
    once, _ = moved(objective, batch)
    twice, _ = moved(objective, batch, start=once)
    np.testing.assert_array_equal([once.loss_state, twice.loss_state], [[0, 0, 1], [1, 0, 1]])


def test_augmentation_depends_on_the_example_and_not_on_its_place():
    source = tasks.examples(12)
    order = np.array([7, 3, 11, 0, 1, 2, 4, 5, 6, 8, 9, 10])
    turned = tasks.InMemory(*source[order])
    tx = optax.sgd(1.0)
    step = jax.jit(train.make_train_step(tasks.forward, CROSS_ENTROPY, tx, augment=noisy))
    state = tasks.state_of(CROSS_ENTROPY, tx)
    plain, same, other = (
        step(state, batch_of(examples, index=index))[0].params
        for examples, index in ((source, None), (turned, order), (source, order))
    )
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(same), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not np.allclose(plain["in"], other["in"], atol=1e-3)


def halves(key, keys, real, inputs, labels, axis_name):
    """Mix every real example with the one before it, 3 : 1."""
    share = jnp.where(real, 0.75, 1.0)
    mixed = share[:, None] * inputs + (1 - share[:, None]) * jnp.roll(inputs, 1, axis=0)
    return mixed, jnp.roll(labels, 1, axis=0), share


@pytest.mark.parametrize("name", ["brier", "dual_focal", "recall"])
def test_mixing_takes_soft_labels_or_both_losses(name, x64):
    """Recall loss weighs a batch by the miss rates of this very batch."""
    objective = losses.objective(name)
    source, weights = tasks.examples(12), np.where(np.arange(12) == 10, 0.0, 1.0)
    state, measured = moved(objective, batch_of(source, weights), mix=halves)
    share = np.where(weights > 0, 0.75, 1)
    shares = np.stack([weights * share, np.roll(weights, 1) * (1 - share)])
    inputs = share[:, None] * source.inputs
    inputs += (1 - share[:, None]) * np.roll(source.inputs, 1, axis=0)
    logits, _, _ = tasks.forward(tasks.variables()["params"], {}, inputs, train=True)
    both = np.stack([source.labels, np.roll(source.labels, 1)])
    value = jax.jit((CROSS_ENTROPY if name == "recall" else objective).value)
    if name == "brier":  # a square of the difference to the mixed distribution
        q = np.einsum("pn,pnk->nk", shares, np.eye(tasks.NUM_CLASSES)[both])
        mass = shares.sum(axis=0)
        q /= np.maximum(mass, 1e-9)[:, None]
        wanted = np.sum(mass * np.sum((np.asarray(jax.nn.softmax(logits)) - q) ** 2, axis=1))
    elif name == "recall":
        missed = shares * (both != np.argmax(np.asarray(logits), axis=1))
        rates = [missed[both == k].sum() / shares[both == k].sum() for k in range(5)]
        terms = [value((), logits, labels) for labels in both]
        wanted = np.sum(shares * np.array(rates)[both] * np.stack(terms))
    else:
        wanted = np.sum(shares * np.stack([value((), logits, labels) for labels in both]))
    assert float(measured["loss"]) == pytest.approx(float(wanted), rel=1e-9)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_evaluation_counts_labels_out_of_range_and_outputs_that_are_no_probabilities():
    """Labels of weight 0 count nowhere; the outputs are the inputs."""

    def forward(params, model_state, inputs, *, train, rng, weights):
        assert not train
        return inputs, model_state, None

    rows = [[0.5, 0.5, 0], [0.7, 0.2, 0], [1.2, -0.1, -0.1], [0.5, 0.50105, 0], [2, 2, 2.0]]
    labels, weights = np.array([0, 3, -1, 2, 3]), np.array([0.5, 0.5, 2, 1, 0])
    batch = batch_of(tasks.InMemory(np.array(rows, np.float32), labels), weights)
    found = jax.jit(train.make_eval_step(forward, {}))(tasks.state_of(CROSS_ENTROPY), batch)
    assert float(found["wrong_labels"]["count"]) == 2
    assert jax.tree.map(float, found["logits"].values) == {"count": 3, "present": 4}
    of_rows = train.Batch(None, np.zeros((2, 3)), jnp.array([1, 0.5]), None)
    np.testing.assert_array_equal(weights_of(of_rows), [[1] * 3, [0.5] * 3])


def test_defaults_are_the_recorded_ones():
    assert_recorded("train")
