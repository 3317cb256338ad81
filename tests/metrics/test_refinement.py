"""Refinement and calibration parts of scores, against temperatures fitted without each example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import inference, metrics
from tests.inference import simulated, softmax

from . import value_of

PARTS = ("refinement_nll", "calibration_nll", "refinement_brier", "calibration_brier")


@jax.jit
def parts_of(logits, labels):
    return {name: value_of(getattr(metrics, name), logits, labels) for name in PARTS}


def losses(logits, labels, b):
    p = softmax(b * logits)
    return -np.log(p[np.arange(len(labels)), labels])


def briers(logits, labels, b):
    return ((softmax(b * logits) - np.eye(logits.shape[1])[labels]) ** 2).sum(-1)


def derivatives(logits, labels, b):
    """Return the derivatives of each NLL by b."""
    p = softmax(b * logits)
    mean = (p * logits).sum(-1)
    return mean - logits[np.arange(len(labels)), labels], (p * logits**2).sum(-1) - mean**2


def optimum(logits, labels):
    """Find 1 / T by bisection of the summed derivative."""
    low, high = 1 / 64, 64.0
    for _ in range(60):
        middle = np.sqrt(low * high)
        low, high = (
            (middle, high) if derivatives(logits, labels, middle)[0].sum() < 0 else (low, middle)
        )
    return low


def sample(sharpness, num_rows=60, seed=0):
    logits, labels, _ = simulated(np.random.default_rng(seed), num_rows, 3, sharpness)
    return logits, labels


@pytest.mark.parametrize(
    ("sharpness", "tolerance"), [(0.15, 2e-4), (0.3, 1e-4), (1.0, 1e-4), (4.0, 1e-4), (26.0, 2e-4)]
)
def test_parts_are_those_of_temperatures_of_the_other_examples(sharpness, tolerance):
    """To first order by a formula, and to second order by 60 fits.

    The first and the last temperature lie between the last two temperatures of the table.
    """
    given, labels = sample(sharpness)
    logits, keep = given.astype(float), ~np.eye(60, dtype=bool)
    others = np.array([optimum(logits[k], labels[k]) for k in keep])[:, None]
    b = optimum(logits, labels)
    slope, curvature = derivatives(logits, labels, b)
    step = slope / curvature.sum()
    values = parts_of(given, labels)
    for name, rows in (("nll", losses), ("brier", briers)):
        refinement = values[f"refinement_{name}"]
        change = (rows(logits, labels, b + 1e-5) - rows(logits, labels, b - 1e-5)) / 2e-5
        formula = rows(logits, labels, b).mean() + (change * step).mean()
        assert refinement == pytest.approx(formula, abs=tolerance)
        assert refinement == pytest.approx(rows(logits, labels, others).mean(), abs=4 / 60**2)
        calibration = rows(logits, labels, 1).mean() - float(refinement)
        assert values[f"calibration_{name}"] == pytest.approx(calibration, abs=1e-5)


def test_no_difference_of_refinement_is_significant_after_a_temperature():
    """The interpolation errs by a few millionths, and alike in every resample."""
    random = np.random.default_rng(2)
    logits = (3 * random.normal(size=(1000, 100))).astype(np.float32)
    labels = jax.random.categorical(jax.random.key(2), logits / 1.7)
    parts = {name: metrics.named(name) for name in ("refinement_nll", "refinement_brier")}
    options = {"key": jax.random.key(1), "num_resamples": 100}
    changes = inference.compare_metrics(parts, logits, 2.9 * logits, labels, **options)
    for change in changes.values():
        assert (change.value, change.low, change.high, change.p_value) == (0, 0, 0, 1)


def test_without_an_optimum_the_last_temperature_counts():
    """Check examples that are all right, and logits that are worse than chance."""
    logits = jnp.tile(jnp.array([[2.0, 0.0]]), (60, 1))
    right = value_of(metrics.refinement_nll, logits, jnp.zeros(60, int))
    assert right == pytest.approx(np.log1p(np.exp(-16)), abs=1e-6)
    wrong = value_of(metrics.refinement_nll, logits, jnp.ones(60, int))
    assert wrong == pytest.approx(np.log1p(np.exp(2 / 32)), abs=1e-6)
