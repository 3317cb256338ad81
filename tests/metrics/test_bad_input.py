"""Bad input is answered in one sentence that names the value and the way out."""

import inspect
import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import inference, metrics
from calib_jax.core.names import short

from .laws import value_of

LOGITS = np.asarray([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], "float32")
LABELS = np.asarray([0, 1, 2, 1])


def with_entry(array, index, value):
    """Return a copy with one entry replaced."""
    array = np.array(array)
    array[index] = value
    return array


def refused(call, sentence, error=ValueError):
    """Check that a call raises exactly one sentence."""
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    assert message == sentence
    assert "\n" not in message
    assert re.search(r"[.?]$", message)


VALUES = {
    "NaN logits": (
        (with_entry(LOGITS, (1, 0), np.nan), LABELS),
        "ece: 1 of 4 rows have NaN or infinite logits (-inf beside finite ones is fine); give them"
        " weight 0, or find their cause.",
    ),
    "infinite logits": (
        (with_entry(with_entry(LOGITS, (1, 0), np.inf), 3, -np.inf), LABELS),
        "ece: 2 of 4 rows have NaN or infinite logits (-inf beside finite ones is fine); give them"
        " weight 0, or find their cause.",
    ),
    "label of an ignored pixel": (
        (LOGITS, with_entry(with_entry(LABELS, 1, 255), 2, 255)),
        "ece: 2 of 4 labels are not among the 3 classes, 255 is one; give ignored examples"
        " weight 0.",
    ),
    "negative label": (
        (LOGITS, with_entry(LABELS, 3, -1)),
        "ece: 1 of 4 labels are not among the 3 classes, -1 is one; give ignored examples"
        " weight 0.",
    ),
    "negative weight": (
        (LOGITS, LABELS, np.asarray([1.0, -1.0, 1.0, np.nan])),
        "ece: 2 of 4 weights are negative, infinite or NaN; use weight 0 for examples that do"
        " not count.",
    ),
    "no weight": (
        (LOGITS, LABELS, np.zeros(4)),
        "ece: all 4 weights are 0, so there is nothing to measure.",
    ),
    "no examples": (
        (LOGITS[:0], LABELS[:0]),
        "ece: there are no examples, the labels have shape (0,).",
    ),
    "other lengths": (
        (LOGITS, LABELS[:3]),
        "ece: logits (4, 3) need labels of shape (4,), got (3,).",
    ),
    "weights of another length": (
        (LOGITS, LABELS, np.ones(3)),
        "weights must have shape (4,), one for each example, got (3,).",
    ),
    "a row per class": (
        (LOGITS.T, LABELS),
        "ece: logits (3, 4) need labels of shape (3,), got (4,).",
    ),
    "one-hot labels": (
        (LOGITS, np.eye(3, dtype=int)[LABELS]),
        "ece: logits (4, 3) need labels of shape (4,), got (4, 3).",
    ),
    "classes first, as in PyTorch": (
        (np.zeros((2, 3, 8, 8), np.float32), np.zeros((2, 8, 8), int)),
        "ece: logits (2, 3, 8, 8) need labels of shape (2, 3, 8), got (2, 8, 8): the classes are"
        " the last axis, jnp.moveaxis(logits, 1, -1).",
    ),
    "no classes": (
        (LOGITS[:, :0], LABELS),
        "ece: logits must have shape [*batch, classes] with at least one class, got (4, 0).",
    ),
}


@pytest.mark.parametrize("case", VALUES)
def test_values_and_shapes(case):
    data, sentence = VALUES[case]
    refused(lambda: metrics.ece(*data), sentence)


def test_types():
    refused(
        lambda: metrics.ece(LABELS, LOGITS),
        f"ece: logits must be floating point, got {jnp.asarray(LABELS).dtype}: cast them, or check"
        " that logits and labels are not swapped.",
        TypeError,
    )
    refused(
        lambda: metrics.ece(LOGITS, LABELS.astype("float32")),
        "ece: labels (4,) must be integers, got float32: cast numbers of classes,"
        " labels.astype(int).",
        TypeError,
    )


BY_KEY = {
    "bootstrap": lambda key: inference.bootstrap(metrics.ece, LOGITS, LABELS, key=key),
    "estimates": lambda key: inference.estimates({"nll": metrics.nll}, LOGITS, LABELS, key=key),
    "paired_bootstrap": lambda key: inference.paired_bootstrap(
        metrics.ece, LOGITS, LOGITS, LABELS, key=key
    ),
    "noise_bound": lambda key: inference.noise_bound(metrics.ece, LOGITS, LABELS, key=key),
    "compare_metrics": lambda key: inference.compare_metrics(
        metrics.ece, LOGITS, LOGITS, LABELS, key=key
    ),
    "compare_ece": lambda key: inference.compare_ece(LOGITS, LOGITS, LABELS, key=key),
    "best_threshold": lambda key: inference.best_threshold(
        LOGITS, LABELS, key=key, abstain_cost=0.1
    ),
    "class_errors": lambda key: inference.class_errors(LOGITS, LABELS, key=key),
    "group_errors": lambda key: inference.group_errors(LOGITS, LABELS, LABELS, key=key),
    "calibration_test": lambda key: inference.calibration_test("ece", LOGITS, LABELS, key=key),
}


@pytest.mark.parametrize("function", BY_KEY)
def test_a_seed_is_no_key(function):
    refused(
        lambda: BY_KEY[function](0),
        "key must be a random key, such as jax.random.key(0), got 0.",
        TypeError,
    )


@pytest.mark.parametrize("function", [name for name in BY_KEY if name != "calibration_test"])
def test_a_missing_key_is_asked_for_with_an_example(function):
    refused(
        lambda: getattr(inference, function)(LOGITS, LOGITS, LABELS),
        f"{function} draws random numbers: give key=jax.random.key(0).",
        TypeError,
    )


def test_keys_of_both_kinds_draw_the_same():
    draws = [
        inference.bootstrap(metrics.accuracy, LOGITS, LABELS, key=key, num_resamples=5)
        for key in (jax.random.key(3), jax.random.PRNGKey(3))
    ]
    np.testing.assert_array_equal(*draws)


def test_every_function_that_draws_is_asked_for_its_key():
    drawing = {
        name
        for package in (metrics, inference)
        for name in package.__all__
        if callable(function := getattr(package, name))
        and "key" in inspect.signature(function).parameters
    }
    assert drawing <= set(BY_KEY)


@pytest.mark.parametrize("given", [[metrics.ece], "ece", {}, {"ece": "ece"}, LOGITS])
def test_metrics_have_names(given, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    refused(
        lambda: metrics.values_of(given, LOGITS, LABELS),
        f"metrics must be a metric or a mapping from names to metrics, got {short(given)}:"
        " metrics.named(NAME) finds one.",
        TypeError,
    )


def test_a_metric_is_no_name(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    message = f"the name of the metric must be a string, got {metrics.ece!r}."
    refused(lambda: metrics.named(metrics.ece), message, TypeError)


@pytest.mark.parametrize("key", [jax.random.key(0), jax.random.PRNGKey(0)])
def test_several_keys_are_not_one(key):
    keys = jax.random.split(key)
    refused(
        lambda: inference.bootstrap(metrics.ece, LOGITS, LABELS, key=keys),
        f"key must be one random key, got several, {keys.shape}: give key[0].",
    )


def test_words_are_no_labels():
    for words in (["a", "b", "c", "b"], np.asarray(["a", "b", "c", "b"], object)):
        dtype = np.asarray(list(words)).dtype
        refused(
            lambda words=words, dtype=dtype: metrics.ece(LOGITS, words),
            "ece: labels must be numbers (np.unique(labels, return_inverse=True) numbers them),"
            f" got {dtype}.",
            TypeError,
        )
    refused(
        lambda: metrics.ece(LOGITS.astype(str), LABELS),
        f"ece: logits must be numbers, got {LOGITS.astype(str).dtype}.",
        TypeError,
    )


def test_what_has_weight_zero_is_not_refused():
    logits, labels = with_entry(LOGITS, (1, 0), np.nan), with_entry(LABELS, 2, 255)
    actual = metrics.ece(logits, labels, np.asarray([1.0, 0.0, 0.0, 1.0]))
    assert actual == pytest.approx(metrics.ece(LOGITS[[0, 3]], LABELS[[0, 3]]))


def test_several_metrics_are_named():
    both = {"first": metrics.ece, "second": metrics.nll}
    refused(
        lambda: metrics.values_of(both, LOGITS, with_entry(LABELS, 0, 3)),
        "first, second: 1 of 4 labels are not among the 3 classes, 3 is one; give ignored examples"
        " weight 0.",
    )


def test_within_jit_nothing_is_refused_and_nothing_is_wrong():
    for data, _ in (VALUES["NaN logits"], VALUES["negative label"], VALUES["no weight"]):
        assert np.isnan(jax.jit(metrics.accuracy)(*data))


OPTIONS = {
    "an option near one": (
        lambda: metrics.ece(LOGITS, LABELS, bins=10),
        "'ece' has no option 'bins' (it has edges, excluded_class, num_bins); did you mean"
        " 'num_bins'?",
        TypeError,
    ),
    "an option of another": (
        lambda: metrics.nll.with_options(num_bins=10),
        "'nll' has no option 'num_bins' (it has none).",
        TypeError,
    ),
    "no bins": (
        lambda: metrics.ece(LOGITS, LABELS, num_bins=0),
        "num_bins must be at least 1, got 0.",
        ValueError,
    ),
    "no bins of equal mass": (
        lambda: metrics.adaptive_ece(LOGITS, LABELS, num_bins=0),
        "num_bins must be at least 1, got 0.",
        ValueError,
    ),
    "no bins of a class": (
        lambda: metrics.classwise_ece(LOGITS, LABELS, num_bins=-3),
        "num_bins must be at least 1, got -3.",
        ValueError,
    ),
    "an option that cannot be hashed": (
        lambda: metrics.ece(LOGITS, LABELS, num_bins=[10]),
        "ece: the option num_bins must be a number, a string or a tuple, got [10].",
        TypeError,
    ),
    "a word near one": (
        lambda: metrics.ece(LOGITS, LABELS, edges="rigth"),
        "edges must be one of 'right', 'left', 'ceil', got 'rigth'; did you mean 'right'?",
        ValueError,
    ),
    "a kind of bins": (
        lambda: metrics.adaptive_ece(LOGITS, LABELS, num_bins=2, binning="equal"),
        "binning must be one of 'mass', 'released', got 'equal'.",
        ValueError,
    ),
    "a choice of classes": (
        lambda: metrics.classwise_ece(LOGITS, LABELS, classes="al"),
        "classes must be one of 'all', 'released', got 'al'; did you mean 'all'?",
        ValueError,
    ),
    "a class that is none": (
        lambda: metrics.ece(LOGITS, LABELS, excluded_class=3),
        "excluded_class must lie in [0, 2], got 3.",
        ValueError,
    ),
    "none of the most probable": (
        lambda: metrics.top_k(LOGITS, LABELS, k=0),
        "k must be at least 1, got 0.",
        ValueError,
    ),
    "a level of nothing": (
        lambda: metrics.reliability(LOGITS, LABELS, level=0.0),
        "level must be a fraction between 0 and 1, got 0.0.",
        ValueError,
    ),
    "a level in percent": (
        lambda: metrics.reliability(LOGITS, LABELS, level=90),
        "level must be a fraction between 0 and 1, got 90.",
        ValueError,
    ),
    "a metric near one": (
        lambda: metrics.named("eec"),
        "no metric is called 'eec'; did you mean 'ece'?",
        ValueError,
    ),
    "an attribute near one": (
        lambda: metrics.adaptiv_ece,
        "calib_jax.metrics has no 'adaptiv_ece'; did you mean 'adaptive_ece'?",
        AttributeError,
    ),
    "a function of inference": (
        lambda: metrics.mcnemar,
        "calib_jax.metrics has no 'mcnemar', which is in calib_jax.inference.",
        AttributeError,
    ),
    "bins of the script": (
        lambda: metrics.mmce_script(jnp.ones((1, 2)) / 2, jnp.asarray([0]), num_bins=0),
        "num_bins must be at least 1, got 0.",
        ValueError,
    ),
    "labels of the script": (
        lambda: metrics.mmce_script(jnp.ones((2, 2)) / 2, jnp.asarray([0])),
        "mmce_script: logits (2, 2) need labels of shape (2,), got (1,).",
        ValueError,
    ),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_and_names(case):
    refused(*OPTIONS[case])


@pytest.mark.parametrize("word", ["edges", "binning", "classes", "score", "positive", "kind"])
def test_every_choice_is_checked_by_every_metric_that_has_it(word):
    members = [one for one in metrics.catalogue().values() if word in one.defaults()]
    assert members
    for metric in members:
        with pytest.raises(ValueError, match=f"{word} must be one of .*, got 'nonsense'"):
            value_of(metric, LOGITS, LABELS % 2, **{word: "nonsense"})


def test_no_bins_is_refused_by_every_metric_that_has_them():
    members = [one for one in metrics.catalogue().values() if "num_bins" in one.defaults()]
    assert members
    for metric in members:
        with pytest.raises(ValueError, match="num_bins must be at least 1, got 0"):
            value_of(metric, LOGITS, LABELS % 2, num_bins=0)


WRONG_KINDS = {
    "bins that are no number": (lambda: metrics.ece(LOGITS, LABELS, num_bins="15"), "num_bins"),
    "half a bin": (lambda: metrics.adaptive_ece(LOGITS, LABELS, num_bins=10.5), "num_bins"),
    "half a class": (lambda: metrics.top_k(LOGITS, LABELS, k=2.5), "k"),
    "half a resample": (
        lambda: inference.bootstrap(
            metrics.ece, LOGITS, LABELS, key=jax.random.key(0), num_resamples=10.5
        ),
        "num_resamples",
    ),
    "a level in words": (lambda: inference.interval(jnp.zeros(3), "0.9"), "level"),
}


@pytest.mark.parametrize("case", WRONG_KINDS)
def test_numbers_are_numbers(case, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    call, name = WRONG_KINDS[case]
    with pytest.raises(TypeError, match=f"^{name} must be (a number|an integer), got "):
        call()


@pytest.mark.parametrize("samples", [np.zeros(0), np.float32(0.5), {"ece": np.zeros((0, 3))}])
def test_an_interval_needs_samples(samples):
    with pytest.raises(ValueError, match="samples must be arrays with at least one entry"):
        inference.interval(samples)


def test_weights_that_count_too_many_examples_are_refused():
    weights = np.full(len(LABELS), 1e8)
    with pytest.raises(ValueError, match="the weights count 400,000,000 examples, too many"):
        inference.noise_bound(metrics.ece, LOGITS, LABELS, weights, key=jax.random.key(0))


def test_streams_name_what_they_cannot_add():
    for kind in (metrics.Stream, inference.ImageStream):
        with pytest.raises(TypeError, match="metrics must be a metric or a mapping"):
            kind({})
    stream = metrics.Stream(metrics.ece)
    stream.update(LOGITS, LABELS)
    with pytest.raises(ValueError, match="this batch has 4 classes, and the stream 3"):
        stream.update(2 * np.eye(4, dtype="float32"), np.arange(4))
    with pytest.raises(ValueError, match="there are no pixels"):
        inference.ImageStream(metrics.ece).update(
            np.zeros((0, 2, 3), "float32"), np.zeros((0, 2), int)
        )


def test_clusters_may_be_columns_of_any_kind():
    class Column:  # as of pandas
        def __init__(self, values):
            self.values = values

        def to_numpy(self):
            return self.values

        def __array__(self, dtype=None, copy=None):
            return self.values

    key = jax.random.key(0)
    bounds = [
        inference.noise_bound(metrics.ece, LOGITS, LABELS, key=key, clusters=clusters)
        for clusters in (
            ["a", "a", "b", "c"],
            Column(np.asarray(["a", "a", "b", "c"], object)),
            np.asarray([0, 0, 1, 2], object),
        )
    ]
    assert bounds[0] == bounds[1] == bounds[2]
