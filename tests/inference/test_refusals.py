"""Inputs and options that the functions of inference refuse, each with its value and a way out."""

import dataclasses
import inspect

import jax
import jaxtyping
import numpy as np
import pytest

from calib_jax import inference, metrics

KEY = jax.random.key(0)
LOGITS = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
LABELS = np.arange(20) % 3


def evaluation(**changed):
    given = {"labels": LABELS, "weights": np.ones(20), "clusters": np.arange(20) // 2} | changed
    return inference.Evaluation(LOGITS, **given)


def estimates(logits=LOGITS, labels=LABELS, weights=None, metric=metrics.nll, **options):
    return inference.estimates(metric, logits, labels, weights, **({"key": KEY} | options))


def bound(metric=metrics.ece, weights=None, **options):
    return inference.noise_bound(metric, LOGITS, LABELS, weights, **({"key": KEY} | options))


def with_true(value):
    """Return the logits with another value for the true class of one row."""
    logits = LOGITS.copy()
    logits[4, 1] = value
    return logits


CASES = {
    # Arrays.
    "NaN": (lambda: estimates(with_true(np.nan)), "1 of 20 rows have NaN or infinite logits"),
    "labels": (lambda: estimates(labels=LABELS + 1), "labels are not among the 3 classes, 3 is"),
    "probabilities": (lambda: estimates(np.full((20, 3), 1 / 3, np.float32)), "probabilities"),
    "soft labels": (lambda: estimates(labels=np.full((20, 3), 1 / 3)), "need labels of shape"),
    "no counts": (lambda: bound(weights=np.full(20, 1.5)), "20 of 20 weights are not integers"),
    "clusters": (
        lambda: estimates(clusters=np.arange(19)),
        r"clusters must have shape \(20,\), one for each example, got \(19,\)",
    ),
    "groups": (
        lambda: inference.group_errors(LOGITS, LABELS, np.arange(3), key=KEY),
        r"groups must have shape \(20,\)",
    ),
    "jit": (lambda: jax.jit(lambda z: estimates(z).value)(LOGITS), "call it outside jit"),
    # Evaluations.
    "twice": (
        lambda: inference.debiased_squared_error(evaluation(), LABELS),
        "holds its labels, weights and clusters: leave out labels",
    ),
    "other examples": (
        lambda: inference.compare_calibration(evaluation(), evaluation(labels=LABELS[::-1])),
        "the evaluations hold different labels",
    ),
    "assigned": (lambda: setattr(evaluation(), "labels", LABELS), "labels"),
    # Options.
    "level": (lambda: estimates(level=90), "level must be a fraction between 0 and 1, got 90"),
    "method": (
        lambda: inference.interval(np.zeros(3), method="bca"),
        "method must be one of 'percentile', 'basic', got 'bca'",
    ),
    "resamples": (lambda: estimates(num_resamples=0), "num_resamples must be at least 1, got 0"),
    "no resamples": (
        lambda: estimates(num_resamples=None),
        "num_resamples must be a number, got None",
    ),
    "draws": (lambda: bound(num_resamples=10), r"num_resamples must be at least 20 at level 0\.9"),
    "metric": (lambda: bound(metrics.nll), "noise_bound does not take nll"),
    "bins": (
        lambda: inference.compare_calibration(
            *[np.zeros((100, 3))] * 2, np.arange(100) % 3, num_bins=21
        ),
        "21 bins for 100 examples: .* give at most 20 bins",
    ),
    "impossible": (
        lambda: inference.ranks({"a": LOGITS, "b": with_true(-np.inf)}, LABELS),
        "'b' gives the true class of 1 examples the probability 0",
    ),
    "a test": (lambda: inference.calibration_test("kuyper", LOGITS, LABELS), "kuiper"),
    "an option": (
        lambda: inference.calibration_test("cox", LOGITS, LABELS, num_bins=3),
        "num_bins",
    ),
    "a key": (
        lambda: inference.calibration_test("squared_error", LOGITS, LABELS),
        r"calibration_test\('squared_error'\) draws .*: give key",
    ),
    "draws of a test": (
        lambda: inference.calibration_test(
            "squared_error", LOGITS, LABELS, key=KEY, num_resamples=0
        ),
        "num_resamples must be at least 1, got 0",
    ),
    "bins of seeds": (lambda: inference.ce2(LOGITS, LABELS, num_bins=0), "num_bins must be at le"),
    "level of a mean": (lambda: inference.Value(0.1, 0.1).interval(90), "level must be a fraction"),
    "size": (
        lambda: inference.ranks({"a": LOGITS, "b": 2 * LOGITS}, LABELS, size=5),
        r"size must lie in \[0, 1\], got 5",
    ),
    "labels of seeds": (lambda: inference.ce2(LOGITS, LABELS - 1), "labels .* of these classes"),
    "probabilities of seeds": (
        lambda: inference.ce2(np.full((2, 20, 3), 1 / 3), LABELS),
        "ce2: all 40 rows of the logits look like probabilities",
    ),
    "probabilities of a network": (
        lambda: inference.predict_loss(np.full((20, 3), 1 / 3), LABELS, "focal"),
        "predict_loss: all 20 rows of the logits look like probabilities",
    ),
    "threshold": (
        lambda: inference.best_threshold(LOGITS, LABELS, key=KEY),
        "needs two classes, got 3. Give abstain_cost",
    ),
    # Several models and seeds.
}


@pytest.mark.parametrize("name", CASES)
def test_refusals(name):
    call, message = CASES[name]
    errors = (ValueError, TypeError, dataclasses.FrozenInstanceError)
    with pytest.raises(errors, match=message):
        call()


FEW = np.asarray([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], "float32")
OF_FEW = np.asarray([0, 1, 2, 1])
DRAWING = [
    name
    for name in inference.__all__
    if callable(function := getattr(inference, name))
    and "key" in inspect.signature(function).parameters
]
KEYS = jax.random.split(jax.random.key(0))


def drawn(**options):
    return inference.bootstrap(metrics.accuracy, FEW, OF_FEW, num_resamples=5, **options)


@pytest.mark.parametrize("name", [name for name in DRAWING if name != "calibration_test"])
def test_a_missing_key_is_asked_for_with_an_example(name):
    with pytest.raises(TypeError, match=rf"{name} draws .* key=jax\.random\.key\(0\)"):
        getattr(inference, name)(FEW, FEW, OF_FEW)


def test_a_key_is_one_key_of_either_kind(monkeypatch):
    np.testing.assert_array_equal(drawn(key=jax.random.key(3)), drawn(key=jax.random.PRNGKey(3)))
    with pytest.raises(TypeError, match="key must be a random key"):
        drawn(key=0)
    with pytest.raises(ValueError, match=r"key must be one random key, got several, \(2,\)"):
        drawn(key=KEYS)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    with pytest.raises(TypeError, match="num_resamples must be an integer"):
        inference.bootstrap(metrics.ece, FEW, OF_FEW, key=KEYS[0], num_resamples=10.5)


def test_samples_and_weights_have_limits():
    with pytest.raises(ValueError, match="samples must be arrays with at least one entry"):
        inference.interval({"ece": np.zeros((0, 3))})
    with pytest.raises(ValueError, match="the weights count 400,000,000 examples, too many"):
        inference.noise_bound(metrics.ece, FEW, OF_FEW, np.full(4, 1e8), key=KEYS[0])
    nothing = np.zeros((0, 2, 3), "float32"), np.zeros((0, 2), int)
    with pytest.raises(ValueError, match="there are no pixels"):
        inference.ImageStream(metrics.ece).update(*nothing)


def test_clusters_may_be_columns_of_any_kind():
    columns = ["a", "a", "b", "c"], np.asarray(["a", "a", "b", "c"], object), np.arange(4) // 2
    first, second, _ = (
        inference.noise_bound(metrics.ece, FEW, OF_FEW, key=KEYS[0], clusters=clusters)
        for clusters in columns
    )
    assert first == second
