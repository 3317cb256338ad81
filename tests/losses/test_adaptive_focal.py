"""AdaFocal and scheduled focal loss: gammas that follow the calibration, and the epochs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .references import focal, probabilities, seen_by_weight


def gamma_per_example(true, gamma, edges):
    """Return the gamma of each p_y: bins are closed on the left, the outer ones unbounded."""
    result = []
    for p in true:
        chosen = gamma[0]
        for lower, candidate in zip(edges[1:-1], gamma[1:], strict=True):
            if p >= lower:
                chosen = candidate
        result.append(chosen)
    return np.array(result)


def adafocal(
    logits,
    labels,
    *,
    num_bins=15,
    gamma_initial=1.0,
    gamma=None,
    edges=None,
    weighting="loss",
    constants_at=None,
):
    """-(1 - s p_y)^|gamma| log p_y with s the sign of the bin's gamma.

    `gamma` [bins] and `edges` [bins + 1] are the state; without them it is the initial one.
    """
    if gamma is None:
        gamma, edges = np.full(num_bins, gamma_initial), np.linspace(0, 1, num_bins + 1)
    p = seen_by_weight(logits, labels, weighting, constants_at)
    chosen = gamma_per_example(p.true, gamma, edges)
    base = np.where(chosen > 0, p.rest, np.where(chosen < 0, 1 + p.true, 1.0))
    return base ** np.abs(chosen) * probabilities(logits, labels).cross_entropy


REFERENCES = {"adafocal": adafocal}


def next_gamma(
    gamma, gap, *, rate=1.0, switch=0.2, gamma_min=-2.0, gamma_max=20.0, rule="released"
):
    """Return one bin's next gamma for gap = confidence - accuracy on the validation set."""
    if rule == "slides":
        return gamma * np.exp(rate * gap)
    moved = gamma * np.exp(rate * gap if gamma > 0 else -rate * gap)
    if abs(moved) < switch:
        moved = -switch if moved > 0 else switch
    return min(max(moved, gamma_min), gamma_max)


@pytest.mark.parametrize("weighting", ["loss", "gradient"])
def test_value_and_gradient_in_a_state(weighting):
    gamma, edges = np.array([4.0, -0.7, 0.0, 0.3, -2.0]), np.array([0.1, 0.2, 0.4, 0.7, 0.9, 1.0])
    logits, labels = checks.batch(40, 3)
    chosen = gamma_per_example(probabilities(logits, labels).true, gamma, edges)
    assert set(chosen) == set(gamma)  # every bin is met

    def value(logits, labels):
        state = losses.AdaFocalState(gamma=jnp.asarray(gamma), edges=jnp.asarray(edges))
        return losses.adafocal(logits, labels, state, weighting=weighting)

    checks.check(value, adafocal, logits, labels, gamma=gamma, edges=edges, weighting=weighting)


@pytest.mark.parametrize("rule", ["released", "slides"])
@pytest.mark.parametrize("rate", [1.0, 3.0])
def test_rule(rule, rate):
    gamma = np.array([-2.0, -0.5, -0.2, 0.2, 0.21, 1.0, 5.0, 19.0])
    with jax.enable_x64(True):
        for gap in np.linspace(-1, 1, 21):
            expected = [next_gamma(g, gap, rate=rate, rule=rule) for g in gamma]
            moved = losses.adafocal_rule(
                jnp.asarray(gamma), jnp.full(gamma.shape, gap), rate=rate, rule=rule
            )
            np.testing.assert_allclose(moved, expected, rtol=1e-12)


def test_the_table_of_the_bins():
    objective = losses.objective("adafocal", num_bins=3)
    columns = jnp.float32([[0.2, 0.4, 0.6, 0.8], [0, 1, 1, 1], [1, 1, 2, 2]])

    @jax.jit
    def columns_of_table(*rows):
        return [*objective.table(objective.init(5), losses.adafocal_rows(*rows)).values()]

    np.testing.assert_allclose(
        columns_of_table(*columns),
        [
            *([0.2, 0.4, 0.6], [0.4, 0.6, 0.8], [2, 2, 2]),
            *([0.3, 0.6, 0.8], [0.5, 1, 1], [-0.2, -0.4, -0.2], [1, 1, 1]),
        ],
        rtol=1e-6,
    )


def flsc(logits, labels, *, gamma=5.0):
    """The focal loss with the gamma of the first stage; `gamma` is the only field of the state."""
    return focal(logits, labels, gamma=gamma)


REFERENCES |= {"flsc531": flsc, "flsc532": flsc}


GAMMAS = {"flsc531": (5.0, 3.0, 1.0), "flsc532": (5.0, 3.0, 2.0)}


@pytest.mark.parametrize("name", GAMMAS)
def test_value_and_gradient_of_later_stages(name):
    """The papers step at 100 and at 250 of 350 epochs."""
    objective = losses.objective(name)
    for num_epochs, at, stage in (
        *((50, 13, 0), (50, 14, 1), (50, 34, 1), (50, 35, 2)),
        *((350, 99, 0), (350, 100, 1), (350, 249, 1), (350, 250, 2)),
    ):
        progress = losses.Progress(steps=7 * at, epochs=at, num_epochs=num_epochs)
        state = objective.update(objective.init(5), None, progress)
        assert jax.tree.leaves(state) == [GAMMAS[name][stage]]
    fields = {"gamma": GAMMAS[name][2]}
    checks.check_objective(name, flsc, checks.batch(), state=state, fields=fields)


def test_evidence_of_one_example_without_an_axis():
    objective = losses.objective("adafocal")
    rows = objective.evidence(objective.init(3), jnp.zeros(3), jnp.array(1))
    assert rows["hit"].tolist() == [0.0]


def test_confidences_are_those_of_the_metrics_to_the_last_bit():
    """A confidence at an edge falls into the bin of the metrics, and gammas stay as they were."""
    logits = 3 * jax.random.normal(jax.random.key(0), (4096, 10))
    objective = losses.objective("adafocal")
    rows = objective.evidence(objective.init(10), logits, jnp.zeros(4096, int), None)
    spread = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    np.testing.assert_array_equal(rows["confidence"], 1 / jnp.sum(spread, axis=-1))
