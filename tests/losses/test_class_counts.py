"""Losses of class counts: class weights, margins, adjusted logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .references import probabilities

COUNTS = np.array([5000, 500, 50, 3, 7])


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


def ldam(logits, labels, *, max_margin=0.5, scale=30.0, counts=None):
    """Equation 13: the true class against all others, after its margin; equal counts at first."""
    counts = np.full(logits.shape[-1], 7) if counts is None else counts
    constant = max_margin / max(count**-0.25 for count in counts)
    moved = np.array(logits, float)
    moved[np.arange(len(labels)), labels] -= constant / np.asarray(counts)[labels] ** 0.25
    return probabilities(scale * moved, labels).cross_entropy


def logit_adjusted(logits, labels, *, tau=1.0, counts=None):
    """-log of pi_y^tau e^z_y over the sum of pi_k^tau e^z_k; equal counts at the start."""
    if counts is not None:
        logits = logits + tau * np.log(np.asarray(counts, float) / np.sum(counts))
    return probabilities(logits, labels).cross_entropy


REFERENCES = {"class_weighted": class_weighted, "ldam": ldam, "logit_adjusted": logit_adjusted}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("class_weighted", {"balancing": each}) for each in ("effective", "inverse", "median")),
        ("class_weighted", {"volume": 300.0, "normalized": True}),
        *(("ldam", options) for options in ({}, {"max_margin": 0.2, "scale": 5.0})),
        *(("logit_adjusted", {"tau": tau}) for tau in (0.0, 0.5, 1.0)),
    ],
    ids=str,
)
def test_value_and_gradient(name, options, x64):
    reference = REFERENCES[name]
    checks.check_objective(name, reference, checks.batch(), step=1e-6, **options)
    given = {"state": losses.objective(name, **options).init(5, COUNTS)}
    given |= {"fields": {"counts": COUNTS}, "step": 1e-6}
    checks.check_objective(name, reference, checks.batch(), **given, **options)


def test_weights_by_hand():
    """Effective numbers 1 and 1 + 1/2 for N = 2: weights 3 : 2, of mean 1."""
    np.testing.assert_allclose(losses.class_weights([1, 2], volume=2.0), [1.2, 0.8], rtol=1e-6)
    np.testing.assert_allclose(losses.class_weights([4, 400, 7], volume=1.0), 1, rtol=1e-6)
    median = losses.class_weights([2, 0, 8, 4], balancing="median")
    np.testing.assert_allclose(median, [2, 0, 0.5, 1])
    for balancing in ("effective", "inverse", "median"):
        counts = [90, 0, 10, 3]
        actual = losses.class_weights(counts, balancing=balancing)
        np.testing.assert_allclose(actual, weights_of(counts, balancing), rtol=1e-4)
    with pytest.raises(ValueError, match="class_counts must be at least 0"):
        losses.class_weights([1, -2])


@pytest.mark.parametrize("name", REFERENCES)
def test_counts_are_needed_and_checked(name):
    objective = losses.objective(name)
    with pytest.raises(ValueError, match=f"{name} needs the number of training examples of each"):
        objective.init(5)
    with pytest.raises(ValueError, match="each of the 5 classes"):
        objective.init(5, np.ones(4))
    with pytest.raises(ValueError, match="class_counts must be at least 0"):
        objective.init(2, [3, -1])


def test_a_class_without_examples():
    margins = losses.objective("ldam").init(4, [16, 1, 0, 81]).margins
    np.testing.assert_allclose(margins, [0.25, 0.5, 0.5, 0.5 / 3], rtol=1e-6)
    objective = losses.objective("logit_adjusted")
    state = objective.init(3, [3, 0, 1])
    np.testing.assert_allclose(np.exp(state.log_prior), [0.75, 0, 0.25], rtol=1e-6)
    logits, labels = jnp.array([[0.0, 9.0, 0.0]]), jnp.array([0])
    value = objective.value(state, logits, labels, None)
    np.testing.assert_allclose(value, np.log(4 / 3), rtol=1e-6)
    gradient = jax.grad(lambda z: objective.value(state, z, labels, None).sum())(logits)
    np.testing.assert_allclose(gradient, [[-0.25, 0, 0.25]], atol=1e-6)
    assert objective.value(state, logits, jnp.array([1]), None) == np.inf
