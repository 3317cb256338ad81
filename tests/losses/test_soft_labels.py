"""Labels that are distributions over the classes: formulas, bounds, one-hot ones as a case."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.selection import some

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


def focal_with_weight_held(z, q, constants_at=None):
    held = z if constants_at is None else constants_at
    return -np.sum(q * (1 - np.exp(log_softmax(held))) ** 2 * log_softmax(z), axis=-1)


def generalized_brier(z, q, gamma=3.0, beta=1.5):
    distance = np.abs(q - np.exp(log_softmax(z)))
    return np.sum(distance**beta, axis=-1) ** (gamma / beta) * cross_entropy(z, q)


def generalized_brier_with_weight_held(z, q, constants_at=None):
    held = z if constants_at is None else constants_at
    return np.sum((q - np.exp(log_softmax(held))) ** 2, axis=-1) * cross_entropy(z, q)


PAIRS = {
    "cross_entropy": (losses.cross_entropy, cross_entropy),
    "label_smoothing": (functools.partial(losses.label_smoothing, alpha=0.1), label_smoothing),
    "brier": (losses.brier, brier),
    "focal": (losses.focal, focal),
    "generalized_brier": (
        functools.partial(losses.generalized_brier, gamma=3.0, beta=1.5, weighting="loss"),
        generalized_brier,
    ),
    "focal, weight held": (
        functools.partial(losses.focal, gamma=2.0, weighting="gradient"),
        focal_with_weight_held,
    ),
    "generalized_brier, weight held": (
        functools.partial(losses.generalized_brier, gamma=2.0),
        generalized_brier_with_weight_held,
    ),
}


@functools.cache
def compiled(loss):
    """Compile the values of a loss, and the gradient of their sum, for any kind of labels."""

    def run(logits, labels):
        values, pull_back = jax.vjp(lambda z: loss(z, labels), logits)
        return values, pull_back(jnp.ones_like(values))[0]

    return jax.jit(run)


@pytest.mark.parametrize("name", PAIRS)
def test_value_and_gradient(name, x64):
    ours, reference = PAIRS[name]
    actual = compiled(ours)(LOGITS, SOFT)
    checks.assert_equal_the_reference(actual, reference, LOGITS, SOFT, step=1e-5, rtol=1e-6)


def test_other_readings_of_smoothing_and_of_the_brier_score(x64):
    smoothed = losses.label_smoothing(LOGITS, SOFT, alpha=0.1, spread="all")
    np.testing.assert_allclose(smoothed, cross_entropy(LOGITS, 0.9 * SOFT + 0.025), rtol=1e-9)
    weighted = losses.generalized_brier(LOGITS, SOFT, gamma=3.0, reading="sum")
    distance = np.abs(SOFT - np.exp(log_softmax(LOGITS)))
    expected = np.sum(distance**3, axis=-1) * cross_entropy(LOGITS, SOFT)
    np.testing.assert_allclose(weighted, expected, rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", [name for name in PAIRS if "held" not in name])
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


TAKE_SOFT_LABELS = [
    name for name in losses.__all__ if getattr(getattr(losses, name), "soft_labels", False)
]


def test_soft_labels_of_another_type_do_not_widen_the_loss():
    """Also where JAX has 64 bits, and where implicit promotions are forbidden."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        for name in TAKE_SOFT_LABELS:
            for logits, labels in (("float32", "float64"), ("float64", "bfloat16")):
                data = jnp.zeros((2, 3), logits), jnp.zeros((2, 3), labels)
                assert jax.eval_shape(getattr(losses, name), *data).dtype == logits


def with_row(row):
    """Return soft labels for LOGITS whose rows 2 and 4 are `row`."""
    soft = np.asarray(SOFT, np.float32)
    soft[[2, 4]] = row
    return soft


@pytest.mark.parametrize("name", some(TAKE_SOFT_LABELS, 3))
def test_soft_labels_that_are_no_distribution_make_their_row_nan(name):
    logits, wrong = np.asarray(LOGITS, np.float32), with_row([0.5, 0.2, 0.2, 0.0])
    values, gradient = compiled(getattr(losses, name))(logits, wrong)
    if np.ndim(values) == 0:  # a penalty of the whole batch
        assert np.isnan(values)
        return
    expected, slopes = compiled(getattr(losses, name))(logits, np.asarray(SOFT, np.float32))
    bad = np.array([2, 4])
    assert np.all(np.isnan(values[bad]))
    assert np.all(np.isnan(gradient[bad]))
    np.testing.assert_array_equal(np.delete(values, bad), np.delete(expected, bad))
    np.testing.assert_array_equal(np.delete(gradient, bad, 0), np.delete(slopes, bad, 0))


def test_soft_iou_takes_rows_of_zeros():
    """A void pixel of weight 1 has no class: only its probability counts, in the union."""
    none = with_row([0.0, 0.0, 0.0, 0.0])
    logits = np.asarray(LOGITS, np.float32)
    p = np.exp(log_softmax(LOGITS))
    union = np.sum(none + p * (1 - none), axis=0)
    expected = 1 - np.mean(np.sum(p * none, axis=0) / union)
    objective = losses.objective("soft_iou")
    for value in (
        losses.soft_iou_penalty(logits, none),
        jax.jit(losses.soft_iou_penalty)(logits, none),
        objective.value((), logits, none)[0],
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert np.isnan(losses.cross_entropy(logits, none)[2])
