"""Functions that draw random numbers need a key; samples and weights have limits."""

import inspect

import jax
import jaxtyping
import numpy as np
import pytest

from calib_jax import inference, metrics

LOGITS = np.asarray([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], "float32")
LABELS = np.asarray([0, 1, 2, 1])
DRAWING = [
    name
    for name in inference.__all__
    if callable(function := getattr(inference, name))
    and "key" in inspect.signature(function).parameters
]
KEYS = jax.random.split(jax.random.key(0))


def drawn(**options):
    return inference.bootstrap(metrics.accuracy, LOGITS, LABELS, num_resamples=5, **options)


@pytest.mark.parametrize("name", [name for name in DRAWING if name != "calibration_test"])
def test_a_missing_key_is_asked_for_with_an_example(name):
    with pytest.raises(TypeError, match=rf"{name} draws .* key=jax\.random\.key\(0\)"):
        getattr(inference, name)(LOGITS, LOGITS, LABELS)


def test_a_key_is_one_key_of_either_kind(monkeypatch):
    np.testing.assert_array_equal(drawn(key=jax.random.key(3)), drawn(key=jax.random.PRNGKey(3)))
    with pytest.raises(TypeError, match="key must be a random key"):
        drawn(key=0)
    with pytest.raises(ValueError, match=r"key must be one random key, got several, \(2,\)"):
        drawn(key=KEYS)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    with pytest.raises(TypeError, match="num_resamples must be an integer"):
        inference.bootstrap(metrics.ece, LOGITS, LABELS, key=KEYS[0], num_resamples=10.5)


def test_samples_and_weights_have_limits():
    with pytest.raises(ValueError, match="samples must be arrays with at least one entry"):
        inference.interval({"ece": np.zeros((0, 3))})
    with pytest.raises(ValueError, match="the weights count 400,000,000 examples, too many"):
        inference.noise_bound(metrics.ece, LOGITS, LABELS, np.full(4, 1e8), key=KEYS[0])
    nothing = np.zeros((0, 2, 3), "float32"), np.zeros((0, 2), int)
    with pytest.raises(ValueError, match="there are no pixels"):
        inference.ImageStream(metrics.ece).update(*nothing)


def test_clusters_may_be_columns_of_any_kind():
    columns = ["a", "a", "b", "c"], np.asarray(["a", "a", "b", "c"], object), np.arange(4) // 2
    first, second, _ = (
        inference.noise_bound(metrics.ece, LOGITS, LABELS, key=KEYS[0], clusters=clusters)
        for clusters in columns
    )
    assert first == second
