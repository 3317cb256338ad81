"""Weights of labels: void pixels, padded tokens and tree nodes without a label are absent."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from calib_jax import data, losses, metrics, train
from calib_jax.core import Examples, InMemory
from calib_jax.train import feeds, log
from tests.selection import some_of
from tests.train import tasks
from tests.train.test_feeding import OnDisk

CLASSES = tasks.NUM_CLASSES
LENGTH = 4
METRICS = {name: metrics.named(name) for name in ("nll", "ece")}


class Tagger(nn.Module):
    """Tokens to a class each; `spread` mixes the tokens of a sentence, and no others."""

    @nn.compact
    def __call__(self, inputs, *, train, mask=None):
        words = nn.Embed(11, 6, name="words")(inputs["tokens"])
        words += inputs["shift"][:, None, None]
        spread = nn.Dense(6)(jnp.mean(words, axis=1, keepdims=True))
        return nn.Dense(CLASSES)(jnp.tanh(words + spread))


class Pixels(nn.Module):
    """A convolution, and a class for each pixel."""

    @nn.compact
    def __call__(self, inputs, *, train, mask=None):
        return nn.Dense(CLASSES)(jnp.tanh(nn.Conv(4, (3, 3))(inputs)))


def sentences(count, seed=0):
    """Sentences with one or more labelled tokens each; the labels of the others are void."""
    random = np.random.default_rng(seed)
    inputs = {
        "tokens": random.integers(11, size=(count, LENGTH)).astype(np.int32),
        "shift": random.normal(size=count).astype(np.float32),
    }
    labels = random.integers(CLASSES, size=(count, LENGTH)).astype(np.int32)
    weights = random.integers(3, size=(count, LENGTH)) / 2
    weights[:, 0] = 1
    labels[weights == 0] = random.choice([255, -1, CLASSES], size=int(np.sum(weights == 0)))
    return InMemory(inputs, labels, weights)


def photographs(count, seed=0):
    """Images of 3 x 4 pixels with a label map, in which 255 is void."""
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=(count, 3, 4)).astype(np.uint8)
    labels[:, :, 1][random.random((count, 3)) < 0.5] = 255
    inputs = random.normal(size=(count, 3, 4, 2)).astype(np.float32)
    return InMemory(inputs, labels, labels != 255)


KINDS = {"tokens": (Tagger(), sentences), "pixels": (Pixels(), photographs)}


def state_of(module, source, objective, tx):
    start = module.init(jax.random.key(0), source[np.arange(1)].inputs, train=False)
    return train.create(jax.tree.map(lambda x: x.astype(float), start), objective, tx, CLASSES, 0)


@functools.cache
def ten_steps(kind, name, *, num_devices, reduction, feed=train.Resident, wrap=lambda s: s):
    (module, make), objective = KINDS[kind], losses.objective(name)
    source, tx = make(19), tasks.sgd()
    devices = train.local_devices(num_devices)
    step = train.make_train_step(
        train.linen(module), objective, tx, axis_name=train.AXIS, reduction=reduction
    )
    state = train.replicate(state_of(module, source, objective, tx), devices)
    run_steps = feed(wrap(source), devices).training(step)
    measured = []
    for epoch in range(2):  # batches of 4, the last of 3
        order = train.shuffled(len(source), 0, epoch)
        batches = train.in_batches(order, 4, multiple=num_devices)
        state, read = run_steps(state, batches, None, 0, 5)
        measured.append(read())
    assert tasks.differing(state) == []
    return train.first(state), measured


def assert_close(one, other, tolerance=1e-9):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# --------------------------------------------------------------------------------------------
# Devices and feeds.


CASES = [
    ("tokens", "recall", "examples"),
    pytest.param("pixels", "mmce", "mean", marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "reduction"), CASES)
def test_ten_steps_on_one_and_on_eight_devices(kind, name, reduction, x64):
    one = ten_steps(kind, name, num_devices=1, reduction=reduction)
    eight = ten_steps(kind, name, num_devices=8, reduction=reduction)
    assert int(one[0].step) == 10
    assert_close(one, eight)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_places_the_same_bits(kind):
    _, make = KINDS[kind]
    source, devices = make(7), train.local_devices(1)

    def step(state, batch):
        leaves = {"labels": batch.labels, "weights": batch.weights, "index": batch.index}
        return state, leaves | {str(k): x for k, x in enumerate(jax.tree.leaves(batch.inputs))}

    def batches(feed):
        state = train.replicate(tasks.state_of(losses.objective("focal")), devices)
        order = train.in_batches(np.arange(7), 4)
        return feed.training(step)(state, order, None, 0, 2)[1]()

    resident = batches(train.Resident(source, devices))
    weights = resident["weights"]
    np.testing.assert_array_equal(weights.reshape(8, *weights.shape[2:])[:7], source.weights)
    assert not weights[-1, -1].any()
    assert_same(resident, batches(train.Streamed(OnDisk(source), devices)))


def test_a_streamed_training_is_a_resident_one(x64):
    kind, name, reduction = CASES[0]
    resident = ten_steps(kind, name, num_devices=1, reduction=reduction)
    streamed = ten_steps(
        kind, name, num_devices=1, reduction=reduction, feed=train.Streamed, wrap=OnDisk
    )
    assert_close(resident, streamed, 1e-12)


# --------------------------------------------------------------------------------------------
# Weight 0 is the same as absent.


def random_tree(random, count):
    """Draw nested inputs of any shape and kind."""
    leaf = [
        lambda: random.normal(size=(count, *random.integers(1, 4, random.integers(3)))),
        lambda: random.integers(9, size=(count, 2), dtype=np.uint8),
        lambda: {"a": random.normal(size=count), "b": (random.integers(2, size=(count, 1)),)},
    ]
    return {str(k): leaf[random.integers(3)]() for k in range(random.integers(1, 4))}


def linear(params, model_state, inputs, *, train, rng=None, weights=None):
    """Map any tree to logits `[rows, LENGTH, CLASSES]`."""
    rows = [jnp.reshape(x, (len(x), -1)).astype(float) for x in jax.tree.leaves(inputs)]
    flat = jnp.concatenate(rows, axis=1) @ params["kernel"]
    return flat.reshape(-1, LENGTH, CLASSES), model_state, None


def random_case(seed, count=9):
    random = np.random.default_rng(seed)
    inputs = random_tree(random, count)
    width = sum(np.prod(x.shape[1:], dtype=int) for x in jax.tree.leaves(inputs))
    kernel = random.normal(size=(width, LENGTH * CLASSES))
    labels = random.integers(CLASSES, size=(count, LENGTH))
    weights = random.choice([0, 0.5, 1, 3], size=(count, LENGTH))
    labels[weights == 0] = random.choice([-(2**40), 255, CLASSES], size=np.sum(weights == 0))
    return InMemory(inputs, labels, weights), {"kernel": jnp.asarray(kernel)}


def gradient_of_present(source, params, divisor):
    """Differentiate the cross-entropy of the labels that count, selected by NumPy."""
    logits, _, _ = linear(params, {}, source.inputs, train=False)
    z, w = np.asarray(logits), source.weights
    q = np.exp(z - z.max(-1, keepdims=True))
    q /= q.sum(-1, keepdims=True)
    d = np.zeros_like(q)
    for place in np.argwhere(w > 0):
        row = q[tuple(place)].copy()
        row[source.labels[tuple(place)]] -= 1
        d[tuple(place)] = w[tuple(place)] * row
    leaves = jax.tree.leaves(source.inputs)
    x = np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in leaves], axis=1)
    return x.T @ d.reshape(len(d), -1) / divisor


@pytest.mark.parametrize("reduction", ["sum", "mean", "examples"])
@pytest.mark.parametrize("seed", range(2))
def test_a_step_on_a_random_tree_is_that_of_its_present_labels(seed, reduction, x64):
    source, params = random_case(seed)
    source.weights[3] = 0  # an example without a label
    objective, tx = losses.objective("cross_entropy"), optax.sgd(1.0)
    state = train.create({"params": params}, objective, tx, CLASSES, 0)
    step = jax.jit(train.make_train_step(linear, objective, tx, reduction=reduction))
    batch = train.Batch(source.inputs, source.labels, jnp.asarray(source.weights), jnp.arange(9))
    after, measured = step(state, batch)
    divisor = {"sum": 1, "mean": source.weights.sum(), "examples": source.weights.max(1).sum()}
    assert float(measured["examples"]) == divisor["examples"]
    assert float(measured["weight"]) == divisor["mean"]
    np.testing.assert_allclose(
        params["kernel"] - after.params["kernel"],
        gradient_of_present(source, params, divisor[reduction]),
        atol=1e-12,
    )
    # A batch whose labels are all void has the loss 0, and changes nothing.
    same, nothing = step(after, dataclasses.replace(batch, weights=0 * batch.weights))
    np.testing.assert_array_equal(same.params["kernel"], after.params["kernel"])
    assert float(nothing["loss"]) == float(nothing["gradient_norm"]) == 0


def fitted(folder, source, evaluated, module, objective, **options):
    task = train.Task(
        forward=train.linen(module),
        objective=objective,
        tx=tasks.sgd(),
        metrics=METRICS,
        train=source,
        evaluated={"validation": evaluated},
        num_classes=CLASSES,
        **options,
    )
    plan = train.Plan(num_epochs=2, batch_size=8, best={"nll": "min"})
    state = state_of(module, source, objective, task.tx)
    devices = train.local_devices(1)
    return task, train.fit(folder, state, task, plan, devices=devices, quiet=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    some_of([("tokens", "cross_entropy"), ("tokens", "adafocal"), ("pixels", "mmce")], 1),
)
def test_rows_of_a_fit_are_the_metrics_of_the_present_labels(kind, name, tmp_path):
    module, make = KINDS[kind]
    evaluated = make(13, seed=1)
    task, outcome = fitted(tmp_path, make(19), evaluated, module, losses.objective(name))
    row = log.read_rows(tmp_path / "metrics.jsonl")[-1]
    predicted = train.predict(task.forward, outcome.state, evaluated, batch_size=4)
    np.testing.assert_array_equal(predicted.weights, evaluated.weights)
    np.testing.assert_array_equal(predicted.labels, evaluated.labels)
    counts = evaluated.weights > 0
    present = (predicted.logits[counts], predicted.labels[counts], predicted.weights[counts])
    np.testing.assert_array_equal(predicted.present, present[0])
    for key, metric in METRICS.items():
        value = float(metric(present[0], present[1], present[2].astype(np.float32)))
        assert row[f"validation_{key}"] == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_an_example_without_a_label_is_predicted_nevertheless():
    source = sentences(5)
    source.weights[2] = 0
    state = state_of(Tagger(), source, losses.objective("focal"), optax.sgd(0.1))
    predicted = train.predict(train.linen(Tagger()), state, source, batch_size=2)
    assert predicted.logits.shape == (5, LENGTH, CLASSES)
    np.testing.assert_array_equal(predicted.weights, source.weights)
    unweighted = dataclasses.replace(source, weights=None)
    assert train.predict(train.linen(Tagger()), state, unweighted).weights is None


@pytest.mark.parametrize("name", ["cross_entropy", "brier"])
def test_mixup_weighs_each_label_by_its_own_weight(name, x64):
    """A void pixel takes nothing of a pair; brier mixes the labels, cross-entropy the losses."""

    def halves(key, keys, mask, inputs, labels, axis_name):
        roll = lambda leaf: jnp.roll(leaf, 1, axis=0)  # noqa: E731
        mixed = jax.tree.map(lambda x: 0.75 * x + 0.25 * roll(x), inputs)
        return mixed, roll(labels), jnp.asarray(0.75)

    source, params = random_case(0)
    source.labels[source.weights == 0] = 255
    source.inputs.update(jax.tree.map(lambda x: x.astype(float), source.inputs))
    objective, tx = losses.objective(name), optax.sgd(0.0)
    state = train.create({"params": params}, objective, tx, CLASSES, 0)
    step = jax.jit(train.make_train_step(linear, objective, tx, mix=halves))
    _, measured = step(state, train.Batch(*source.examples, jnp.arange(9)))
    inputs = jax.tree.map(lambda x: 0.75 * x + 0.25 * np.roll(x, 1, axis=0), source.inputs)
    p = np.asarray(jax.nn.softmax(linear(params, {}, inputs, train=False)[0]))
    total, eye = 0.0, np.eye(CLASSES)
    for n, k in np.ndindex(9, LENGTH):
        pair = [(0.75, n), (0.25, n - 1)]
        pair = [(share * source.weights[m, k], source.labels[m, k]) for share, m in pair]
        pair = [(weight, label) for weight, label in pair if weight > 0]
        mass = sum(weight for weight, _ in pair)
        if name == "brier" and pair:
            target = sum(weight * eye[label] for weight, label in pair) / mass
            total += mass * np.sum((p[n, k] - target) ** 2)
        elif pair:
            total += sum(-weight * np.log(p[n, k, label]) for weight, label in pair)
    assert float(measured["loss"]) == pytest.approx(total, rel=1e-9)


# --------------------------------------------------------------------------------------------
# Pairs of an image and its label map.


def test_an_image_and_its_label_map_share_their_crop(x64):
    """Each label is the value of its pixel, and stays so; pixels from outside have weight 0."""
    image = np.arange(1, 13).reshape(3, 4)
    source = InMemory(
        np.tile(image[None, ..., None], (8, 1, 1, 1)), np.tile(image[None], (8, 1, 1))
    )
    crop = data.compose(data.random_crop(padding=2), data.random_flip())
    augment = jax.vmap(data.on_pairs(crop))
    keys = jax.random.split(jax.random.key(3), 8)
    inputs, labels, weights = augment(keys, source.examples)
    np.testing.assert_array_equal(inputs[..., 0], labels)
    np.testing.assert_array_equal(weights, labels > 0)
    assert len({np.asarray(one).tobytes() for one in labels}) > 4
    alone, kept, none = jax.vmap(data.on_inputs(crop))(keys, source.examples)
    np.testing.assert_array_equal(alone, inputs)  # the same stream of keys
    np.testing.assert_array_equal(kept, source.labels)
    assert none is None


@pytest.mark.slow
def test_a_step_weighs_the_pixels_of_the_crop(x64):
    """The loss of a step is that of the augmented pairs, with the keys of their numbers."""
    source, objective, tx = photographs(2), losses.objective("cross_entropy"), optax.sgd(0.0)
    augment = data.on_pairs(data.random_crop(padding=1))
    state = state_of(Pixels(), source, objective, tx)
    forward = train.linen(Pixels())
    step = jax.jit(train.make_train_step(forward, objective, tx, augment=augment))
    index = jnp.array([5, 3])
    weights = jnp.asarray(source.weights, float)
    _, measured = step(state, train.Batch(source.inputs, source.labels, weights, index))
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), 0)
    total = mass = 0.0
    for n, number in enumerate(index.tolist()):
        one = Examples(source.inputs[n], source.labels[n], weights[n])
        seen = augment(jax.random.fold_in(key, number), one)
        logits, _, _ = forward(state.params, {}, seen.inputs[None], train=True)
        log_p = np.asarray(jax.nn.log_softmax(logits))[0]
        for place in np.argwhere(np.asarray(seen.weights) > 0):
            total -= log_p[(*place, seen.labels[tuple(place)])]
            mass += 1
    assert float(measured["weight"]) == mass
    assert float(measured["loss"]) == pytest.approx(total, rel=1e-9)


# --------------------------------------------------------------------------------------------
# Bad input.


def test_augmentations_of_another_kind_are_refused():
    objective, tx = losses.objective("focal"), optax.sgd(0.1)
    source = photographs(2)
    state = state_of(Pixels(), source, objective, tx)
    batch = train.Batch(source.inputs, source.labels, jnp.ones(2), jnp.arange(2))

    def step(augment):
        return train.make_train_step(train.linen(Pixels()), objective, tx, augment=augment)

    with pytest.raises(TypeError, match=r"must return Examples, got .*: wrap .* in data.on_inputs"):
        step(lambda key, example: example.inputs)(state, batch)
    with pytest.raises(TypeError) as caught:
        step(lambda key, image: image[:, ::-1])(state, batch)
    assert "data.on_inputs" in caught.value.__notes__[0]
    with pytest.raises(
        ValueError, match=r"weights of the shape of the labels \(3, 4\), got \(3,\)"
    ):
        step(lambda key, e: e._replace(weights=e.weights[:, 0]))(state, batch)
    with pytest.raises(
        ValueError, match=r"height and width of the label map \(3, 4\), got \(2, 4, 2\)"
    ):
        step(data.on_pairs(lambda key, x: x))(
            state, dataclasses.replace(batch, inputs=source.inputs[:, :2])
        )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((3, 2)), r"the shape of the labels \(3, 4\), or \(3,\), got \(3, 2\)"),
        (np.ones(4), r"the shape of the labels \(3, 4\), or \(3,\), got \(4,\)"),
        (np.full(3, -1), "finite and not negative, got -1: give 0 to labels that do not count"),
        (np.array([1, np.nan, 0]), "finite and not negative, got nan"),
        (np.array(["a", "b", "c"]), "weights must be numbers, got <U1"),
    ],
)
def test_weights_are_checked_wherever_they_are_read(weights, message):
    labels = np.zeros((3, 4), int)
    with pytest.raises((TypeError, ValueError), match=message):
        InMemory(np.zeros(3), labels, weights)

    class Wrong(OnDisk):
        def __getitem__(self, index):
            return Examples(*self.source[index])._replace(weights=weights)

    source = Wrong(InMemory(np.zeros(3), labels))
    order = train.in_batches(np.arange(3), 3)
    with pytest.raises((TypeError, ValueError), match=message):
        list(feeds.batches(source, order, train.local_devices(1)))


@pytest.mark.parametrize("wrap", [lambda s: s, OnDisk], ids=["resident", "streamed"])
@pytest.mark.parametrize(("part", "label"), [("train", 7), ("validation", 2**32 + 1)])
def test_a_label_out_of_range_is_named_with_its_place(part, label, wrap, tmp_path):
    parts = {"train": sentences(9), "validation": sentences(6, seed=1)}
    wrong = parts[part]
    labels = wrong.labels.astype(np.int64)
    labels[4, 2], wrong.weights[4, 2] = label, 0.5
    parts[part] = dataclasses.replace(wrong, labels=labels)
    name = "training" if part == "train" else part
    with pytest.raises((ValueError, train.NonFinite)) as caught:
        fitted(tmp_path, *map(wrap, parts.values()), Tagger(), losses.objective("focal"))
    message = str(caught.value)
    assert message.startswith(f"the {name} example 4 has the label {label} at position 2,")
    assert "the classes are 0 to 4" in message
    assert "weight 0" in message
