"""Scheduled focal loss (FLSc): gamma steps down as the epochs pass."""

import jax.numpy as jnp
import pytest

from calib_jax import losses

from . import checks
from .references import focal


def flsc(logits, labels, *, gamma=5.0):
    """The focal loss with the gamma of the first stage; `gamma` is the only field of the state."""
    return focal(logits, labels, gamma=gamma)


REFERENCES = {"flsc531": flsc, "flsc532": flsc}


def gamma_at(epoch, num_epochs, gammas):
    """Return gamma in epoch 0, 1, ..: the papers step at 100 and at 250 of 350 epochs."""
    if epoch < num_epochs * 100 // 350:
        return gammas[0]
    return gammas[1] if epoch < num_epochs * 250 // 350 else gammas[2]


GAMMAS = {"flsc531": (5.0, 3.0, 1.0), "flsc532": (5.0, 3.0, 2.0)}


def state_at(objective, epoch, num_epochs):
    """Run the clock: update after the last step of every epoch before this one."""
    state = objective.init(5)
    for finished in range(1, epoch + 1):
        progress = losses.Progress(steps=7 * finished, epochs=finished, num_epochs=num_epochs)
        state = objective.update(state, losses.objective("focal").evidence((), *EMPTY), progress)
    return state


EMPTY = (jnp.zeros((1, 5)), jnp.zeros(1, jnp.int32), jnp.ones(1))


@pytest.mark.parametrize("name", REFERENCES)
def test_initial_value_and_gradient(name):
    checks.check_objective(name, flsc)


@pytest.mark.parametrize("name", REFERENCES)
def test_value_and_gradient_of_later_stages(name):
    objective = losses.objective(name)
    for epoch, gamma in zip((0, 13, 14, 34, 35, 49), (0, 0, 1, 1, 2, 2), strict=True):
        gamma = GAMMAS[name][gamma]
        assert gamma_at(epoch, 50, GAMMAS[name]) == gamma
        state, fields = state_at(objective, epoch, 50), {"gamma": gamma}
        checks.check_objective(name, flsc, checks.batch(), state=state, fields=fields)
