"""Norms of the last layer against gradients that autodiff takes one example at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, models, train
from calib_jax.train.forward import EDGES
from tests.selection import first_case

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


def test_norms_beyond_the_bins_are_in_the_last_ones():
    look = train.LastLayer(losses.objective("cross_entropy"))
    sure = jnp.array([[200.0, 0.0], [0.0, 200.0]])
    features = jnp.array([[1.0], [1e9]])
    stat = look.stat((), sure, jnp.array([0, 0]), jnp.ones(2), features)
    assert stat["histogram"][0] == stat["histogram"][-1] == 1  # no gradient, and 1.4e9
