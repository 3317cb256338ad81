"""Predictions of a loss from one network of cross-entropy."""

import numpy as np
import pytest

from calib_jax import inference


def network(rows=4000, factor=2.0, classes=10, seed=0):
    random = np.random.default_rng(seed)
    z = 2 * random.normal(size=(rows, classes))
    return factor * z, (z + random.gumbel(size=z.shape)).argmax(axis=1)


def test_cross_entropy_predicts_itself():
    z, labels = network()
    found = inference.predict_loss(z, labels, "cross_entropy")
    confidence = np.exp(z - np.logaddexp.reduce(z, axis=1, keepdims=True)).max(axis=1)
    np.testing.assert_allclose(found.temperature.value, found.cross_entropy.value, rtol=1e-6)
    right = z.argmax(axis=1) == labels
    np.testing.assert_allclose(found.gap.value, confidence.mean() - right.mean(), atol=1e-6)
    np.testing.assert_allclose(found.ce2.value, inference.ce2(z, labels).value, atol=1e-6)
    assert found.root_ce2[1] <= found.root_ce2[0] <= found.root_ce2[2]


def test_two_classes_shrink_more_than_many():
    ratios = []
    for classes in (2, 10, 50):
        found = inference.predict_loss(*network(classes=classes), "focal", gamma=3.0)
        ratios.append(found.temperature.value / found.cross_entropy.value)
    assert ratios[0] < 0.35 < 0.45 < ratios[1] < ratios[2]


def test_the_interval_of_the_temperature_is_that_of_repeated_samples():
    found = [inference.predict_loss(*network(800, seed=s), "focal", gamma=2.0) for s in range(40)]
    for name in ("cross_entropy", "temperature", "gap"):
        values = [getattr(one, name) for one in found]
        spread = np.std([value.value for value in values])
        stated = np.mean([value.deviation for value in values])
        assert 0.65 < stated / spread < 1.5


def test_fewer_than_200_rows_are_said_to_be_few():
    z, labels = network(200)
    inference.predict_loss(z, labels, "cross_entropy")  # a warning would be an error
    with pytest.warns(UserWarning, match="199 rows are few .* give 200 or more"):
        inference.predict_loss(z[1:], labels[1:], "cross_entropy")
