"""Class-adaptive margins: penalties of the logits' distances, and multipliers that follow them."""

import jax
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .members import updated
from .references import probabilities


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
        values[n, k], slopes[n, k] = constraint_penalty(h, multiplier[k], rho[k], penalty)
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
    """-log p_y plus the mean over classes, with the initial multipliers by default."""
    if multiplier is None:
        multiplier = np.full(logits.shape[-1], multiplier_min)
    rho = np.broadcast_to(rho, multiplier.shape)
    values, _ = of_classes(logits, multiplier, rho, margin, penalty)
    return probabilities(logits, labels).cross_entropy + np.mean(values, axis=-1)


REFERENCES = {"class_adaptive_margin": class_adaptive_margin}


@pytest.mark.parametrize("penalty", ["phr", "p2", "p3"])
def test_value_and_gradient_in_a_state(penalty):
    multiplier = np.array([0.3, 1e-6, 2.0, 0.05, 0.7])
    with jax.enable_x64(True):
        rho = np.array([1.5, 1.0, 10.0, 2.0, 1.2])
        state = losses.ClassMarginState(multiplier, rho, np.zeros(5))
        checks.check_objective(
            "class_adaptive_margin",
            class_adaptive_margin,
            checks.batch(scale=4.0),
            state=state,
            fields={"multiplier": multiplier, "rho": rho},
            margin=3.0,
            penalty=penalty,
        )


def follow(state, batches, epochs, *, margin, penalty):
    """Update multipliers, curvatures and constraints by loops over validation batches."""
    multiplier, rho, previous = state
    for epoch, (logits, weights) in zip(range(1, epochs + 1), batches, strict=True):
        _, slopes = of_classes(logits, multiplier, rho, margin, penalty)
        multiplier = np.average(np.clip(slopes, 1e-6, 1e6), axis=0, weights=weights)
        gaps = np.max(logits, axis=1, keepdims=True) - logits
        current = np.average(gaps / margin - 1, axis=0, weights=weights)
        if epoch % 2 == 0:
            stuck = current > 0.9 * np.maximum(previous, 0)
            rho = np.where(stuck, np.minimum(10.0, 1.2 * rho), rho)
        previous = current
    return multiplier, rho, previous


@pytest.mark.parametrize("penalty", ["phr", "p2"])
def test_updates_follow_the_validation(penalty):
    random = np.random.default_rng(0)
    batches = [(6 * random.standard_normal((12, 4)), random.integers(3, size=12)) for _ in range(6)]
    batches = [(logits * [1, 1, 1, 0.1], weights) for logits, weights in batches]
    first = (np.full(4, 1e-6), np.ones(4), np.full(4, np.inf))
    expected = follow(first, batches, 6, margin=2.0, penalty=penalty)
    assert len(np.unique(expected[1])) > 1  # the curvatures have grown by class
    with jax.enable_x64(True):
        objective = losses.objective(
            "class_adaptive_margin", margin=2.0, penalty=penalty, rho_step=2
        )
        state = objective.init(4)
        gather, update = jax.jit(objective.evidence), jax.jit(objective.update)
        for epoch, (logits, weights) in enumerate(batches, 1):
            evidence = gather(state, logits, np.zeros(12, int), weights.astype(float))
            state = update(state, evidence, losses.Progress(epoch, epoch, 6))
        for actual, wanted in zip(state, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-9)
        np.testing.assert_array_equal(objective.table(state, evidence)["class"], range(4))


def test_one_possible_row_updates_a_class_and_none_keeps_its_state():
    logits = np.random.default_rng(0).standard_normal((5, 3))
    logits[1:, 1], logits[:, 2] = -np.inf, -np.inf
    objective = losses.objective("class_adaptive_margin")
    states = [
        updated(objective, objective.init(3), (logits, np.zeros(5, int), np.float32(weights)))
        for weights in ([1, 1, 1, 1, 1], [1, 0, 0, 0, 0])
    ]
    assert np.isfinite(states[0].previous).tolist() == [True, True, False]
    for all_rows, first_row in zip(*states, strict=True):
        np.testing.assert_array_equal(all_rows[1:], first_row[1:])


def test_an_impossible_class_has_no_part_in_the_mean_over_classes():
    logits, labels = checks.batch(num_classes=4)
    wider = np.insert(logits, 2, -np.inf, axis=1)
    objective = losses.objective("class_adaptive_margin", margin=1.0)
    moved, ones = np.where(labels < 2, labels, labels + 1), np.ones(8)
    actual = objective.value(objective.init(5), np.float32(wider), moved, ones)
    expected = class_adaptive_margin(logits, labels, margin=1.0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
