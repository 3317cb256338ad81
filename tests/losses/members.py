"""Every objective of the catalogue, as the law suite runs it.

A member is found, never listed: an objective appears here by being in the catalogue, once with
its defaults and once for each other value of the options that choose among formulas.
"""

import functools
import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

# Options that select a formula. Numbers need no member: they are traced (see test_laws).
CHOICES = {
    "weighting": ("loss", "gradient"),
    "runner_up": ("below", "wrong", "second"),
    "detach_runner_up": (False, True),
    "reading": ("norm", "sum"),
    "beta": (1.0, 1.5, 2.0),
    "spread": ("others", "all"),
    "class_reduction": ("mean", "sum"),
    "penalty": ("phr", "p2", "p3"),
    "double_normalization": (False, True),
    "counters": ("recall", "released"),
    "normalized": (False, True),
    "rule": ("released", "slides"),
    "binning": ("mass", "released"),
    "balancing": ("effective", "inverse", "median"),
}
# Its labels are images, and those of the laws are not: its test file checks the laws on images.
OF_IMAGES = {"neighbour_margin"}
# Terms of these depend on the other examples of the batch.
COUPLED = {
    "mmce",
    "mmce_weighted",
    "mmce_gra",
    "soft_ece",
    *("mdca", "dca", "esd"),
    "recall_precision",
    *("lovasz", "soft_iou", "ohem", "bootstrapped"),
}
PROGRESS = losses.Progress(steps=7, epochs=2, num_epochs=5)


class Member(NamedTuple):
    """An objective with options."""

    name: str
    options: dict[str, Any]

    @property
    def objective(self) -> losses.Objective:
        return _made(self.name, **self.options)

    @property
    def defaults(self) -> dict[str, Any]:
        """All options with their values."""
        signature = inspect.signature(losses.catalogue()[self.name])
        return {name: option.default for name, option in signature.parameters.items()} | (
            self.options
        )

    def __str__(self) -> str:
        return ",".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


@functools.cache
def _made(name: str, **options: Any) -> losses.Objective:
    """Make it once, so that what is remembered of an objective is found again."""
    return losses.objective(name, **options)


def _members() -> list[Member]:
    members = []
    for name in sorted(set(losses.catalogue()) - OF_IMAGES):
        members.append(Member(name, {}))
        for option, default in members[-1].defaults.items():
            for choice in CHOICES.get(option, ()):
                if choice != default:
                    members.append(Member(name, {option: choice}))
    return members


MEMBERS = _members()
DEFAULTS = [member for member in MEMBERS if not member.options]

# One of each way to make a loss, with which the laws run by default: a factor that weights the
# gradient, bins of the validation, counts of the classes, and terms of the whole batch.
QUICK = {"bsce_gra", "adafocal", "recall", "mmce"}
assert {member.name for member in DEFAULTS} >= QUICK


def every(members: list[Member]) -> pytest.MarkDecorator:
    """Run a law for each member: QUICK ones by default, the others when `slow`."""

    def marked(member: Member) -> Any:
        quick = member.name in QUICK and not member.options
        return pytest.param(member, marks=[] if quick else pytest.mark.slow)

    return pytest.mark.parametrize(
        "member", list(map(marked, members)), ids=list(map(str, members))
    )


def batch(num_examples=16, num_classes=5, dtype=np.float32, seed=0):
    """Return logits, labels and weights; one example in four has weight 0, 2 or a fraction."""
    random = np.random.default_rng(seed)
    logits = 2 * random.standard_normal((num_examples, num_classes))
    labels = random.integers(num_classes, size=num_examples)
    labels = np.where(random.random(num_examples) < 0.5, logits.argmax(-1), labels)
    weights = random.choice([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 2.0, 0.5], size=num_examples)
    return jnp.asarray(logits, dtype), jnp.asarray(labels), jnp.asarray(weights, dtype)


def initial_state(objective, num_classes):
    """Return the first state, for equal class counts."""
    return objective.init(num_classes, np.full(num_classes, 7))


@functools.cache
def trained_state(objective, num_classes=5, dtype=np.float32):
    """Return a state that has seen one update, and so is not the initial one."""
    state = objective.init(num_classes, 3 * np.arange(1, num_classes + 1) ** 2)
    logits, labels, weights = batch(num_examples=64, num_classes=num_classes, seed=9, dtype=dtype)
    return updated(objective, state, (logits, labels, weights))


def updated(objective, state, data):
    """Update a state by the evidence of logits, labels and weights."""
    return _updating(objective)(state, data)


@functools.cache
def _updating(objective):
    def run(state, data):
        return objective.update(state, objective.evidence(state, *data), PROGRESS)

    return jax.jit(run)


def total(objective, state, logits, labels, weights, **options):
    """Return the weighted sum of the terms, as a training loop forms it."""
    terms = objective.value(state, logits, labels, weights, **options)
    return jnp.sum(terms if weights is None else weights * terms)


def value_and_gradient(objective, state, logits, labels, weights=None):
    """Return the weighted sum and its gradient by the logits, from a program shared by the laws."""
    (value, _), gradient = _compiled(objective)(state, logits, labels, weights)
    return value, gradient


def compiled_terms_and_gradient(objective, state, logits, labels):
    """Return the terms and the gradient of their sum, from the same program."""
    weights = jnp.ones(labels.shape, logits.dtype)
    (_, terms), gradient = _compiled(objective)(state, logits, labels, weights)
    return terms, gradient


@functools.cache
def _compiled(objective):
    """Compile it once for every shape: eager, each primitive would be a program of its own."""

    def run(state, logits, labels, weights):
        def weighted(z):
            terms = objective.value(state, z, labels, weights)
            return jnp.sum(terms if weights is None else weights * terms), terms

        return jax.value_and_grad(weighted, has_aux=True)(logits)

    return jax.jit(run)
