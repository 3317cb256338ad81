"""Tempered losses: cross-entropy at temperature 1, its weight at the validation temperature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities, seen_by_weight
from .test_dual_focal import runner_up_probability
from .test_generalized_brier import uncertainty
from .test_sample_dependent_focal import gamma_of


def tempered(weight, logits, labels, temperature, weighting, constants_at):
    """Return -weight(softmax(z / T)) log p_y."""
    if constants_at is not None:
        constants_at = constants_at / temperature
    p = seen_by_weight(logits / temperature, labels, weighting, constants_at)
    return weight(p) * probabilities(logits, labels).cross_entropy


# `temperature` is the only field of the state; it starts at 1


def tempered_focal(
    logits, labels, *, gamma=3.0, temperature=1.0, weighting="loss", constants_at=None
):
    """The focal weight."""

    def weight(p):
        return p.rest**gamma

    return tempered(weight, logits, labels, temperature, weighting, constants_at)


def tempered_flsd53(
    logits, labels, *, gammas=(5.0, 3.0, 3.0), temperature=1.0, weighting="loss", constants_at=None
):
    """FLSD's weight, gamma 5, 3; the gamma, too, is chosen at the temperature."""

    def weight(p):
        return p.rest ** gamma_of(p.true, gammas=gammas)

    return tempered(weight, logits, labels, temperature, weighting, constants_at)


def tempered_dual_focal(
    logits,
    labels,
    *,
    gamma=5.0,
    runner_up="below",
    temperature=1.0,
    weighting="loss",
    constants_at=None,
):
    """The dual focal weight."""

    def weight(p):
        return (p.rest + runner_up_probability(p, runner_up)) ** gamma

    return tempered(weight, logits, labels, temperature, weighting, constants_at)


def tempered_bsce(
    logits, labels, *, gamma=2.0, beta=2.0, temperature=1.0, weighting="loss", constants_at=None
):
    """The Brier weight."""

    def weight(p):
        return uncertainty(p, gamma, beta)

    return tempered(weight, logits, labels, temperature, weighting, constants_at)


REFERENCES = {
    "tempered_focal": tempered_focal,
    "tempered_flsd53": tempered_flsd53,
    "tempered_dual_focal": tempered_dual_focal,
    "tempered_bsce": tempered_bsce,
}


OPTIONS = {
    "tempered_focal": {"gamma": 2.0},
    "tempered_flsd53": {"gammas": (5.0, 3.0, 1.0)},
    "tempered_dual_focal": {"gamma": 2.0, "runner_up": "wrong"},
    "tempered_bsce": {"gamma": 4.0, "beta": 3.0},
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("weighting", ["loss", "gradient"])
def test_initial_value_and_gradient(name, weighting):
    checks.check_objective(name, REFERENCES[name], weighting=weighting, **OPTIONS[name])


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("weighting", ["loss", "gradient"])
@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_value_and_gradient_at_a_temperature(name, weighting, temperature):
    options = {"weighting": weighting, **OPTIONS[name]}
    with jax.enable_x64(True):
        state = losses.TemperedState(temperature=jnp.asarray(temperature, jnp.float64))
    of_state = {"state": state, "fields": {"temperature": temperature}}
    checks.check_objective(name, REFERENCES[name], checks.batch(), **of_state, **options)


def expected_calibration_error(logits, labels, num_bins):
    """Return the ECE with equal-width bins, each open on the left."""
    p = probabilities(logits, labels)
    total = 0.0
    for b in range(num_bins):
        inside = (p.top > b / num_bins) & (p.top <= (b + 1) / num_bins)
        total += abs(np.sum(p.top[inside] - (p.predicted == labels)[inside]))
    return total / len(labels)


@pytest.mark.parametrize("criterion", ["ece", "nll"])
def test_update_finds_the_best_temperature_of_the_grid(criterion):
    logits, labels = checks.batch(60, scale=6.0, seed=2)

    def error(temperature):
        if criterion == "ece":
            return expected_calibration_error(logits / temperature, labels, 10)
        return np.mean(probabilities(logits / temperature, labels).cross_entropy)

    grid = 0.01 * np.arange(1, 1001)
    errors = np.array([error(temperature) for temperature in grid])
    with jax.enable_x64(True):
        objective = losses.objective("tempered_focal", criterion=criterion, num_bins=10)
        state = objective.init(5)
        stat = objective.evidence(state, logits, labels, np.ones(60, np.float32))
        progress = losses.Progress(steps=1, epochs=1, num_epochs=10)
        fitted = float(objective.update(state, stat, progress).temperature)
    assert np.isclose(fitted, grid[errors.argmin()])
