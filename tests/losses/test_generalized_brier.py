"""Brier-weighted cross-entropy (BSCE): the weight is a norm of the one-hot label minus p."""

import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities, seen_by_weight
from .test_sample_dependent_focal import gamma_of


def uncertainty(p, gamma, beta, reading="norm"):
    """||q - p||_beta^gamma, or the papers' page read literally: sum_k |q_k - p_k|^gamma."""
    if reading == "sum":
        return np.sum(p.distance**gamma, axis=-1)
    # the largest distance is taken out first: at p_y = 1 the powers would underflow
    largest = p.distance.max(axis=-1)
    scaled = p.distance / np.where(largest > 0, largest, 1)[:, None]
    return (largest * np.sum(scaled**beta, axis=-1) ** (1 / beta)) ** gamma


def generalized_brier(
    logits, labels, *, gamma=2.0, beta=2.0, reading="norm", weighting="gradient", constants_at=None
):
    """-u log p_y."""
    p = seen_by_weight(logits, labels, weighting, constants_at)
    return uncertainty(p, gamma, beta, reading) * probabilities(logits, labels).cross_entropy


def bsce(logits, labels, *, gamma=2.0, beta=2.0, reading="norm"):
    """-||q - p||_beta^gamma log p_y."""
    return generalized_brier(
        logits, labels, gamma=gamma, beta=beta, reading=reading, weighting="loss"
    )


def bsce_gra(logits, labels, *, gamma=2.0, beta=2.0, reading="norm", constants_at=None):
    """-||q - p||_beta^gamma log p_y, the weight detached."""
    return generalized_brier(
        logits, labels, gamma=gamma, beta=beta, reading=reading, constants_at=constants_at
    )


def bsce_adaptive_gra(
    logits, labels, *, thresholds=(0.2, 0.5), gammas=(5.0, 3.0, 3.0), beta=2.0, constants_at=None
):
    """-||q - p||_beta^gamma(p_y) log p_y with FLSD's gamma, the weight detached."""
    p = seen_by_weight(logits, labels, "gradient", constants_at)
    weight = uncertainty(p, gamma_of(p.true, thresholds, gammas), beta)
    return weight * probabilities(logits, labels).cross_entropy


REFERENCES = {"bsce": bsce, "bsce_gra": bsce_gra, "bsce_adaptive_gra": bsce_adaptive_gra}


@pytest.mark.parametrize("name", ["bsce", "bsce_gra"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("beta", [1.0, 2.0, 3.0])
def test_value_and_gradient(name, gamma, beta):
    checks.check_objective(name, REFERENCES[name], gamma=gamma, beta=beta)


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_adaptive(beta):
    checks.check_objective(
        "bsce_adaptive_gra", bsce_adaptive_gra, beta=beta, gammas=(5.0, 3.0, 2.0)
    )


@pytest.mark.parametrize("weighting", ["loss", "gradient"])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 1.5, 2.0, 4.0])
def test_reading_sum(weighting, gamma):
    name = {"loss": "bsce", "gradient": "bsce_gra"}[weighting]
    checks.check_objective(name, REFERENCES[name], gamma=gamma, reading="sum")


def test_norm_1_is_focal_times_a_power_of_two():
    # ||q - p||_1 = 2 (1 - p_y): the released code's default norm makes it the focal loss
    logits, labels = checks.batch()
    np.testing.assert_allclose(
        losses.generalized_brier(logits, labels, gamma=3.0, beta=1.0),
        8 * losses.focal(logits, labels, gamma=3.0),
        rtol=1e-4,
    )
