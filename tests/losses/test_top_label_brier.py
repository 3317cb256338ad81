"""TLBS: cross-entropy weighted by how wrong the confidence in the predicted class is."""

import numpy as np
import pytest

from . import checks
from .reference import probabilities, seen_by_weight


def tlbs(logits, labels, *, gamma=2.0, weighting="gradient", constants_at=None):
    """-|1[prediction = y] - max_k p_k|^gamma log p_y."""
    p = seen_by_weight(logits, labels, weighting, constants_at)
    # 1 - p_y keeps its digits where 1 - max p would not
    distance = np.where(p.predicted == labels, p.rest, p.top)
    return distance**gamma * probabilities(logits, labels).cross_entropy


REFERENCES = {"tlbs": tlbs}


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_value_and_gradient(gamma):
    checks.check_objective("tlbs", tlbs, gamma=gamma)


def test_differentiated_weight():
    checks.check_objective("tlbs", tlbs, weighting="loss")
