"""Objectives of the user's own, public names, an option of each example, and memory."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses
from calib_jax.core.types import Progress

from .members import MEMBERS, every, initial_state
from .test_laws import TAKE_SOFT_LABELS, assert_close, is_coupled

LOGITS = jnp.asarray([[2.0, 0.5, -1.0], [0.1, 0.2, 0.3]])
LABELS = jnp.asarray([0, 2])
WEIGHTS = jnp.asarray([1.0, 2.0])


def test_the_public_names_are_those_of_dir_and_none_is_a_module():
    assert dir(losses) == losses.__all__ == sorted(set(losses.__all__))
    assert len(losses.__all__) <= 45
    for name in losses.__all__:
        assert not isinstance(getattr(losses, name), types.ModuleType), name
        assert not name.startswith("_")


def test_a_function_becomes_an_objective():
    def scaled_focal(logits, labels, *, scale=2.0):
        return scale * losses.focal(logits, labels)

    mine = losses.objective(scaled_focal, scale=3.0)
    expected = 3 * losses.focal(LOGITS, LABELS)
    np.testing.assert_allclose(mine.value((), LOGITS, LABELS, None), expected, rtol=1e-6)
    of_table = losses.objective("focal", gamma=2.0).value((), LOGITS, LABELS)
    of_function = losses.objective(losses.focal, gamma=2.0).value((), LOGITS, LABELS)
    np.testing.assert_array_equal(of_function, of_table)


def test_make_objective_passes_all_arguments_by_one_signature():
    seen = {}

    def value(state, logits, labels, weights, *, axis_name):
        seen.update(state=state, labels=labels, weights=weights, axis_name=axis_name)
        return losses.focal(logits, labels, gamma=state)

    objective = losses.make_objective(value, init=lambda num_classes: jnp.asarray(2.0))
    labels = jnp.asarray([0, 255])
    absent = jnp.asarray([1.0, 0.0])
    terms = objective.value(objective.init(3), LOGITS, labels, absent, axis_name="devices")
    np.testing.assert_allclose(terms[0], losses.focal(LOGITS, LABELS, gamma=2.0)[0], rtol=1e-6)
    assert terms[1] == 0
    assert (seen["state"], seen["axis_name"]) == (2.0, "devices")
    np.testing.assert_array_equal(seen["labels"], [0, 0])
    np.testing.assert_array_equal(seen["weights"], absent)
    total = lambda state: jnp.sum(objective.value(state, LOGITS, LABELS, None))  # noqa: E731
    assert jax.grad(total)(2.0) == 0


def test_an_objective_is_five_functions_with_its_name_and_its_table():
    fields = ("init", "value", "evidence", "update", "clock")
    assert losses.Objective._fields == fields
    columns = lambda state, stat: {"gamma": jnp.asarray(state)}  # noqa: E731
    mine = losses.make_objective(lambda state, logits, labels: labels, table=columns)
    copy = losses.Objective(**mine._asdict())
    assert copy.table(2.0, None) == {"gamma": 2.0}
    assert losses.objective("focal", gamma=2.0).name == "focal(gamma=2.0)"
    own = losses.Objective(len, losses.focal, len, lambda state, stat, progress: state, "never")
    assert (own.name, own.table((), None)) == ("of your own", {})


SHAPES = {
    "a column": lambda z, y: -jnp.take_along_axis(jax.nn.log_softmax(z), y[:, None], axis=-1),
    "the mean": lambda z, y: losses.cross_entropy(z, y).mean(),
    "one per class": lambda z, y: -jax.nn.log_softmax(z) * jax.nn.one_hot(y, z.shape[-1]),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_loss_of_another_shape_is_refused(shape):
    """Broadcast over the batch, it would train something else."""
    own = SHAPES[shape]
    by_state = losses.make_objective(lambda state, z, y, w, *, axis_name: own(z, y))
    for mine in (
        losses.as_objective(own),
        losses.regularized(own, losses.mmce_penalty, 1.0),
        by_state,
    ):
        with pytest.raises(ValueError, match=r"must return one value for each example, .* \(2,\)"):
            mine.value((), LOGITS, LABELS, None)


def test_a_label_that_a_loss_would_wrap_around_is_nan():
    def own(logits, labels):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]

    objective = losses.as_objective(own)
    for wrong in (-1, 3):
        terms = objective.value((), LOGITS, jnp.asarray([0, wrong]), None)
        np.testing.assert_array_equal(jnp.isnan(terms), [False, True])
        assert objective.value((), LOGITS, jnp.asarray([0, wrong]), jnp.asarray([1, 0]))[1] == 0


def test_a_penalty_is_added_to_every_term_of_any_objective():
    def penalty(logits, labels, weights=None, *, axis_name=None):
        return jnp.sum(weights) + jnp.sum(logits)

    state = losses.objective("adafocal", num_bins=4).init(3)
    for loss, base in (
        (losses.focal, losses.as_objective(losses.focal)),
        (losses.objective("adafocal", num_bins=4),) * 2,
    ):
        both = losses.regularized(loss, penalty, 0.5)
        assert both.clock == base.clock
        expected = base.value(state, LOGITS, LABELS, WEIGHTS) + 0.5 * (3 + jnp.sum(LOGITS))
        terms = both.value(state, LOGITS, LABELS, WEIGHTS)
        np.testing.assert_allclose(terms, expected, rtol=1e-6)


PIXELS, CLASSES = 769 * 769, 19


@functools.cache
def bytes_per_pixel(name):
    """Plan a loss with its update and its gradient, and count all that is held at once."""
    objective = losses.objective(name)
    start = objective.init(CLASSES)

    def step(logits, labels, weights):
        state = start
        if objective.clock == "step":
            evidence = objective.evidence(state, logits, labels, weights)
            state = objective.update(state, evidence, Progress(0, 0, 1))
        total = lambda z: jnp.sum(objective.value(state, z, labels, weights))  # noqa: E731
        return jax.grad(total)(logits), state

    given = (((PIXELS, CLASSES), jnp.float32), ((PIXELS,), jnp.int32), ((PIXELS,), jnp.float32))
    planned = jax.jit(step).lower(*(jax.ShapeDtypeStruct(*each) for each in given)).compile()
    plan = planned.memory_analysis()
    held = plan.temp_size_in_bytes + plan.output_size_in_bytes + plan.argument_size_in_bytes
    return held / PIXELS


@pytest.mark.parametrize("name", ["focal", "adafocal", "bsce_gra", "recall"])
def test_weights_need_little_memory(name):
    assert bytes_per_pixel(name) <= 1.2 * bytes_per_pixel("cross_entropy")


BY_VALIDATION = [
    name for name in losses.catalogue() if losses.objective(name).clock == "validation"
]


@pytest.mark.parametrize("name", BY_VALIDATION)
def test_statistics_do_not_grow_with_the_pixels_of_an_image(name):
    """Two images of Cityscapes keep a few megabytes, and not one row for each of their pixels."""
    objective = losses.objective(name)
    state = objective.init(CLASSES)
    pixels = jax.ShapeDtypeStruct((2, 1024, 2048), jnp.int32)
    logits = jax.ShapeDtypeStruct((*pixels.shape, CLASSES), jnp.float32)
    weights = jax.ShapeDtypeStruct(pixels.shape, jnp.float32)
    kept = jax.eval_shape(objective.evidence, state, logits, pixels, weights)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept)) < 8e6


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
