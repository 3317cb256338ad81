"""Label-distribution-aware margins."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks

COUNTS = np.array([5000, 500, 50, 3, 7])


def ldam(logits, labels, *, max_margin=0.5, scale=30.0, counts=None):
    """Equation 13: the true class against all others, after its margin; equal counts at first."""
    counts = np.full(logits.shape[-1], 7) if counts is None else counts
    constant = max_margin / max(count**-0.25 for count in counts)
    terms = []
    for row, label in zip(logits, labels, strict=True):
        margin = constant / counts[label] ** 0.25
        true = scale * (row[label] - margin)
        others = [scale * row[k] for k in range(len(row)) if k != label]
        largest = max(true, *others)
        total = np.exp(true - largest) + sum(np.exp(other - largest) for other in others)
        terms.append(np.log(total) - (true - largest))
    return np.array(terms)


REFERENCES = {"ldam": ldam}


@pytest.mark.parametrize("options", [{}, {"max_margin": 0.2, "scale": 5.0}])
def test_value_and_gradient(options, x64):
    checks.check_objective("ldam", ldam, step=1e-6, **options)
    logits, labels = checks.batch()
    state = losses.objective("ldam", **options).init(5, COUNTS)
    actual = checks.objective_values_and_gradient("ldam", logits, labels, state=state, **options)
    checks.assert_equal_the_reference(
        actual, ldam, logits, labels, step=1e-6, rtol=1e-6, counts=COUNTS, **options
    )


def test_the_rarest_class_has_the_largest_margin():
    state = losses.objective("ldam").init(4, [16, 1, 0, 81])
    np.testing.assert_allclose(state.margins, [0.25, 0.5, 0.5, 0.5 / 3], rtol=1e-6)


def test_without_margin_and_scale_it_is_cross_entropy():
    logits, labels = checks.batch()
    objective = losses.objective("ldam", max_margin=0.0, scale=1.0)
    value = objective.value(objective.init(5, COUNTS), logits, labels, None)
    np.testing.assert_allclose(value, losses.cross_entropy(logits, labels), rtol=1e-5, atol=1e-6)


def test_one_example_by_hand():
    """Cosines .5 and .5, margin .5 = 1 / 2 of the rarer class: log(1 + e^(30 / 2))."""
    objective = losses.objective("ldam")
    state = objective.init(2, [16, 1])
    logits = jnp.array([[0.5, 0.5], [0.5, 0.5]])
    value = objective.value(state, logits, jnp.array([1, 0]), None)
    np.testing.assert_allclose(value, np.log1p(np.exp([15.0, 7.5])), rtol=1e-6)
