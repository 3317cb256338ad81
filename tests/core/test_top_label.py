"""The top label's confidence: one formula, whatever the label, the program or the other rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from calib_jax.core.probabilities import prepare
from calib_jax.core.top_label import cross_entropy_and_top_label
from calib_jax.metrics import Predictions

CONFIDENCES = {
    "top_label": lambda z, y: cross_entropy_and_top_label(z, y).confidence,
    "Predictions": lambda z, y: Predictions(z, y).confidence,
    "Probabilities": lambda z, y: prepare(z, y).confidence,
    "adafocal": lambda z, y: evidence("adafocal", z, y)["confidence"],
}


def evidence(name, logits, labels):
    objective = losses.objective(name)
    return objective.evidence(objective.init(logits.shape[-1]), logits, labels)


def beside_other_work(confidence):
    """Compute it in a program with other sums of the same rows, which a compiler may fuse."""

    def run(logits, labels):
        terms = losses.focal(logits, labels) + losses.cross_entropy(logits, labels)
        slope = jax.grad(lambda z: jnp.sum(losses.brier(z, labels)))(logits)
        return confidence(logits, labels), terms, slope

    return lambda logits, labels: jax.jit(run)(logits, labels)[0]


@pytest.mark.parametrize("name", CONFIDENCES)
def test_equal_rows_have_equal_confidences_whatever_their_labels(name):
    random = np.random.default_rng(0)
    confidence = CONFIDENCES[name]
    for num_rows, num_classes, dtype in (
        (103, 2, "float32"),
        (37, 10, "float32"),
        (65, 3, "float16"),
    ):
        logits = jnp.asarray(2 * random.standard_normal((5, num_classes)), dtype)
        row = random.integers(5, size=num_rows)
        labels = jnp.asarray(random.integers(num_classes, size=num_rows))
        bits = []
        for way in (confidence, jax.jit(confidence), beside_other_work(confidence)):
            values = np.asarray(way(logits[row], labels))
            assert values.dtype == np.float32
            bits.append([set(values[row == number]) for number in range(5)])
            assert [len(different) for different in bits[-1]] == [1] * 5
        assert bits[0] == bits[1] == bits[2]


def test_the_gradient_is_exact_where_the_confidence_is_almost_one():
    """The gradient of c is c (1 - c) at the top, which a difference would round to 0."""
    logits = jnp.asarray([[30.0, 0.0, -1.0], [60.0, 0.0, 1.0], [0.5, 0.0, 0.0], [1.0, 1.0, 1.0]])
    labels = jnp.zeros(4, int)
    gradient = jax.jit(jax.grad(lambda z: jnp.sum(prepare(z, labels).confidence)))(logits)
    z = np.asarray(logits, np.float64)
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    expected = -p * p[:, :1]
    expected[:, 0] = p[:, 0] * p[:, 1:].sum(-1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_gradients_are_those_of_the_formulas(x64):
    random = np.random.default_rng(0)
    logits, factors = random.normal(size=(2, 6, 4))
    logits = jnp.asarray(logits)
    labels = jnp.array([0, 1, 2, 3, *logits[4:].argmax(axis=1)])

    def ours(z):
        found = cross_entropy_and_top_label(z, labels)
        return found.loss, found.confidence, found.gaps

    def plain(z):
        log_p = jax.nn.log_softmax(z)
        loss = -log_p[jnp.arange(6), labels]
        return loss, jnp.exp(jnp.max(log_p, axis=1)), jnp.max(z, axis=1, keepdims=True) - z

    values, pull = jax.vjp(ours, logits)
    expected, expected_pull = jax.vjp(plain, logits)
    np.testing.assert_allclose(np.hstack([*values[:2]]), np.hstack([*expected[:2]]), rtol=1e-12)
    np.testing.assert_allclose(values[2], expected[2], atol=1e-12)
    for given in (factors, 0 * factors):
        cotangents = factors[:, 0], factors[:, 1], given
        np.testing.assert_allclose(
            pull(cotangents)[0], expected_pull(cotangents)[0], rtol=1e-10, atol=1e-12
        )
