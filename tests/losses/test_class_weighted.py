"""Cross-entropy with class weights from counts."""

import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities

COUNTS = np.array([5000, 500, 50, 3, 0])


def weights_of(counts, balancing="effective", volume=10_000.0):
    """Return the weights of Cui et al. with beta = (N - 1) / N, class by class, in float64."""
    counts = [float(count) for count in counts]
    if balancing == "median":
        middle = np.median([count for count in counts if count])
        return np.array([middle / count if count else 0.0 for count in counts])
    beta = (volume - 1) / volume
    raw = {"inverse": lambda n: 1 / n, "effective": lambda n: (1 - beta) / (1 - beta**n)}[balancing]
    weights = np.array([raw(count) if count else 0.0 for count in counts])
    return weights / weights[weights > 0].mean()


def class_weighted(
    logits, labels, *, balancing="effective", volume=10_000.0, normalized=False, counts=None
):
    """-w_y log p_y; equal counts at the start."""
    counts = [7] * logits.shape[-1] if counts is None else counts
    factors = weights_of(counts, balancing, volume)[labels]
    if normalized:
        factors = factors / np.mean(factors)
    return factors * probabilities(logits, labels).cross_entropy


REFERENCES = {"class_weighted": class_weighted}


@pytest.mark.parametrize("balancing", ["effective", "inverse", "median"])
def test_value_and_gradient(balancing, x64):
    checks.check_objective("class_weighted", class_weighted, balancing=balancing)
    options = {"balancing": balancing, "volume": 300.0, "normalized": balancing == "inverse"}
    state = losses.objective("class_weighted", **options).init(5, COUNTS)
    of_state = {"state": state, "fields": {"counts": COUNTS}}
    checks.check_objective("class_weighted", class_weighted, checks.batch(), **of_state, **options)


def test_by_hand():
    """Effective numbers 1 and 1 + 1/2 for N = 2: weights 3 : 2, of mean 1."""
    with pytest.raises(ValueError, match="class_counts must be at least 0"):
        losses.class_weights([1, -2])
    weights = losses.class_weights([1, 2], volume=2.0)
    np.testing.assert_allclose(weights, [1.2, 0.8], rtol=1e-6)
    np.testing.assert_allclose(losses.class_weights([4, 400, 7], volume=1.0), 1, rtol=1e-6)
    many = losses.class_weights(COUNTS, volume=1e9)
    np.testing.assert_allclose(many, losses.class_weights(COUNTS, balancing="inverse"), rtol=1e-4)
    np.testing.assert_allclose(
        losses.class_weights([2, 0, 8, 4], balancing="median"), [2, 0, 0.5, 1]
    )


def test_the_released_balanced_cross_entropy():
    """Tian et al.'s code: beta = (S - 1) / S with the total S, weights that sum to the classes."""
    counts = np.array([900, 90, 10])
    beta = (1000 - 1) / 1000
    expected = (1 - beta) / (1 - beta**counts)
    expected *= 3 / expected.sum()
    np.testing.assert_allclose(losses.class_weights(counts, volume=1000.0), expected, rtol=1e-5)


NEED_COUNTS = ("class_weighted", "ldam", "logit_adjusted")


@pytest.mark.parametrize("name", NEED_COUNTS)
def test_counts_are_needed_and_checked(name):
    objective = losses.objective(name)
    with pytest.raises(ValueError, match=f"{name} needs the number of training examples of each"):
        objective.init(5)
    with pytest.raises(ValueError, match=r"each of the 5 classes, got the shape \(4,\)"):
        objective.init(5, COUNTS[:4])
    with pytest.raises(ValueError, match="the state has 5 classes and the logits 4"):
        objective.value(objective.init(5, COUNTS), jnp.zeros((1, 4)), jnp.array([0]), None)
