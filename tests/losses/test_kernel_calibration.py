"""MMCE: a kernel measure of miscalibration, over all pairs of examples of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from tests.selection import first_case

from . import checks
from .reference import probabilities


def kernel(a, b, bandwidth=0.4):
    """The Laplacian kernel."""
    return np.exp(-abs(a - b) / bandwidth)


def mmce(logits, labels, *, bandwidth=0.4):
    """sum_ij e_i e_j k(c_i, c_j) / N^2 with e = 1[correct] - confidence; no square root."""
    p = probabilities(logits, labels)
    error = (p.predicted == labels) - p.top
    total = 0.0
    for error_i, top_i in zip(error, p.top, strict=True):
        for error_j, top_j in zip(error, p.top, strict=True):
            total += error_i * error_j * kernel(top_i, top_j, bandwidth)
    return total / len(labels) ** 2


def mmce_weighted(logits, labels, *, bandwidth=0.4, double_normalization=False):
    """Distance of the correct and the wrong examples' confidences, each group with its own mean.

    The released code divides by the group sizes twice (`double_normalization`): by the number of
    pairs in the mean and again, plus 1e-5, outside of it.
    """
    p = probabilities(logits, labels)
    right = p.predicted == labels
    groups = {True: p.top[right], False: p.top[~right]}
    if not groups[True].size or not groups[False].size:
        return 0.0
    total = 0.0
    for one, tops in groups.items():
        for other, other_tops in groups.items():
            pairs = [
                (1 - a if one else a) * (1 - b if other else b) * kernel(a, b, bandwidth)
                for a in tops
                for b in other_tops
            ]
            term = np.mean(pairs)
            if double_normalization:
                term = term / (len(pairs) + 1e-5)
            total += term if one == other else -term
    return np.sqrt(total + 1e-10)


def mmce_objective(logits, labels, *, scale=2.0, bandwidth=0.4):
    """Cross-entropy plus scale times MMCE."""
    penalty = mmce(logits, labels, bandwidth=bandwidth)
    return probabilities(logits, labels).cross_entropy + scale * penalty


def mmce_weighted_objective(
    logits, labels, *, scale=2.0, bandwidth=0.4, double_normalization=False
):
    """Cross-entropy plus scale times the weighted MMCE."""
    penalty = mmce_weighted(
        logits, labels, bandwidth=bandwidth, double_normalization=double_normalization
    )
    return probabilities(logits, labels).cross_entropy + scale * penalty


def mmce_gra(logits, labels, *, bandwidth=0.4, constants_at=None):
    """Cross-entropy times the detached MMCE of the batch."""
    fixed = logits if constants_at is None else constants_at
    penalty = mmce(fixed, labels, bandwidth=bandwidth)
    return penalty * probabilities(logits, labels).cross_entropy


REFERENCES = {
    "mmce": mmce_objective,
    "mmce_weighted": mmce_weighted_objective,
    "mmce_gra": mmce_gra,
}


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_mmce_value_and_gradient(scale):
    checks.check_objective("mmce", mmce_objective, scale=scale)


@first_case
@pytest.mark.parametrize("double_normalization", [False, True])
def test_mmce_weighted_value_and_gradient(double_normalization):
    checks.check_objective(
        "mmce_weighted", mmce_weighted_objective, double_normalization=double_normalization
    )


def test_mmce_gra_value_and_gradient():
    checks.check_objective("mmce_gra", mmce_gra)


# Compiled once for all bandwidths.
PENALTIES = {
    jax.jit(losses.mmce_penalty): mmce,
    jax.jit(losses.mmce_weighted_penalty): mmce_weighted,
}


@pytest.mark.parametrize("bandwidth", [0.1, 0.4, 2.0])
@pytest.mark.parametrize(("penalty", "reference"), PENALTIES.items())
def test_bandwidth(penalty, reference, bandwidth):
    logits, labels = checks.batch(12)
    np.testing.assert_allclose(
        penalty(logits.astype(np.float32), labels, bandwidth=bandwidth),
        reference(logits, labels, bandwidth=bandwidth),
        rtol=1e-4,
    )


def test_weighted_is_zero_when_every_answer_is_right():
    logits, _ = checks.batch(12)
    _, penalty = PENALTIES
    assert penalty(logits.astype(np.float32), logits.argmax(-1), bandwidth=0.4) == 0.0


@pytest.mark.parametrize("spread", [1e-6, 1e-4])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_rounding_makes_no_squared_norm_negative(penalty, spread):
    """All confidences near 1/2: the terms of the weighted MMCE cancel, and its root is taken."""
    for seed in range(30):
        random = np.random.default_rng(seed)
        logits = np.log([0.5, *[0.5 / 9] * 9]) + spread * random.normal(size=(512, 10))
        labels = random.integers(0, 10, 512)
        value, gradient = jax.value_and_grad(penalty)(
            logits.astype(np.float32), labels, bandwidth=0.4
        )
        assert value >= 0
        assert np.isfinite(gradient).all()


def test_absent_examples_change_nothing():
    logits, labels = checks.batch(12)
    weights = np.repeat(np.array([1.0, 0.0], np.float32), [9, 3])
    labels[-1] = 255
    for penalty, reference in PENALTIES.items():
        np.testing.assert_allclose(
            penalty(logits, labels, weights), reference(logits[:9], labels[:9]), rtol=1e-5
        )


value_and_gradient = jax.jit(jax.value_and_grad(losses.mmce_penalty))


@pytest.mark.parametrize("bandwidth", [0.01, 1e-3, 1e-30])
def test_a_narrow_kernel_in_float32(bandwidth):
    """Check values and gradients where exp(1 / bandwidth) is beyond float32."""
    logits, labels = checks.batch(num_examples=12)
    logits, labels = np.repeat(logits, 2, axis=0), np.repeat(labels, 2)  # with ties
    actual, gradient = value_and_gradient(logits.astype(np.float32), labels, bandwidth=bandwidth)
    np.testing.assert_allclose(actual, mmce(logits, labels, bandwidth=bandwidth), rtol=1e-4)
    assert np.all(np.isfinite(gradient))
    np.testing.assert_allclose(gradient[::2], gradient[1::2], rtol=1e-5, atol=1e-9)


def test_an_empty_batch_is_zero():
    logits, labels = jnp.zeros((0, 3)), jnp.zeros(0, int)
    for penalty in (losses.mmce_penalty, losses.mmce_weighted_penalty, losses.soft_ece_penalty):
        assert jax.jit(penalty)(logits, labels) == 0
    for name in ("mmce", "mmce_weighted", "mmce_gra", "soft_ece"):
        assert jax.jit(losses.objective(name).value)((), logits, labels).shape == (0,)


@pytest.mark.parametrize("jitted", [False, True])
def test_tied_examples_have_the_gradient_of_one_confidence(jitted):
    r"""For equal rows the kernel is 1: the value is $(\bar e)^2$, and c has the slope -2 e / N."""
    logits = jnp.tile(jnp.asarray([2.0, 0.0]), (100, 1))
    labels = jnp.repeat(jnp.asarray([0, 1]), jnp.asarray([60, 40]), total_repeat_length=100)
    confidence = 1 / (1 + np.exp(-2.0))
    error = 0.6 - confidence
    run = jax.value_and_grad(losses.mmce_penalty)
    value, gradient = (jax.jit(run) if jitted else run)(logits, labels)
    np.testing.assert_allclose(value, error**2, rtol=1e-4)
    slope = -2 * error / 100 * confidence * (1 - confidence)
    np.testing.assert_allclose(gradient, np.tile([slope, -slope], (100, 1)), rtol=1e-4)
