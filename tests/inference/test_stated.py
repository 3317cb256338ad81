"""Tests, intervals and comparisons of stated confidences."""

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics
from tests.metrics.test_stated import among_classes, answers

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def models():
    """Two models that answer the same questions, as pairs and as logits of 50 classes."""
    pairs = answers(0), answers(1)
    stated = [inference.Evaluation(metrics.Stated(*pair)) for pair in pairs]
    return stated, [inference.Evaluation(*among_classes(*pair)) for pair in pairs]


@pytest.mark.parametrize("name", ["ece", "kuiper", "spiegelhalter", "squared_error", "cox"])
def test_tests_are_those_of_an_answer_among_many_classes(models, name):
    (stated, _), (logits, _) = models
    key = {} if name in ("kuiper", "spiegelhalter", "cox") else {"key": KEY}
    actual = inference.calibration_test(name, stated, **key)
    wanted = inference.calibration_test(name, logits, **key)
    np.testing.assert_allclose(actual, wanted, rtol=0.02, atol=2e-3)


def test_intervals_and_thresholds(models):
    (stated, _), (logits, _) = models
    several = {"ece": metrics.ece, "aurc": metrics.aurc}
    actual = inference.estimates(several, stated, key=KEY)
    wanted = inference.estimates(several, logits, key=KEY)
    for name in several:
        np.testing.assert_allclose(actual[name].low, wanted[name].low, rtol=0.03, atol=2e-3)
        np.testing.assert_allclose(actual[name].high, wanted[name].high, rtol=0.03, atol=2e-3)
    assert inference.guaranteed_coverage(stated, risk=0.7).coverage > 0.2
    groups = np.arange(400) % 3
    for one, other in zip(
        inference.group_errors(stated, groups=groups, key=KEY),
        inference.group_errors(logits, groups=groups, key=KEY),
        strict=True,
    ):
        assert (one.name, one.size) == (other.name, other.size)
