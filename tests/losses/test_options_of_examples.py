"""Options with one number for each example, such as `gamma=[1, 2, 3]`.

The reference is `jax.vmap` over the examples, each with a number of its own.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from .members import MEMBERS, every, initial_state
from .test_laws import TAKE_SOFT_LABELS, assert_close, is_coupled

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


FUNCTIONS = {
    "focal": ("gamma", [1, 2, 3]),
    "inverse_focal": ("gamma", [1, 2, 3]),
    "dual_focal": ("gamma", [1, 2, 3]),
    "generalized_brier": ("beta", [1, 2, 3]),
    "adaptive_generalized_brier": ("beta", [1, 2, 3]),
    "label_smoothing": ("alpha", [0, 0.05, 1]),
    "entropy_penalty": ("gamma", [1, 2, 3]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lists_of_numbers_are_taken(name):
    option, numbers = FUNCTIONS[name]
    loss = getattr(losses, name)
    logits, labels = (part[:3] for part in examples(6, num_classes=3))
    expected = [
        loss(z, y, **{option: number}) for z, y, number in zip(logits, labels, numbers, strict=True)
    ]
    kinds = [labels]
    kinds += [jax.nn.one_hot(labels, 3)] if getattr(loss, "soft_labels", False) else []
    for y in kinds:
        for given in (numbers, np.asarray(numbers, np.float64), jnp.asarray(numbers)):
            values = loss(logits, y, **{option: given})
            np.testing.assert_allclose(values, expected, rtol=1e-5)
            images = loss(logits[None], y[None], **{option: np.asarray(given)[None]})
            np.testing.assert_allclose(images[0], expected, rtol=1e-5)


@pytest.mark.slow
def test_soft_labels_that_are_no_corners_have_the_option_of_their_row(x64):
    random = np.random.default_rng(0)
    logits, soft = random.standard_normal((4, 4)), random.dirichlet(np.ones(4), size=4)
    numbers = np.array([0.5, 1.0, 2.0, 3.5])
    for loss in (
        losses.focal,
        functools.partial(losses.focal, weighting="gradient"),
        losses.generalized_brier,
        functools.partial(losses.generalized_brier, reading="sum"),
    ):
        expected = [loss(z, q, gamma=g) for z, q, g in zip(logits, soft, numbers, strict=True)]
        np.testing.assert_allclose(loss(logits, soft, gamma=numbers), expected, rtol=1e-12)
    norms = 1 + numbers
    expected = [
        losses.generalized_brier(z, q, beta=b) for z, q, b in zip(logits, soft, norms, strict=True)
    ]
    actual = losses.generalized_brier(logits, soft, beta=norms)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
