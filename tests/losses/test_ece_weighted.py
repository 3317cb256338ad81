"""Cross-entropy weighted by the validation set's calibration errors (three kinds of them)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities, seen_by_weight


def example_weight(true, labels, *, fixed_gap, mass_gap, class_error, blend, classwise_scale=2.0):
    """Return the weight [N] of each p_y.

    blend + (1 - blend) (|gap of p_y's bin| + |gap of p_y's rank| + scale |error of class y|) / 3,
    where bins are [lower, upper) of equal width, so that p_y = 1 is in none; and the batch, sorted
    by p_y, is cut in bins of N // bins examples, the remainder going with the last one.
    """
    num_bins, size = len(fixed_gap), len(true) // len(mass_gap)
    ranks = np.argsort(np.argsort(true, kind="stable"), kind="stable")
    weights = []
    for p, rank, label in zip(true, ranks, labels, strict=True):
        width_gap = 0.0
        for b in range(num_bins):
            if b / num_bins <= p < (b + 1) / num_bins:
                width_gap = fixed_gap[b]
        mass_bin = min(rank // size, num_bins - 1) if size else num_bins - 1
        error = abs(width_gap) + abs(mass_gap[mass_bin])
        weights.append((error + classwise_scale * abs(class_error[label])) / 3)
    return blend + (1 - blend) * np.array(weights)


def ece_weighted(
    logits,
    labels,
    *,
    num_bins=15,
    classwise_scale=2.0,
    fixed_gap=None,
    mass_gap=None,
    class_error=None,
    blend=1.0,
    constants_at=None,
):
    """-weight log p_y, the weight detached.

    The state is `fixed_gap` [bins], `mass_gap` [bins], `class_error` [K] from the
    validation set and `blend` = 1 - epoch / epochs; without them it is the initial one, in which
    the weight is 1.
    """
    p = seen_by_weight(logits, labels, "gradient", constants_at)
    weight = example_weight(
        p.true,
        labels,
        fixed_gap=np.zeros(num_bins) if fixed_gap is None else fixed_gap,
        mass_gap=np.zeros(num_bins) if mass_gap is None else mass_gap,
        class_error=np.zeros(p.all.shape[-1]) if class_error is None else class_error,
        blend=blend,
        classwise_scale=classwise_scale,
    )
    return weight * probabilities(logits, labels).cross_entropy


REFERENCES = {"ece_weighted": ece_weighted}


def random_state(num_bins, num_classes, blend):
    """Return the fields of a state as after a validation pass."""
    random = np.random.default_rng(5)
    return {
        "fixed_gap": random.uniform(-1, 1, num_bins),
        "mass_gap": random.uniform(-1, 1, num_bins),
        "class_error": random.uniform(0, 1, num_classes),
        "blend": blend,
    }


def test_initial_value_and_gradient():
    checks.check_objective("ece_weighted", ece_weighted)


# fewer examples than bins, a remainder, a multiple of the bins
@pytest.mark.parametrize("num_examples", [3, 17, 20])
@pytest.mark.parametrize("blend", [0.25, 0.0])
def test_value_and_gradient_in_a_state(num_examples, blend):
    fields = random_state(5, 4, blend)
    with jax.enable_x64(True):
        state = losses.EceWeightedState(**{k: jnp.asarray(v) for k, v in fields.items()})
    options = {"num_bins": 5, "classwise_scale": 1.5}
    batch = checks.batch(num_examples, 4)
    checks.check_objective(
        "ece_weighted", ece_weighted, batch, state=state, fields=fields, **options
    )


def test_equal_probabilities_take_the_same_gap():
    """The rank of a row among equal ones is not that of its position."""
    gaps = jnp.linspace(0.1, 1.0, 10)
    state = losses.EceWeightedState(gaps, gaps, jnp.zeros(2), blend=jnp.zeros(()))
    logits = np.tile(np.float32([[1, 0], [0, 1]]), (10, 1))
    labels = np.zeros(20, np.int32)
    terms = losses.ece_weighted(logits, labels, state)
    assert len(np.unique(terms)) == 2


def test_tied_examples_have_one_gap():
    logits = np.tile(np.float32([2.0, 0.0]), (100, 1))
    labels = np.repeat([0, 1], [60, 40])
    objective = losses.objective("ece_weighted", num_bins=4)
    state = objective.init(2)
    after = objective.update(
        state, objective.evidence(state, logits, labels), losses.Progress(1, 1, 2)
    )
    np.testing.assert_allclose(after.mass_gap, [1 / (1 + np.exp(-2.0)) - 0.6] * 4, rtol=1e-4)
