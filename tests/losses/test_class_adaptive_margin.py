"""Class-adaptive margins: penalties of the logits' distances, and multipliers that follow them."""

import jax
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def constraint_penalty(h, multiplier, rho, name):
    """Return the penalty of one distance and its slope, by the cases of the formulas."""
    if name == "phr":
        x = multiplier + rho * h
        value = (x**2 if x > 0 else 0.0) / (2 * rho) - multiplier**2 / (2 * rho)
        return value, max(x, 0.0)
    if h < 0:
        return multiplier * h / (1 - rho * h), multiplier / (1 - rho * h) ** 2
    value = multiplier * h + multiplier * rho * h**2
    slope = multiplier + 2 * multiplier * rho * h
    if name == "p2":
        return value + rho**2 * h**3 / 6, slope + rho**2 * h**2 / 2
    return value, slope


def of_classes(logits, multiplier, rho, margin, penalty):
    """Return penalties and slopes [N, K] by loops."""
    values, slopes = np.zeros_like(logits), np.zeros_like(logits)
    for n, k in np.ndindex(*logits.shape):
        h = (np.max(logits[n]) - logits[n, k] - margin) / margin
        values[n, k], slopes[n, k] = constraint_penalty(h, multiplier[k], rho, penalty)
    return values, slopes


def class_adaptive_margin(
    logits,
    labels,
    *,
    margin=10.0,
    penalty="phr",
    multiplier_min=1e-6,
    multiplier_max=1e6,
    rho=1.0,
    multiplier=None,
):
    """-log p_y plus the sum over classes, with the initial multipliers by default."""
    if multiplier is None:
        multiplier = np.full(logits.shape[-1], multiplier_min)
    values, _ = of_classes(logits, multiplier, rho, margin, penalty)
    return probabilities(logits, labels).cross_entropy + np.sum(values, axis=-1)


REFERENCES = {"class_adaptive_margin": class_adaptive_margin}


@pytest.mark.parametrize("penalty", ["phr", "p2", "p3"])
def test_value_and_gradient(penalty):
    checks.check_objective("class_adaptive_margin", class_adaptive_margin, penalty=penalty)
    multiplier = np.array([0.3, 1e-6, 2.0, 0.05, 0.7])
    with jax.enable_x64(True):
        state = losses.ClassMarginState(multiplier, np.float64(1.5), np.float64(0.0))
        checks.check_objective(
            "class_adaptive_margin",
            class_adaptive_margin,
            checks.batch(scale=4.0),
            state=state,
            fields={"multiplier": multiplier, "rho": 1.5},
            margin=3.0,
            penalty=penalty,
        )


def follow(state, batches, epochs, *, margin, penalty):
    """Update multipliers, curvature and previous penalty by loops over validation batches."""
    multiplier, rho, previous = state
    for epoch, (logits, weights) in zip(range(1, epochs + 1), batches, strict=True):
        values, slopes = of_classes(logits, multiplier, rho, margin, penalty)
        multiplier = np.average(np.clip(slopes, 1e-6, 1e6), axis=0, weights=weights)
        current = np.average(values.sum(-1), weights=weights)
        if epoch % 2 == 0 and previous > 0 and current > 0.9 * previous:
            rho = min(10.0, 1.2 * rho)
        previous = current
    return multiplier, rho, previous


@pytest.mark.parametrize("penalty", ["phr", "p2"])
def test_updates_follow_the_validation(penalty):
    random = np.random.default_rng(0)
    batches = [(6 * random.standard_normal((12, 4)), random.integers(3, size=12)) for _ in range(6)]
    first = (np.full(4, 1e-6), 1.0, 0.0)
    expected = follow(first, batches, 6, margin=2.0, penalty=penalty)
    assert expected[1] > 1  # the curvature has grown
    with jax.enable_x64(True):
        objective = losses.objective(
            "class_adaptive_margin", margin=2.0, penalty=penalty, rho_step=2
        )
        state = objective.init(4)
        for epoch, (logits, weights) in enumerate(batches, 1):
            evidence = objective.evidence(state, logits, np.zeros(12, int), weights.astype(float))
            state = objective.update(state, evidence, losses.Progress(epoch, epoch, 6))
        for actual, wanted in zip(state, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-9)
        np.testing.assert_array_equal(objective.table(state, evidence)["class"], range(4))


def test_within_the_margin_multipliers_stay_at_their_minimum():
    objective = losses.objective("class_adaptive_margin")
    state = objective.init(3)
    logits = np.array([[2.0, 0.0, 1.0]], np.float32)
    after = objective.update(
        state, objective.evidence(state, logits, np.array([0])), losses.Progress(1, 10, 20)
    )
    np.testing.assert_allclose(after.multiplier, state.multiplier)
    assert after.rho == state.rho
