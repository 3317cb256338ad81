"""Bad input gets one sentence that names the value and the way out, at trace time."""

import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import losses
from calib_jax.losses import AdaFocalState, RecallState

LOGITS = jnp.zeros((4, 3))
LABELS = jnp.zeros(4, int)
SOFT = jnp.full((4, 3), 1 / 3)


def objective(name, **options):
    return lambda: losses.objective(name, **options)


BAD = {
    **{
        f"one class of {name}": (
            lambda loss=loss: loss(LOGITS[:, :1], np.zeros_like(LABELS)),
            ValueError,
            r"logits \(4, 1\) have one class.*calib_jax.binary\(logits\[..., 0\]\)",
        )
        for name, loss in (
            ("a loss", losses.cross_entropy),
            ("a penalty", losses.mdca_penalty),
            ("an objective", functools.partial(losses.objective("focal").value, ())),
        )
    },
    "labels too short": (
        lambda: losses.focal(LOGITS, LABELS[:3]),
        ValueError,
        r"focal: logits \(4, 3\) need labels of shape \(4,\), got \(3,\)",
    ),
    "classes on axis 1": (
        lambda: losses.focal(jnp.zeros((2, 3, 5)), jnp.zeros((2, 5), int)),
        ValueError,
        r"the classes are the last axis, jnp.moveaxis\(logits, 1, -1\)",
    ),
    "swapped": (
        lambda: losses.focal(LABELS, LOGITS),
        TypeError,
        "logits must be floating point, got int32.*swapped",
    ),
    "integer logits": (
        lambda: losses.cross_entropy(np.zeros((4, 3), int), LABELS),
        TypeError,
        "got int32",
    ),
    "soft labels of another shape": (
        lambda: losses.focal(LOGITS, SOFT[:, :2]),
        ValueError,
        r"logits \(4, 3\) need labels of shape \(4,\), got \(4, 2\)",
    ),
    "no classes": (lambda: losses.focal(LOGITS[:, :0], LABELS), ValueError, "at least one class"),
    "weights of another shape": (
        lambda: losses.objective("focal").value((), LOGITS, LABELS, jnp.ones(3)),
        ValueError,
        r"weights must have shape \(4,\), one for each example, got \(3,\)",
    ),
    "weights of a penalty": (
        lambda: losses.mmce_penalty(LOGITS, LABELS, np.ones(5)),
        ValueError,
        r"weights must have shape \(4,\)",
    ),
    "pixels without images": (
        lambda: losses.neighbour_margin_penalty(LOGITS, LABELS),
        ValueError,
        r"labels of shape \[images, height, width\].*got \(4,\)",
    ),
    "state of another number of classes": (
        lambda: losses.recall(LOGITS, LABELS, RecallState(jnp.ones(5))),
        ValueError,
        "the state has 5 classes and the logits 3",
    ),
    "too few edges": (
        lambda: losses.adafocal(LOGITS, LABELS, AdaFocalState(jnp.ones(3), jnp.ones(3))),
        ValueError,
        "a state of 3 gammas needs 4 edges, got 3",
    ),
    "an objective's labels": (
        lambda: losses.objective("focal").value((), LOGITS, LABELS[:3], jnp.ones(4)),
        ValueError,
        r"logits \(4, 3\) need labels of shape \(4,\), got \(3,\)",
    ),
    "weighting": (
        lambda: losses.focal(LOGITS, LABELS, weighting="gradiant"),
        ValueError,
        "weighting must be one of 'loss', 'gradient', got 'gradiant'; did you mean 'gradient'",
    ),
    "runner-up": (
        lambda: losses.dual_focal(LOGITS, LABELS, runner_up="secnd"),
        ValueError,
        "got 'secnd'; did you mean 'second'",
    ),
    "unknown objective": (
        objective("flsd35"),
        ValueError,
        "no objective is called 'flsd35'; did you mean 'flsd53'",
    ),
    "option by position": (
        lambda: losses.focal(LOGITS, LABELS, 3.0),
        TypeError,
        r"^focal takes 2 positional arguments, got 3: options are keywords\.$",
    ),
    "objective taken for a function": (
        lambda: losses.bsce_gra(LOGITS, LABELS),
        AttributeError,
        r"^calib_jax.losses has no function 'bsce_gra': it is an objective,"
        r" losses.objective\('bsce_gra'\)\.$",
    ),
    "unknown option": (
        objective("focal", gama=2.0),
        TypeError,
        r"'focal' has no option 'gama' \(it has gamma, weighting\); did you mean 'gamma'",
    ),
    "unknown function": (lambda: losses.focl, AttributeError, "'focl'; did you mean 'focal'"),
    "p0 of gamma_for": (lambda: losses.gamma_for(0.0), ValueError, r"p0 must lie in \(0, 1\]"),
    "traced gamma_for": (
        lambda: jax.jit(losses.gamma_for)(0.3),
        TypeError,
        "gamma_for works on the host",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_one_sentence(name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    call, error, message = BAD[name]
    with pytest.raises(error, match=message) as caught:
        call()
    assert str(caught.value).endswith((".", "?"))
    assert "\n" not in str(caught.value)


def test_lists_and_numpy_are_taken():
    state = AdaFocalState(jnp.ones(2), jnp.linspace(0.0, 1.0, 3))
    expected = losses.adafocal(LOGITS, LABELS, state)
    given = losses.adafocal(np.zeros((4, 3), np.float32).tolist(), [0, 0, 0, 0], state)
    np.testing.assert_array_equal(given, expected)
