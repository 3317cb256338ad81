"""Focal loss and its kin: cross-entropy weighted by a power of the true class' probability."""

import numpy as np
import pytest

from calib_jax import losses

from . import checks
from .reference import probabilities, seen_by_weight


def focal(logits, labels, *, gamma=3.0, weighting="loss", constants_at=None):
    """-(1 - p_y)^gamma log p_y."""
    weight = seen_by_weight(logits, labels, weighting, constants_at).rest ** gamma
    return weight * probabilities(logits, labels).cross_entropy


def inverse_focal(logits, labels, *, gamma=1.0, weighting="loss", constants_at=None):
    """-(1 + p_y)^gamma log p_y."""
    weight = (1 + seen_by_weight(logits, labels, weighting, constants_at).true) ** gamma
    return weight * probabilities(logits, labels).cross_entropy


def fl_gra(logits, labels, *, gamma=3.0, constants_at=None):
    """-(1 - p_y)^gamma log p_y, the weight detached."""
    return focal(logits, labels, gamma=gamma, weighting="gradient", constants_at=constants_at)


REFERENCES = {"focal": focal, "inverse_focal": inverse_focal, "fl_gra": fl_gra}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0, 5.0])
def test_value_and_gradient(name, gamma):
    checks.check_objective(name, REFERENCES[name], gamma=gamma)


@pytest.mark.parametrize("name", ["focal", "inverse_focal"])
@pytest.mark.parametrize("gamma", [0.0, 1.0, 3.0])
def test_detached_weight(name, gamma):
    checks.check_objective(name, REFERENCES[name], gamma=gamma, weighting="gradient")


def test_by_hand():
    # p_y = 1/5 and 4/5
    logits = np.log(np.array([[1.0, 4.0], [1.0, 4.0]], np.float32))
    values = losses.focal(logits, np.array([0, 1]), gamma=2.0)
    np.testing.assert_allclose(values, [0.64 * np.log(5), 0.04 * np.log(1.25)], rtol=1e-6)
