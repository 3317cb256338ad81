"""Options with one number for each example, such as `gamma=[1, 2, 3]`.

The reference is `jax.vmap` over the examples, each with a number of its own.
"""

import jax
import jax.numpy as jnp
import numpy as np

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
