"""Norms of the last layer against gradients that autodiff takes one example at a time."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, metrics, models, train
from calib_jax.train import log
from calib_jax.train.forward import EDGES
from tests.selection import first_case
from tests.train import tasks

NETWORK = models.mlp(num_classes=4, hidden=(7,))


def case(weights):
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal((len(weights), 2, 2, 1)))
    labels = jnp.asarray(random.integers(4, size=len(weights)))
    variables = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, float), NETWORK.init(jax.random.key(0), x, train=False)
    )
    return x, labels, jnp.asarray(weights), variables


@first_case
@pytest.mark.parametrize("name", ["focal", "bsce_gra", "adafocal"])
def test_norms_are_those_of_every_example_alone(name, x64):
    x, labels, weights, variables = case([1.0, 2.0, 0.0, 1.0, 1.0])
    objective = losses.objective(name)
    state = objective.init(4)
    network = NETWORK.clone(dtype="float64")

    def loss_of(head, x, label):
        params = {**variables["params"], "head": head}
        logits = network.apply({"params": params}, x[None], train=False)
        return objective.value(state, logits, label[None], jnp.ones(1))[0]

    gradients = jax.jit(jax.vmap(jax.grad(loss_of), (None, 0, 0)))
    leaves = jax.tree.leaves(gradients(variables["params"]["head"], x, labels))
    expected = np.sqrt(sum(np.square(leaf).reshape(5, -1).sum(axis=1) for leaf in leaves))
    hidden = jax.tree.map(np.asarray, variables["params"]["hidden1"])
    features = np.maximum(np.asarray(x).reshape(5, -1) @ hidden["kernel"] + hidden["bias"], 0)

    forward = train.linen(network, features=True)
    logits, _, given = forward(variables["params"], {}, x, train=False, rng=None, weights=weights)
    real = np.asarray(weights) > 0
    np.testing.assert_allclose(given[real], features[real], rtol=1e-12)
    look = train.LastLayer(objective)
    stat = jax.jit(look.stat)(state, logits, labels, weights, given)
    means = look.means(stat)
    assert means["last_gradient_norm"] == pytest.approx(np.average(expected, weights=weights))
    norms = np.linalg.norm(features, axis=1)
    assert means["feature_norm"] == pytest.approx(np.average(norms, weights=weights))
    counts, _ = np.histogram(expected, EDGES, weights=weights)
    np.testing.assert_array_equal(stat["histogram"], counts)
    kernel = variables["params"]["head"]["kernel"]
    assert look.weight_norm(variables["params"]) == pytest.approx(np.sqrt(np.sum(kernel**2)))


class Newer(nnx.Module):
    """The same network in flax.nnx, whose call also reads an attribute of its last layer."""

    def __init__(self, *, rngs):
        self.hidden1 = nnx.Linear(4, 7, rngs=rngs)
        self.head = nnx.Linear(7, 4, rngs=rngs)

    def __call__(self, x):
        logits = self.head(nnx.relu(self.hidden1(x.reshape(len(x), -1))))
        return logits[:, : self.head.out_features]


def test_an_nnx_module_hands_over_the_inputs_of_its_head():
    x, _, weights, variables = case([1.0, 2.0, 1.0])
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), variables["params"])
    call = {"train": False, "rng": None, "weights": weights}
    older = train.linen(NETWORK, features=True)(params, {}, x, **call)
    factory = train.NnxFactory(lambda rngs: Newer(rngs=rngs))
    forward = factory.forward(features=True)
    for given, expected in zip(forward(params, {}, x, **call), older, strict=True):
        jax.tree.map(np.testing.assert_array_equal, given, expected)
    assert factory.forward()(params, {}, x, **call)[2] is None
    assert forward(params, {}, x, **call | {"train": True})[2] is None
    rngs = nnx.Rngs(0)
    headless = train.nnx(nnx.Sequential(nnx.Linear(2, 3, rngs=rngs)), features=True)
    assert headless(headless.variables["params"], {}, jnp.ones((1, 2)), **call)[2] is None


def test_norms_beyond_the_bins_are_in_the_last_ones():
    look = train.LastLayer(losses.objective("cross_entropy"))
    sure = jnp.array([[200.0, 0.0], [0.0, 200.0]])
    features = jnp.array([[1.0], [1e9]])
    stat = look.stat((), sure, jnp.array([0, 0]), jnp.ones(2), features)
    assert stat["histogram"][0] == stat["histogram"][-1] == 1  # no gradient, and 1.4e9


def test_networks_without_a_head_are_told(tmp_path):
    look = train.LastLayer(losses.objective("cross_entropy"))
    with pytest.raises(ValueError, match="the inputs of the layer 'head'"):
        look.stat((), jnp.zeros((2, 3)), jnp.zeros(2, int), jnp.ones(2), None)
    with pytest.raises(ValueError, match=r"returned \(2, 5, 3\): leave last_layer at None"):
        look.stat((), jnp.zeros((2, 5, 3)), jnp.zeros((2, 5), int), jnp.ones((2, 5)), None)
    task = train.Task(
        forward=tasks.forward,
        objective=look.objective,
        tx=tasks.sgd(),
        metrics={"nll": metrics.nll},
        train=tasks.examples(20),
        evaluated={"validation": tasks.examples(12, seed=2)},
        num_classes=5,
        last_layer=look,
    )
    plan = train.Plan(num_epochs=1, batch_size=10)
    with pytest.raises(ValueError, match="the inputs of the layer 'head'"):
        train.fit(tmp_path, tasks.state_of(look.objective), task, plan, quiet=True)


def head_alone(params, model_state, inputs, *, train, rng=None, weights=None):
    logits = inputs @ params["head"]["kernel"] + params["head"]["bias"][None]
    return logits, model_state, inputs


@pytest.mark.slow
def test_a_run_logs_them_for_every_set(tmp_path):
    objective = losses.objective("cross_entropy")
    variables = {"params": {"head": {"kernel": jnp.zeros((6, 5)), "bias": jnp.zeros(5)}}}
    source = tasks.examples(20)
    task = train.Task(
        forward=head_alone,
        objective=objective,
        tx=tasks.sgd(),
        metrics={"by_correctness": metrics.by_correctness, "nll": metrics.nll},
        train=source,
        evaluated={"validation": tasks.examples(12, seed=2), "training": source},
        num_classes=5,
        last_layer=train.LastLayer(objective),
    )
    train.fit(
        tmp_path,
        train.create(variables, objective, task.tx, 5, 0),
        task,
        train.Plan(num_epochs=2, batch_size=10),
        devices=train.local_devices(2),
        quiet=True,
    )
    rows = log.read_rows(tmp_path / log.ROWS)
    assert rows[-1]["weight_norm"] > 0
    norm = np.mean(np.linalg.norm(source.inputs, axis=1))
    assert rows[-1]["training_feature_norm"] == pytest.approx(norm, rel=1e-5)
    share = rows[-1]["validation_by_correctness_correct_share"]
    nll = (
        share * rows[-1]["validation_by_correctness_correct_nll"]
        + (1 - share) * rows[-1]["validation_by_correctness_wrong_nll"]
    )
    assert nll == pytest.approx(rows[-1]["validation_nll"], rel=1e-5)
    norms = log.read_rows(tmp_path / log.GRADIENT_NORMS)
    assert [row["step"] for row in norms] == [row["step"] for row in rows]
    assert sum(norms[0]["training"]) == 20
    assert sum(norms[0]["validation"]) == 12
