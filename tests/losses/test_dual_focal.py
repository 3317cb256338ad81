"""Dual focal loss: the weight also sees the runner-up class."""

import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities, seen_by_weight


def runner_up_probability(p, kind):
    """Return p_j [N] for one of the three readings of "the second most likely class"."""
    result = []
    for everything, true, hot in zip(p.all, p.true, p.hot, strict=True):
        if kind == "below":  # the released code: strictly below p_y, 0 where there is none
            result.append(max((q for q in everything if q < true), default=0.0))
        elif kind == "wrong":
            result.append(max(everything[hot == 0]))
        elif kind == "second":
            result.append(sorted(everything)[-2])
    return np.array(result)


def dual_focal(
    logits,
    labels,
    *,
    gamma=5.0,
    runner_up="below",
    detach_runner_up=False,
    weighting="loss",
    constants_at=None,
):
    """-(1 - p_y + p_j)^gamma log p_y."""
    rest = seen_by_weight(logits, labels, weighting, constants_at).rest
    if detach_runner_up:
        weighting = "gradient"
    other = runner_up_probability(
        seen_by_weight(logits, labels, weighting, constants_at), runner_up
    )
    return (rest + other) ** gamma * probabilities(logits, labels).cross_entropy


def dfl_gra(logits, labels, *, gamma=5.0, runner_up="below", constants_at=None):
    """-(1 - p_y + p_j)^gamma log p_y, the weight detached."""
    return dual_focal(
        logits,
        labels,
        gamma=gamma,
        runner_up=runner_up,
        weighting="gradient",
        constants_at=constants_at,
    )


REFERENCES = {"dual_focal": dual_focal, "dfl_gra": dfl_gra}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("runner_up", ["below", "wrong", "second"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 5.0])
def test_value_and_gradient(name, runner_up, gamma):
    checks.check_objective(name, REFERENCES[name], gamma=gamma, runner_up=runner_up)


@pytest.mark.parametrize("runner_up", ["below", "wrong", "second"])
def test_detached_runner_up(runner_up):
    checks.check_objective(
        "dual_focal", dual_focal, runner_up=runner_up, detach_runner_up=True, gamma=2.0
    )


def test_readings_differ_by_hand():
    # p = (0.2, 0.3, 0.5); below: the largest p under p_y; wrong: the largest of the other two
    logits = np.log(np.array([[0.2, 0.3, 0.5]] * 3, np.float32))
    labels = np.array([0, 1, 2])
    entropy = -np.log([0.2, 0.3, 0.5])
    for runner_up, weight in {
        "below": [1 - 0.2 + 0.0, 1 - 0.3 + 0.2, 1 - 0.5 + 0.3],
        "wrong": [1 - 0.2 + 0.5, 1 - 0.3 + 0.5, 1 - 0.5 + 0.3],
        "second": [1 - 0.2 + 0.3, 1 - 0.3 + 0.3, 1 - 0.5 + 0.3],
    }.items():
        values = losses.dual_focal(logits, labels, gamma=2.0, runner_up=runner_up)
        np.testing.assert_allclose(values, np.square(weight) * entropy, rtol=1e-5)


def test_equal_probabilities_are_not_below():
    # classes 0 and 1 tie: under "below" the runner-up of class 0 is class 2
    logits = np.log(np.array([[0.4, 0.4, 0.2]], np.float32))
    values = losses.dual_focal(logits, np.array([0]), gamma=1.0, runner_up="below")
    np.testing.assert_allclose(values, -(1 - 0.4 + 0.2) * np.log(0.4), rtol=1e-5)
