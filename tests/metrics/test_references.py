"""Values against slow float64 references that share no code with the package."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax import inference, metrics

from . import reference

MEMBERS = {name: one for name, one in metrics.catalogue().items() if hasattr(reference, name)}
FAMILIES = ("averages", "bins", "confusion", "reliability")

# Options beside the defaults, each of which changes the value of this sample.
OPTIONS = [
    ("accuracy", {"excluded_class": 1}),
    ("top_k", {"k": 2}),
    ("top_k", {"k": 9}),
    *((name, {"num_bins": 7}) for name in ("ece", "adaptive_ece", "classwise_ece", "reliability")),
    ("ece", {"edges": "left"}),
    ("ece", {"edges": "ceil", "num_bins": 10}),
    ("ece", {"excluded_class": 1}),
    ("reliability", {"edges": "left", "level": 0.99}),
    ("brier_decomposition", {"excluded_class": 0}),
    ("adaptive_ece", {"binning": "released"}),
    ("adaptive_ece", {"excluded_class": 2}),
    ("adaptive_mce", {"binning": "released", "num_bins": 6}),
    ("adaptive_reliability", {"binning": "released"}),
    ("classwise_reliability", {"num_bins": 7}),
    ("classwise_ece", {"classes": "released"}),
    ("classwise_ece", {"excluded_class": 1, "zero_counts": False}),
    ("classwise_ece", {"excluded_class": 1}),
    ("per_class_ece", {"excluded_class": 0, "zero_counts": False}),
    ("per_class_ece", {"classes": "released"}),
]
CALLS = [(name, {}) for name in MEMBERS] + OPTIONS
IDS = [name + "".join(f"-{k}={v}" for k, v in options.items()) for name, options in CALLS]


def sample(num_examples=60, num_classes=4, seed=0):
    """Return logits with ties among them, labels without the last class, and weights."""
    random = np.random.default_rng(seed)
    logits = 2 * random.standard_normal((num_examples, num_classes))
    logits[7] = logits[8] = logits[9]  # of equal confidence, whatever the label
    logits[0] = [0.0, 0.0, 0.02, 0.0]  # alone in its bin
    logits[20:26, 1] = 9.0  # sure
    likely = logits[:, :-1].argmax(axis=1)
    labels = random.integers(0, num_classes - 1, num_examples)
    labels = np.where(random.random(num_examples) < 0.6, likely, labels)
    weights = random.integers(0, 4, num_examples).astype(float)
    weights[0] = 1
    return logits, labels, weights


def leaves(value):
    """List the arrays of a value, in the order of its fields."""
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(value)]


def assert_matches(actual, expected, tolerance):
    actual, expected = leaves(actual), leaves(expected)
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance, strict=True)


def value_of(name, options, logits, labels, weights):
    """Compute a metric from its statistic."""
    metric = metrics.named(name, **options)
    return metric.value(metric.stat(logits, labels, weights))


@functools.cache
def values_of_calls():
    """Compute every call in float64, with two batch axes, in one program."""

    @jax.jit
    def values(*batch):
        return [value_of(name, options, *batch) for name, options in CALLS]

    with jax.enable_x64(True):
        return values(*(np.reshape(a, (3, 20, *a.shape[1:])) for a in sample()))


@pytest.mark.parametrize("index", range(len(CALLS)), ids=IDS)
def test_value(index):
    name, options = CALLS[index]
    logits, *rest = sample()
    expected = getattr(reference, name)(reference.softmax(logits), *rest, **options)
    # Edges are float32 numbers whatever the dtype.
    tolerance = 1e-7 if "reliability" in name else 1e-12
    assert_matches(values_of_calls()[index], expected, tolerance)


def test_calls():
    """As a user calls them: compiled, in single precision."""
    logits, labels, weights = sample()
    logits = np.float32(logits)
    p = reference.softmax(logits)
    alone = {name: metrics.named(name)(logits, labels, weights) for name in ("ece", "reliability")}
    found = metrics.values_of(MEMBERS, logits, labels, weights) | alone
    for name, value in found.items():
        assert {leaf.dtype for leaf in jax.tree.leaves(value)} == {jnp.dtype("float32")}
        assert_matches(value, getattr(reference, name)(p, labels, weights), 3e-6)


def test_fewer_examples_than_bins_of_equal_mass():
    """From 1 to 20 examples in 15 bins; the same rows without the absent ones for some."""
    logits, labels, _ = sample(20, seed=7)
    tolerances = {"adaptive_ece": 1e-12, "adaptive_reliability": 1e-7}
    several = {name: metrics.named(name) for name in tolerances}
    compiled = jax.jit(functools.partial(metrics.values_of, several))
    with jax.enable_x64(True):
        for count in range(1, 21):
            weights = np.where(np.arange(20) < count, 1.0 + np.arange(20) % 3, 0)
            found = [compiled(logits, labels, weights)]
            if count in (1, 10):
                found.append(compiled(*(part[:count] for part in (logits, labels, weights))))
            for name, tolerance in tolerances.items():
                expected = getattr(reference, name)(reference.softmax(logits), labels, weights)
                for values in found:
                    assert_matches(values[name], expected, tolerance)


def test_every_metric_of_these_files_has_a_reference():
    ours = {
        name
        for name, one in metrics.catalogue().items()
        if one.__module__.rpartition(".")[2] in FAMILIES
    }
    elsewhere = {name for name in ours if "debiased" in name}  # test_bins.py
    assert ours - elsewhere == MEMBERS.keys()
    assert {metrics.named(name).__module__.rpartition(".")[2] for name in ours} == set(FAMILIES)


@pytest.mark.parametrize(
    ("costs", "abstain_cost"),
    [(None, 0.4), (((0, 1, 4), (2, 0, 1), (5, 2, -1), (1, 1.5, 2)), None)],
)
def test_costs_of_decisions(costs, abstain_cost):
    logits, labels, weights = sample()
    matrix = np.array(1 - np.eye(4) if costs is None else costs)
    if abstain_cost is not None:
        matrix = np.hstack([matrix, np.full((4, 1), abstain_cost)])
    expected = reference.softmax(np.asarray(logits, np.float64)) @ matrix
    decision = expected.argmin(axis=1)
    options = {"costs": costs, "abstain_cost": abstain_cost}
    for metric, wanted in (
        (metrics.expected_cost, matrix[labels, decision]),
        (metrics.stated_cost, expected.min(axis=1)),
    ):
        actual = metric(logits, labels, weights, **options)
        np.testing.assert_allclose(actual, np.average(wanted, weights=weights), rtol=1e-5)


def test_rows_in_blocks():
    """Of 20,000 classes, 64 rows are a block; the last block overlaps the one before."""
    logits = np.random.default_rng(0).normal(size=(100, 20_000)).astype(np.float32)
    labels, weights = np.arange(100), np.arange(100) % 3
    losses = scipy.special.logsumexp(logits, axis=1) - logits[np.arange(100), labels]
    actual = metrics.nll(logits, labels, weights.astype(np.float32))
    np.testing.assert_allclose(actual, np.average(losses, weights=weights), rtol=1e-5)
    np.testing.assert_allclose(metrics.nll(logits, labels), np.mean(losses), rtol=1e-5)


COUNTS = (5000, 101, 100, 20, 19, 0)


def of_six_classes(num_rows=60):
    random = np.random.default_rng(0)
    logits = random.standard_normal((num_rows, 6)).astype(np.float32)
    others = random.integers(0, 6, num_rows)
    labels = np.where(random.random(num_rows) < 0.5, logits.argmax(-1), others)
    labels = np.where(labels == 1, 0, np.minimum(labels, 4))  # class 1 has no test example
    labels[7] = 5  # the only one of class 5
    return logits, labels


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
    logits, labels = of_six_classes()
    metric = metrics.shot_accuracy(COUNTS)
    wanted = expected(logits, labels, ((0, 1), (2, 3), (4, 5)))
    np.testing.assert_allclose(metric(logits, labels), wanted, rtol=1e-6)
    stream = metrics.Stream({"shots": metric})
    for rows in (slice(0, 30), slice(30, 60)):
        stream.update(logits[rows], labels[rows])
    np.testing.assert_allclose(stream.compute()["shots"], wanted, rtol=1e-6)
    estimate = inference.estimates(metric, logits, labels, key=jax.random.key(0), num_resamples=50)
    assert all(low < value < high for value, low, high in zip(*estimate[:3], strict=True))


def test_a_group_without_examples_and_wrong_input_are_nan():
    logits, labels = of_six_classes()
    metric = metrics.shot_accuracy((500, 50, 50, 50, 50, 50), many=1000, few=1)
    assert np.isnan(metric(logits, labels).many)
    assert not np.isnan(metric(logits, labels).medium)
    wrong = np.where(np.arange(60) == 3, 9, labels)
    assert np.isnan(metric.value(metric.stat(logits, wrong))).all()
