"""Recall loss: cross-entropy weighted by how often the true class is missed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .members import PROGRESS
from .references import probabilities


def recall(logits, labels, *, miss_rate=None, normalized=False):
    """-w_y log p_y, w = `miss_rate` [K] being the state: ones at the start.

    normalized: divided by the mean of w_y, so that the mean over the batch is the weighted mean.
    """
    weight = np.ones(len(labels)) if miss_rate is None else np.asarray(miss_rate)[labels]
    terms = weight * probabilities(logits, labels).cross_entropy
    return terms / np.mean(weight) if normalized else terms


def recall_precision(
    logits, labels, *, floor=0.0, miss_rate=None, false_rate=None, constants_at=None
):
    """Terms whose mean is the weighted mean of the recall loss plus that of a precision term.

    The latter is -log(1 - p_c + floor) for the predicted class c of the examples predicted
    wrongly, weighted by `false_rate` [K] of c. Both rates are ones at the start.
    """
    num_classes = logits.shape[-1]
    fixed = logits if constants_at is None else constants_at
    predicted = np.argmax(fixed, axis=-1)
    rate = np.ones(num_classes) if false_rate is None else np.asarray(false_rate)
    weight = np.where(predicted != labels, rate[predicted], 0.0)
    if weight.any():
        weight = weight / np.mean(weight)
    precision_terms = -np.log(probabilities(logits, predicted).rest + floor)
    return recall(logits, labels, miss_rate=miss_rate, normalized=True) + weight * precision_terms


REFERENCES = {"recall": recall, "recall_precision": recall_precision}


def error_rate(errors, count, previous, *, counters="recall", alpha=1.0):
    """Return the next rate of each class, alpha being the share of this batch in it.

    The released counters are at least 1, so that a class without an error keeps 1 / count and an
    absent class gets 1; otherwise an absent class keeps its previous rate.
    """
    result = []
    for error, occurrences, before in zip(errors, count, previous, strict=True):
        if counters == "released":
            rate = max(error, 1) / max(occurrences, 1)
        elif occurrences == 0:
            rate = before
        else:
            rate = error / occurrences
        result.append(alpha * rate + (1 - alpha) * before)
    return np.array(result)


def next_rates(logits, labels, present, miss_rate, false_rate, **options):
    """Return the next miss rates, counted by label, and false rates, counted by prediction."""
    num_classes = logits.shape[-1]
    rates = []
    predicted = np.argmax(logits, axis=-1)
    for classes, before in ((labels, miss_rate), (predicted, false_rate)):
        errors, count = np.zeros(num_classes), np.zeros(num_classes)
        for one, label, prediction, here in zip(classes, labels, predicted, present, strict=True):
            if here:
                count[one] += 1
                errors[one] += label != prediction
        rates.append(error_rate(errors, count, before, **options))
    return rates


MISS_RATE, FALSE_RATE = np.array([0.5, 0.0, 1.0, 0.3, 0.25]), np.array([1.0, 0.2, 0.7, 0.1, 0.0])


@pytest.mark.parametrize("normalized", [False, True])
def test_value_and_gradient_in_a_state(normalized):
    with jax.enable_x64(True):
        state = losses.RecallState(miss_rate=jnp.asarray(MISS_RATE))
    of_state = {"state": state, "fields": {"miss_rate": MISS_RATE}}
    checks.check_objective("recall", recall, checks.batch(), **of_state, normalized=normalized)
    logits, labels = checks.batch()
    terms = losses.recall(logits.astype(np.float32), labels, state)
    np.testing.assert_allclose(terms, recall(logits, labels, miss_rate=MISS_RATE), rtol=1e-5)


def test_precision_value_and_gradient_in_a_state():
    with jax.enable_x64(True):
        state = losses.RecallPrecisionState(jnp.asarray(MISS_RATE), jnp.asarray(FALSE_RATE))
    of_state = {"state": state, "fields": {"miss_rate": MISS_RATE, "false_rate": FALSE_RATE}}
    checks.check_objective("recall_precision", recall_precision, checks.batch(20), **of_state)


@pytest.mark.parametrize("counters", ["recall", "released"])
@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_update(counters, alpha):
    options = {"counters": counters, "alpha": alpha}
    objectives = [losses.objective(name, **options) for name in ("recall", "recall_precision")]
    with jax.enable_x64(True):
        states = [objective.init(5) for objective in objectives]
        miss_rate, false_rate = np.ones(5), np.ones(5)
        for seed in range(4):
            logits, labels = checks.batch(30, seed=seed)
            labels = np.where(labels == seed, (seed + 1) % 5, labels)  # one class is absent
            labels[:3] = 255
            present = labels != 255
            evidence = [
                objective.evidence(state, logits, labels, present.astype(np.float32))
                for objective, state in zip(objectives, states, strict=True)
            ]
            states = [
                objective.update(state, stat, PROGRESS)
                for objective, state, stat in zip(objectives, states, evidence, strict=True)
            ]
            miss_rate, false_rate = next_rates(
                logits, labels, present, miss_rate, false_rate, **options
            )
            np.testing.assert_allclose(states[0].miss_rate, miss_rate, rtol=1e-6)
            np.testing.assert_allclose(states[1].miss_rate, miss_rate, rtol=1e-6)
            np.testing.assert_allclose(states[1].false_rate, false_rate, rtol=1e-6)


@pytest.mark.parametrize("name", ["recall", "recall_precision"])
def test_rates_are_as_precise_as_the_logits(name, x64):
    """Check them in float64 with weights and without, against fractions."""
    logits, labels = checks.batch(num_examples=50, num_classes=3)
    objective = losses.objective(name)
    for weights in (None, np.ones(50)):
        evidence = objective.evidence(objective.init(3), jnp.asarray(logits), labels, weights)
        assert all(column.dtype == jnp.float64 for column in evidence.values.values())
        state = objective.update(objective.init(3), evidence, PROGRESS)
        missed = [np.mean(logits.argmax(-1)[labels == k] != k) for k in range(3)]
        np.testing.assert_allclose(state.miss_rate, missed, rtol=1e-15)
