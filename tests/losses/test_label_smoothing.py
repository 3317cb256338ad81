"""Label smoothing: cross-entropy against targets that keep alpha away from the true class."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def label_smoothing(logits, labels, *, alpha=0.05, spread="others"):
    """-sum_k t_k log p_k; t spreads alpha over the wrong classes, or over all of them."""
    p = probabilities(logits, labels)
    num_classes = p.all.shape[-1]
    if spread == "others":
        target = np.where(p.hot == 1, 1 - alpha, alpha / (num_classes - 1))
    else:
        target = (1 - alpha) * p.hot + alpha / num_classes
    return -np.sum(target * p.log, axis=-1)


REFERENCES = {"label_smoothing": label_smoothing}


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.1, 0.5])
def test_value_and_gradient(alpha):
    checks.check_objective("label_smoothing", label_smoothing, alpha=alpha)


@pytest.mark.parametrize("spread", ["others", "all"])
def test_spread(spread):
    logits, labels = checks.batch()
    checks.check(
        lambda z, y: losses.label_smoothing(z, y, alpha=0.1, spread=spread),
        label_smoothing,
        logits,
        labels,
        alpha=0.1,
        spread=spread,
    )


def test_spreads_differ_by_a_factor_of_alpha():
    # the papers' alpha over K - 1 classes is optax's alpha * K / (K - 1) over all K
    logits, labels = checks.batch(num_classes=5)
    np.testing.assert_allclose(
        losses.label_smoothing(logits, labels, alpha=0.08),
        losses.label_smoothing(logits, labels, alpha=0.1, spread="all"),
        rtol=1e-5,
    )


@pytest.mark.parametrize("spread", ["others", "all"])
def test_huge_logits_do_not_overflow_in_a_sum(spread):
    """Check it where K times a logit is beyond float32 and the mean is not."""
    logits = 7.5e37 * np.array([[1.0, *[0.0] * 9], [0.0, 1.0, *[0.0] * 8]])
    labels = np.array([0, 0])
    actual, gradient = jax.value_and_grad(
        lambda z: jnp.sum(losses.label_smoothing(z, labels, alpha=0.1, spread=spread) / 1e37)
    )(jnp.asarray(logits, jnp.float32))
    expected = np.sum(label_smoothing(logits, labels, alpha=0.1, spread=spread) / 1e37)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert np.all(np.isfinite(gradient))


def test_no_smoothing_gives_an_impossible_class_no_weight():
    logits, labels = jnp.array([[1.0, -jnp.inf, 0.0]]), jnp.array([0])
    actual = losses.label_smoothing(logits, labels, alpha=0.0)
    np.testing.assert_allclose(actual, losses.cross_entropy(logits, labels), rtol=1e-6)
    assert losses.label_smoothing(logits, labels, alpha=0.1) == jnp.inf
