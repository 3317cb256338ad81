"""Bad input is refused in a sentence; options have one number for all examples, or one each."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import losses
from calib_jax.losses import AdaFocalState, RecallState

from .members import MEMBERS, every, initial_state
from .test_laws import TAKE_SOFT_LABELS, assert_close, is_coupled

LOGITS = jnp.zeros((4, 3))
LABELS = jnp.zeros(4, int)


def value_of_focal(logits, labels, weights=None):
    return losses.objective("focal").value((), logits, labels, weights)


BAD = {
    "one class": (
        lambda: value_of_focal(LOGITS[:, :1], LABELS),
        r"have one class.*calib_jax.binary\(logits",
    ),
    "labels too short": (
        lambda: losses.focal(LOGITS, LABELS[:3]),
        r"focal: logits \(4, 3\) need labels of shape \(4,\), got \(3,\)",
    ),
    "an objective's labels": (
        lambda: value_of_focal(LOGITS, LABELS[:3]),
        r"need labels of shape \(4,\)",
    ),
    "classes on axis 1": (
        lambda: losses.focal(jnp.zeros((2, 3, 5)), jnp.zeros((2, 5), int)),
        r"the classes are the last axis, jnp.moveaxis\(logits, 1, -1\)",
    ),
    "swapped": (lambda: losses.focal(LABELS, LOGITS), "must be floating point, got int32.*swapped"),
    "no classes": (lambda: losses.focal(LOGITS[:, :0], LABELS), "at least one class"),
    "weights of another shape": (
        lambda: value_of_focal(LOGITS, LABELS, jnp.ones(3)),
        r"weights must have shape \(4,\), one for each example, got \(3,\)",
    ),
    "weights of a penalty": (
        lambda: losses.mmce_penalty(LOGITS, LABELS, np.ones(5)),
        r"weights must have shape \(4,\)",
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


# Numbers of the formula of one example. Others are of the batch, the state or its update.
OF_EXAMPLES = {"gamma", "beta", "tau", "temperature", "scale", "cross_entropy_scale"}
OF_EXAMPLES_TOO = {
    "label_smoothing": {"alpha"},
    "margin_smoothing": {"alpha", "margin"},
    "max_suppression": {"alpha"},
}


def options_of(member):
    """List the numeric options that may have one number for each example."""
    names = OF_EXAMPLES | OF_EXAMPLES_TOO.get(member.name, set())
    numbers = {name: value for name, value in member.defaults.items() if isinstance(value, float)}
    return {name: numbers[name] for name in numbers if name in names}


MEMBERS_WITH_OPTIONS = [
    member
    for member in MEMBERS
    if options_of(member) and not is_coupled(member) and set(member.options) <= {"reading"}
]


def examples(num_examples, num_classes=4):
    random = np.random.default_rng(num_examples)
    logits = random.standard_normal((num_examples, num_classes)).astype(np.float32)
    return jnp.asarray(logits), jnp.asarray(random.integers(num_classes, size=num_examples))


def numbers_of(default, num_examples):
    """Return different numbers near a default, all of them allowed."""
    return jnp.asarray(default * np.linspace(1, 1.5, num_examples), jnp.float32)


@every(MEMBERS_WITH_OPTIONS)
def test_an_option_of_each_example_is_that_of_its_row(member):
    """Check it with as many examples as classes, too, where a wrong axis would not be noticed."""
    soft = member.name in TAKE_SOFT_LABELS
    for option, default in options_of(member).items():

        def value(number, logits, labels, option=option):
            objective = losses.objective(member.name, **member.options, **{option: number})
            return objective.value(initial_state(objective, 4), logits, labels)

        @jax.jit
        def run(numbers, logits, labels, value=value):
            of_all = jax.value_and_grad(lambda z, y: jnp.sum(value(numbers, z, y)))
            alone = jax.vmap(value)(numbers, logits, labels)
            slope = jax.vmap(jax.grad(value, 1))(numbers, logits, labels)
            kinds = (labels, jax.nn.one_hot(labels, 4)) if soft else (labels,)
            together = [(value(numbers, logits, y), of_all(logits, y)[1]) for y in kinds]
            return (alone, slope), together

        for num_examples in (4, 6):
            logits, labels = examples(num_examples)
            numbers = numbers_of(default, num_examples)
            alone, together = run(numbers, logits, labels)
            for kind in together:
                assert_close(kind, alone)
