"""ESD: a mean over pairs of different examples, by three loops."""

import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities


def pairs(confidence, hit, order):
    """Average over i the mean of e_j e_k over pairs j != k, both not i and not above i in order."""
    count = len(confidence)
    error = hit - confidence
    sums = 0.0
    for i in range(count):
        below = [j for j in range(count) if j != i and order[j] <= order[i]]
        sums += sum(error[j] * error[k] for j in below for k in below if j != k)
    return sums / (count * (count - 1) * (count - 2))


def esd(logits, labels, *, scale=1.0, constants_at=None):
    """-log p_y plus scale times the mean over pairs, whose order is constant."""
    p = probabilities(logits, labels)
    held = p if constants_at is None else probabilities(constants_at, labels)
    return p.cross_entropy + scale * pairs(p.top, p.predicted == labels, held.top)


REFERENCES = {"esd": esd}


def test_value_and_gradient():
    checks.check_objective("esd", esd, scale=4.0)


def test_equal_confidences_see_each_other():
    logits = np.tile(np.array([[1.0, 0.0], [0.0, 2.0]], np.float32), (4, 1))
    labels = np.array([0, 1, 1, 1, 0, 0, 1, 1])
    p = probabilities(logits, labels)
    expected = pairs(p.top, p.predicted == labels, p.top)
    np.testing.assert_allclose(losses.esd_penalty(logits, labels), expected, rtol=1e-5)


def test_confidences_that_round_to_1_keep_their_order():
    random = np.random.default_rng(0)
    logits = 40 * random.standard_normal((64, 3)).astype(np.float32)
    labels = random.integers(3, size=64)
    p = probabilities(logits.astype(float), labels)
    order = np.max(logits, -1) - np.sort(logits, -1)[:, -2]
    assert len(np.unique(p.top.astype(np.float32))) < 60 < len(np.unique(order))
    expected = pairs(p.top, p.predicted == labels, order)
    np.testing.assert_allclose(losses.esd_penalty(logits, labels), expected, rtol=1e-4)


def test_weights_below_1_are_scaled_to_a_mean_of_1():
    logits, labels = checks.batch(8)
    weights = np.linspace(0.5, 2, 8)
    values = [losses.esd_penalty(np.float32(logits), labels, weights * u) for u in (1, 1e-3)]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-4)


@pytest.mark.slow
def test_the_estimate_is_unbiased_and_the_plug_in_is_not():
    """Outcomes drawn with the stated confidence: the expectation of the penalty is 0."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((6, 2)).astype(np.float32)
    p = probabilities(logits, np.zeros(6, int))
    values, plugged = [], []
    for outcome in np.ndindex(*(2,) * 6):
        hit = np.array(outcome)
        chance = np.prod(np.where(hit == 1, p.top, 1 - p.top))
        labels = np.where(hit == 1, p.predicted, 1 - p.predicted)
        values.append(chance * np.mean(losses.esd_penalty(logits, labels)))
        error = hit - p.top
        square = [np.mean(error * (p.top <= top)) ** 2 for top in p.top]
        plugged.append(chance * np.mean(square))
    assert abs(np.sum(values)) < 1e-7
    assert np.sum(plugged) > 0.005


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_examples_have_no_penalty(count):
    logits, labels = checks.batch(8)
    weights = (np.arange(8) < count).astype(np.float32)
    assert losses.esd_penalty(logits.astype(np.float32), labels, weights) == 0
    terms = losses.objective("esd").value((), logits[:count].astype(np.float32), labels[:count])
    expected = losses.cross_entropy(logits[:count].astype(np.float32), labels[:count])
    np.testing.assert_array_equal(terms, expected)
