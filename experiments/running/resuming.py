"""Config keys that may change when a run resumes, because the steps do not depend on them.

    always                          run, metrics, num_bins, evaluate_test, patience, patience_for
    best                            if the remaining metrics keep their direction
    num_epochs, schedule            if the learning rates of all steps done stay the same, and the
                                    loss does not depend on the number of epochs

So --config.num_epochs prolongs a finished run if the rate is constant or drops at milestones, and
milestones that are not reached may move. A run with any other change cannot resume.
"""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from calib_jax import losses
from calib_jax.core.types import Progress
from experiments.running import building

MEASURED = ("run", "metrics", "num_bins", "evaluate_test")
ENDING = ("patience", "patience_for")
LENGTH = ("num_epochs", "schedule")


def free(experiment: building.Experiment) -> Callable[..., Collection[str]]:
    """Build the function that returns the keys that may change, for `train.fit`."""
    epoch_steps = experiment.epoch_steps

    def keys(before: dict[str, Any], now: dict[str, Any], step: int) -> list[str]:
        chosen = [*MEASURED, *ENDING]
        if _same_directions(before["best"], now["best"]):
            chosen.append("best")
        if _same_steps(experiment, before, now, step, epoch_steps):
            chosen += LENGTH
        return chosen

    return keys


def _same_directions(before: dict[str, str], now: dict[str, str]) -> bool:
    return all(before[name] == now[name] for name in before.keys() & now.keys())


def _same_steps(
    experiment: building.Experiment,
    before: dict[str, Any],
    now: dict[str, Any],
    step: int,
    epoch_steps: int,
) -> bool:
    """Check that the steps done would be the same under another length and schedule."""
    if all(before[key] == now[key] for key in LENGTH):
        return True
    objective = experiment.task.objective
    if before["num_epochs"] != now["num_epochs"]:
        if now["num_epochs"] * epoch_steps < step:
            return False
        if depends_on_length(objective, experiment.dataset.num_classes):
            return False
        # A run is evaluated at its end, and this evaluation may update the loss state.
        every = now["eval_every_steps"] or epoch_steps
        if objective.clock == "validation" and step % every:
            return False
    done = np.arange(step)
    first, second = (
        np.asarray(building.learning_rate(ConfigDict(config), epoch_steps)(done))
        for config in (before, now)
    )
    return bool(np.all(first == second))


def depends_on_length(objective: losses.Objective, num_classes: int) -> bool:
    """Check by tracing whether the updates of an objective use the number of epochs."""
    if objective.clock == "never":
        return False

    def updated(num_epochs: Any) -> Any:
        batch = jnp.zeros((2, num_classes)), jnp.zeros(2, int), jnp.ones(2)
        state = objective.init(num_classes, np.ones(num_classes))
        stat = objective.evidence(state, *batch)
        return objective.update(state, stat, Progress(1, 1, num_epochs))

    traced = jax.make_jaxpr(updated)(10)
    (length,) = traced.jaxpr.invars
    return any(length is used for equation in traced.jaxpr.eqns for used in equation.invars)
