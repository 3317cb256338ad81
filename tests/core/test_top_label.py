"""The top label's confidence: one formula, whatever the label, the program or the other rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses, metrics
from calib_jax.core.numerics import top_confidence
from calib_jax.core.probabilities import prepare
from calib_jax.core.top_label import top_label
from calib_jax.metrics import Predictions

CONFIDENCES = {
    "top_label": lambda z, y: top_label(z, y)[0],
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
    gradient = jax.jit(jax.grad(lambda z: jnp.sum(top_confidence(z))))(logits)
    z = np.asarray(logits, np.float64)
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    expected = -p * p[:, :1]
    expected[:, 0] = p[:, 0] * p[:, 1:].sum(-1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_second_derivatives_of_it(x64):
    logits = jnp.asarray(np.random.default_rng(2).standard_normal((4, 3)))
    slope = jax.grad(lambda z: jnp.sum(top_confidence(z) ** 2))
    direction = jnp.asarray(np.random.default_rng(3).standard_normal((4, 3)))
    along = jax.grad(lambda z: jnp.vdot(slope(z), direction))(logits)
    step = 1e-6
    expected = (slope(logits + step * direction) - slope(logits - step * direction)) / (2 * step)
    np.testing.assert_allclose(along, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("wrong", [-1, 3, 255])
def test_a_label_out_of_range_is_nan_also_in_the_gradient(wrong):
    logits, labels = jnp.asarray([[2.0, 0.0, 0.0]] * 3), jnp.asarray([0, wrong, 1])
    confidence, hit = top_label(logits, labels)
    np.testing.assert_array_equal(np.isnan(confidence), [False, True, False])
    np.testing.assert_array_equal(hit, [1, np.nan, 0])
    gradient = jax.grad(lambda z: jnp.sum(top_label(z, labels)[0]))(logits)
    np.testing.assert_array_equal(np.isnan(gradient[:, 0]), [False, True, False])


def confidences_of(tree, num_rows):
    """Collect the columns of confidences that a statistic keeps, one value per row."""
    names = ("'confidence'", "'score'")
    return [
        leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if jax.tree_util.keystr(path).endswith(tuple(f"[{name}]" for name in names))
        and np.shape(leaf) == (num_rows,)
    ]


def statistics():
    """Return the functions of logits and labels whose result keeps the confidence of every row."""
    functions = {
        # Those of a score of the example's, whose label says which set it is of, keep none.
        name: lambda z, y, metric=metric: metric.stat(z, y)
        for name, metric in metrics.catalogue().items()
        if not name.startswith("ood_")
    }
    for name in losses.catalogue():
        if losses.objective(name).clock == "validation":
            functions[name] = lambda z, y, name=name: evidence(name, z, y)
    shapes = jnp.zeros((103, 3)), jnp.zeros(103, int)
    return {
        name: function
        for name, function in functions.items()
        if confidences_of(jax.eval_shape(function, *shapes), 103)
    }
