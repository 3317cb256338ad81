"""Accuracy by the number of training examples of a class, against loops over classes."""

import jax
import numpy as np

from calib_jax import inference, metrics

COUNTS = (5000, 101, 100, 20, 19, 0)


def sample(num_rows=60):
    random = np.random.default_rng(0)
    logits = random.standard_normal((num_rows, 6)).astype(np.float32)
    others = random.integers(0, 6, num_rows)
    labels = np.where(random.random(num_rows) < 0.5, logits.argmax(-1), others)
    return logits, np.where(labels == 1, 0, labels)  # class 1 has no test example


def expected(logits, labels, groups):
    """The mean over the classes of a group that have examples, of the share that is right."""
    right = logits.argmax(-1) == labels
    return [
        np.mean([right[labels == k].mean() for k in group if np.any(labels == k)])
        for group in groups
    ]


def test_groups_by_hand():
    shots = metrics.shots_of_classes(COUNTS).tolist()
    assert shots == ["many", "many", "medium", "medium", "few", "few"]
    other = metrics.shots_of_classes(COUNTS, many=1000, few=100).tolist()
    assert other == ["many", "medium", "medium", "few", "few", "few"]


def test_values_streamed_and_with_intervals():
    logits, labels = sample()
    metric = metrics.shot_accuracy(COUNTS)
    wanted = expected(logits, labels, ((0, 1), (2, 3), (4, 5)))
    np.testing.assert_allclose(metric(logits, labels), wanted, rtol=1e-6)
    stream = metrics.Stream({"shots": metric})
    for rows in (slice(0, 25), slice(25, 60)):
        stream.update(logits[rows], labels[rows])
    np.testing.assert_allclose(stream.compute()["shots"], wanted, rtol=1e-6)
    estimate = inference.estimates(metric, logits, labels, key=jax.random.key(0), num_resamples=50)
    assert all(low < value < high for value, low, high in zip(*estimate[:3], strict=True))


def test_a_group_without_examples_and_wrong_input_are_nan():
    logits, labels = sample()
    metric = metrics.shot_accuracy((500, 50, 50, 50, 50, 50), many=1000, few=1)
    assert np.isnan(metric(logits, labels).many)
    assert not np.isnan(metric(logits, labels).medium)
    wrong = np.where(np.arange(60) == 3, 9, labels)
    assert np.isnan(metric.value(metric.stat(logits, wrong))).all()
