"""Refusals: one sentence that names the value and the way out, at trace time."""

import jax.numpy as jnp
import jaxtyping
import pytest

from calib_jax import losses
from calib_jax.losses import AdaFocalState, RecallState

LOGITS = jnp.zeros((4, 3))
LABELS = jnp.zeros(4, int)


def value(logits, labels, weights=None):
    return losses.objective("focal").value((), logits, labels, weights)


BAD = {
    "one class": (
        lambda: value(LOGITS[:, :1], LABELS),
        r"\(4, 1\) need at least 2 classes.*calib_jax.binary\(logits",
    ),
    "swapped": (lambda: losses.focal(LABELS, LOGITS), "must be floating point, got int32.*swapped"),
    "weights of another shape": (
        lambda: value(LOGITS, LABELS, jnp.ones(3)),
        r"weights must have shape \(4,\), one for each example, got \(3,\)",
    ),
    "pixels without images": (
        lambda: losses.neighbour_margin_penalty(LOGITS, LABELS),
        r"labels of shape \[images, height, width\].*got \(4,\)",
    ),
    "state of other classes": (
        lambda: losses.recall(LOGITS, LABELS, RecallState(jnp.ones(5))),
        "the state has 5 classes and the logits 3",
    ),
    "too few edges": (
        lambda: losses.adafocal(LOGITS, LABELS, AdaFocalState(jnp.ones(3), jnp.ones(3))),
        "a state of 3 gammas needs 4 edges, got 3",
    ),
    "weighting": (
        lambda: losses.focal(LOGITS, LABELS, weighting="gradiant"),
        "weighting must be one of 'loss', 'gradient', got 'gradiant'; did you mean 'gradient'",
    ),
    "unknown objective": (lambda: losses.objective("flsd35"), "did you mean 'flsd53'"),
    "thresholds that fall": (
        lambda: losses.flsd(LOGITS, LABELS, thresholds=(0.5, 0.2)),
        r"thresholds must ascend, got \(0.5, 0.2\)",
    ),
    "option by position": (
        lambda: losses.focal(LOGITS, LABELS, 3.0),
        "too many positional arguments",
    ),
    "an objective is no function": (
        lambda: losses.bsce_gra,
        r"has no function 'bsce_gra': it is an objective, losses.objective\('bsce_gra'\)\.$",
    ),
    "unknown option": (
        lambda: losses.objective("focal", gama=2.0),
        r"'focal' has no option 'gama' \(it has gamma, weighting\); did you mean 'gamma'",
    ),
    "unknown option of a function": (
        lambda: losses.focal(LOGITS, LABELS, gama=2.0),
        "'focal' has no option 'gama'.*did you mean 'gamma'",
    ),
    "an option of another shape": (
        lambda: losses.focal(LOGITS, LABELS, gamma=[1.0, 2.0]),
        r"gamma must be a number or have shape \(4,\), one for each example, got \(2,\)",
    ),
    "unknown function": (lambda: losses.focl, "'focl'; did you mean 'focal'"),
    "p0 of gamma_for": (lambda: losses.gamma_for(0.0), r"p0 must lie in \(0, 1\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_sentence(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    call, message = BAD[name]
    with pytest.raises((ValueError, TypeError, AttributeError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
