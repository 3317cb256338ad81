"""Labels that are distributions over the classes: formulas, bounds, one-hot ones as a case."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from calib_jax import losses

from . import checks

RANDOM = np.random.default_rng(0)
LOGITS = 2 * RANDOM.standard_normal((6, 4))
SOFT = RANDOM.dirichlet(np.full(4, 0.5), size=6)


def log_softmax(z):
    return z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))


def cross_entropy(z, q):
    return -np.sum(q * log_softmax(z), axis=-1)


def label_smoothing(z, q, alpha=0.1):
    return cross_entropy(z, (1 - alpha) * q + alpha / 3 * (1 - q))


def brier(z, q):
    return np.sum((q - np.exp(log_softmax(z))) ** 2, axis=-1)


def focal(z, q, gamma=3.0):
    log_p = log_softmax(z)
    return -np.sum(q * (1 - np.exp(log_p)) ** gamma * log_p, axis=-1)


def generalized_brier(z, q, gamma=3.0, beta=1.5):
    distance = np.abs(q - np.exp(log_softmax(z)))
    return np.sum(distance**beta, axis=-1) ** (gamma / beta) * cross_entropy(z, q)


PAIRS = {
    "cross_entropy": (losses.cross_entropy, cross_entropy),
    "label_smoothing": (functools.partial(losses.label_smoothing, alpha=0.1), label_smoothing),
    "brier": (losses.brier, brier),
    "focal": (losses.focal, focal),
    "generalized_brier": (
        functools.partial(losses.generalized_brier, gamma=3.0, beta=1.5, weighting="loss"),
        generalized_brier,
    ),
}


@functools.cache
def compiled(name):
    """Compile the values of a loss, and the gradient of their sum, for any kind of labels."""

    def run(logits, labels):
        values, pull_back = jax.vjp(lambda z: PAIRS[name][0](z, labels), logits)
        return values, pull_back(jnp.ones_like(values))[0]

    return jax.jit(run)


@pytest.mark.parametrize("name", PAIRS)
def test_value_and_gradient(name, x64):
    actual = compiled(name)(LOGITS, SOFT)
    checks.assert_equal_the_reference(actual, PAIRS[name][1], LOGITS, SOFT, step=1e-5, rtol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_one_hot_labels_are_integer_labels(name, x64):
    labels = np.array([0, 1, 2, 3, 0, 1])
    for logits in (LOGITS, 20 * LOGITS):
        of_hard, of_soft = (compiled(name)(logits, y) for y in (labels, np.eye(4)[labels]))
        for hard, soft in zip(of_hard, of_soft, strict=True):
            np.testing.assert_allclose(soft, hard, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", ["focal", "generalized_brier"])
def test_gradient_weighting_holds_the_weight(function, x64):
    logits, q = jnp.asarray(LOGITS), jnp.asarray(SOFT)
    p = jax.nn.softmax(logits)
    weights = {
        "focal": (1 - p) ** 2,
        "generalized_brier": jnp.sum((q - p) ** 2, axis=-1, keepdims=True),
    }
    weight = weights[function]
    ours = functools.partial(getattr(losses, function), gamma=2.0, weighting="gradient")
    plain = lambda z: -jnp.sum(q * weight * jax.nn.log_softmax(z))  # noqa: E731
    np.testing.assert_allclose(
        jax.grad(lambda z: ours(z, q).sum())(logits), jax.grad(plain)(logits), rtol=1e-9
    )


@pytest.mark.parametrize("weighting", ["loss", "gradient"])
@pytest.mark.parametrize("function", ["focal", "generalized_brier"])
def test_second_derivatives_of_one_hot_labels_are_those_of_integer_labels(function, weighting, x64):
    labels = jnp.asarray([0, 1, 2, 3, 0, 1])
    loss = functools.partial(getattr(losses, function), gamma=3.0, weighting=weighting)
    direction = jnp.asarray(np.random.default_rng(2).standard_normal(LOGITS.shape))

    def second(labels):
        gradient = jax.grad(lambda z: jnp.sum(loss(z, labels)))
        return jax.grad(lambda z: jnp.vdot(gradient(z), direction))(jnp.asarray(LOGITS))

    np.testing.assert_allclose(second(jax.nn.one_hot(labels, 4)), second(labels), rtol=1e-7)


@pytest.mark.parametrize("gamma", [1.0, 2.0, 5.0])
def test_focal_bounds_the_regularised_divergence(gamma, x64):
    """Check focal >= KL(q || p) - gamma H(p), which is why it keeps the entropy up."""
    random = np.random.default_rng(1)
    for scale in (0.1, 1.0, 5.0):
        logits = scale * random.standard_normal((500, 5))
        q = random.dirichlet(np.full(5, 0.3), size=500)
        log_p = log_softmax(logits)
        entropy = -np.sum(np.exp(log_p) * log_p, axis=-1)
        divergence = np.sum(np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0), axis=-1)
        divergence += cross_entropy(logits, q)
        bound = divergence - gamma * entropy
        assert np.all(losses.focal(jnp.asarray(logits), jnp.asarray(q), gamma=gamma) >= bound)


def test_smoothing_over_all_classes_is_that_of_optax(x64):
    labels = jnp.asarray([0, 1, 2, 3, 0, 1])
    smoothed = optax.smooth_labels(jax.nn.one_hot(labels, 4), 0.1)
    expected = optax.softmax_cross_entropy(jnp.asarray(LOGITS), smoothed)
    ours = losses.label_smoothing(jnp.asarray(LOGITS), labels, alpha=0.1, spread="all")
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", PAIRS)
def test_finite_at_the_extremes(name, dtype):
    ours, _ = PAIRS[name]
    rows = [[60.0, 0.01, 0.0], [1e4, -1e4, 0.0], [0.0, 0.0, 0.0], [1e4, -1e4, 0.0]]
    q = jnp.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.2, 0.3]])
    logits = jnp.asarray(rows, dtype)
    has_gamma = name in ("focal", "generalized_brier")
    for options in ({"gamma": 0.5}, {"gamma": 3.0}) if has_gamma else ({},):
        loss = lambda z, options=options: ours(z, q, **options)  # noqa: E731
        terms, gradient = loss(logits), jax.grad(lambda z: jnp.sum(loss(z)))(logits)  # noqa: B023
        assert terms.dtype == jnp.float32
        assert gradient.dtype == logits.dtype
        assert jnp.all(jnp.isfinite(terms)), terms
        assert jnp.all(jnp.isfinite(gradient)), gradient


@pytest.mark.parametrize("name", ["cross_entropy", "brier", "focal", "generalized_brier"])
def test_an_impossible_class_without_weight_is_no_class(name):
    logits, soft = (part.astype(np.float32) for part in (LOGITS, SOFT))
    wider, zero = np.insert(logits, 2, -np.inf, axis=1), np.insert(soft, 2, 0, axis=1)
    values, gradient = compiled(name)(wider, zero)
    expected, plain = compiled(name)(logits, soft)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.delete(gradient, 2, axis=1), plain, rtol=1e-4, atol=1e-6)
    assert not np.any(gradient[:, 2])
    # With weight on it the loss is infinite (Brier's is not), and no gradient is NaN.
    zero[:, 2] = 0.5
    values, gradient = compiled(name)(wider, zero)
    assert np.all(np.isfinite(values)) if name == "brier" else np.all(values == np.inf)
    assert np.all(np.isfinite(gradient))
