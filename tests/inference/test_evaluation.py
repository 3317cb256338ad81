"""An `Evaluation` in place of logits, and a stream of images: the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from calib_jax import inference, metrics
from calib_jax.core.binning import BINNING_RULES
from calib_jax.inference import evaluation as evaluation_file
from calib_jax.inference import gaps as bin_gaps
from calib_jax.inference import resampling
from tests import programs
from tests.options import assert_recorded
from tests.test_doctests import docstrings_of

KEY = jax.random.key(0)
GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 3, 240)
LOGITS = GENERATOR.normal(size=(240, 3)).astype(np.float32) + 2 * np.eye(3)[LABELS]
LOGITS = LOGITS.astype(np.float32)
OTHER = (1.5 * LOGITS + GENERATOR.normal(size=LOGITS.shape) / 3).astype(np.float32)
WEIGHTS = GENERATOR.integers(0, 3, 240)
CLUSTERS = np.repeat(np.arange(60), 4)
GROUPS = np.where(np.arange(240) % 3 == 0, "a", "b")
SEVERAL = {name: metrics.named(name) for name in ("ece", "adaptive_ece", "nll", "mce")}
BOUNDED = {name: metrics.named(name) for name in ("ece", "adaptive_ece", "classwise_ece", "ecce")}
DRAWN = {"key": KEY, "num_resamples": 60}
TESTS = dict.fromkeys(("kuiper", "ece", "squared_error"), DRAWN)
TESTS |= {name: {} for name in ("cox", "spiegelhalter", "temperature")}
DATA = {"labels": LABELS, "weights": WEIGHTS, "clusters": CLUSTERS}


def evaluated(logits=LOGITS, **changes):
    data = DATA | changes
    return inference.Evaluation(logits, data.pop("labels"), data.pop("weights"), **data)


def arrays_of(result):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result) if not isinstance(leaf, str)]


ONE = {
    "bootstrap": lambda *model, **data: inference.bootstrap(SEVERAL, *model, **data, **DRAWN),
    "estimates": lambda *model, **data: inference.estimates(SEVERAL, *model, **data, **DRAWN),
    "noise_bound": lambda *m, **data: inference.noise_bound(BOUNDED, *m, **data, **DRAWN),
    "debiased_squared_error": inference.debiased_squared_error,
    "calibration_test": lambda *m, **data: [
        inference.calibration_test(name, *m, **data, **options) for name, options in TESTS.items()
    ],
    "class_errors": lambda *m, **data: inference.class_errors(*m, **data, **DRAWN),
    "group_errors": lambda *m, groups=GROUPS, **data: inference.group_errors(
        *m, groups=groups, **data, **DRAWN
    ),
    "decision_calibration": inference.decision_calibration,
    "best_threshold": lambda *m, **data: inference.best_threshold(
        *m, abstain_cost=0.3, **data, **DRAWN
    ),
}
TWO = {
    "paired_bootstrap": lambda *m, **d: inference.paired_bootstrap(SEVERAL, *m, **d, **DRAWN),
    "compare_metrics": lambda *m, **data: inference.compare_metrics(SEVERAL, *m, **data, **DRAWN),
    "compare_ece": lambda *models, **data: inference.compare_ece(*models, **data, **DRAWN),
    "compare_calibration": inference.compare_calibration,
}


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_an_evaluation_gives_the_numbers_of_its_arrays(name):
    function = (ONE | TWO)[name]
    logits = (LOGITS,) if name in ONE else (LOGITS, OTHER)
    from_arrays = arrays_of(function(*logits, **DATA))
    assert from_arrays
    shared = [evaluated(each) for each in logits]
    for _ in range(2):  # values stored by the first call do not change the second
        for wanted, actual in zip(from_arrays, arrays_of(function(*shared)), strict=True):
            np.testing.assert_array_equal(actual, wanted)


RESAMPLED = ("bootstrap", "estimates", "paired_bootstrap", "compare_metrics")  # rows keep weights
COUNTING = [name for name in ONE | TWO if name not in RESAMPLED]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", COUNTING)
def test_weights_are_counts_of_rows_without_order(name, grouped):
    """Weight k is k copies; what is there does not matter where the weight is 0."""
    rows = np.repeat(np.arange(240), WEIGHTS)
    if grouped or name != "compare_ece":  # the draws of independent rows are in their order
        rows = np.random.default_rng(1).permutation(rows)
    absent = WEIGHTS == 0

    def numbers(rows, labels, **weights):
        models = [np.where(absent[:, None], np.nan, each)[rows] for each in (LOGITS, OTHER)]
        of_rows = {"groups": GROUPS[rows]} if name == "group_errors" else {}
        given = (
            of_rows | weights | {"labels": labels, "clusters": CLUSTERS[rows] if grouped else None}
        )
        return np.hstack([*arrays_of((ONE | TWO)[name](*models[: 1 + (name in TWO)], **given))])

    whole = numbers(rows, LABELS[rows])
    weighted = numbers(np.arange(240), np.where(absent, 9, LABELS), weights=WEIGHTS)
    # Sums over classes are in single precision.
    rtol = 1e-6 if name in ("class_errors", "decision_calibration") else 1e-9
    np.testing.assert_allclose(weighted, whole, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("name", ["estimates", "noise_bound", "compare_ece"])
def test_clusters_of_one_row_are_independent_rows(name):
    models = (LOGITS, OTHER)[: 1 + (name in TWO)]
    number = np.arange(240) if name in RESAMPLED else np.arange(240)[::-1]  # drawn in this order
    ids = np.char.add("photo ", np.char.zfill(number.astype(str), 3))
    alone, plain = (
        arrays_of((ONE | TWO)[name](*models, labels=LABELS, clusters=clusters))
        for clusters in (ids, None)
    )
    for one, other in zip(alone, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5 if name in RESAMPLED else 0, atol=1e-9)


def test_values_are_those_of_metrics_and_computed_once(monkeypatch):
    evaluation = evaluated()
    wanted = metrics.values_of(SEVERAL, LOGITS, LABELS, WEIGHTS)
    assert evaluation.values(SEVERAL) == wanted
    monkeypatch.setattr(evaluation_file, "_values", None)
    assert evaluation.values({"again": metrics.ece}) == {"again": wanted["ece"]}


def test_padding_keeps_the_numbers_and_sets_of_similar_sizes_share_programs():
    def compared(rows, padded):
        data = {"labels": LABELS[:rows], "weights": None, "clusters": None, "padded": padded}
        models = [evaluated(each[:rows], **data) for each in (LOGITS, OTHER)]
        return inference.estimates(SEVERAL, models[0], **DRAWN), inference.compare_metrics(
            SEVERAL, *models, **DRAWN
        )

    both = map(arrays_of, (compared(240, False), compared(240, True)))
    for wanted, actual in zip(*both, strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-6)
    with programs.counted() as number:
        compared(230, True)
    assert number == [0]


def test_top_labels_count_copies():
    copies, top = evaluated().copies, evaluated().top_label()
    rows = np.repeat(np.arange(240), WEIGHTS)
    np.testing.assert_array_equal(copies.row, rows)
    p = np.exp(LOGITS.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(top.confidence, p.max(axis=1)[rows], rtol=1e-6)
    np.testing.assert_array_equal(top.correct, (p.argmax(axis=1) == LABELS)[rows])
    assert [len(np.unique(part)) for part in (copies.cluster, CLUSTERS[rows])] == [60, 60]
    single = evaluated(clusters=np.arange(240), weights=None)
    assert single.cluster is None  # clusters of one example are independent examples


@pytest.mark.slow
def test_metrics_are_compared_by_the_method_that_is_valid_for_each():
    runs = [LOGITS, 0.8 * LOGITS], [OTHER, 1.1 * OTHER]
    data = {"labels": LABELS, "weights": WEIGHTS, "clusters": CLUSTERS}
    several = SEVERAL | {"rms": metrics.rms_calibration_error}
    changes = inference.compare_metrics(several, *runs, **data, **DRAWN)
    squared = inference.compare_calibration(*runs, **data)
    for name in ("ece", "adaptive_ece", "rms"):
        assert changes[name].p_value == squared.p_value
    for name, change in changes.items():
        values = [
            float(np.mean([several[name](run, LABELS, WEIGHTS) for run in side])) for side in runs
        ]
        np.testing.assert_allclose(change.value, values[1] - values[0], atol=1e-6)
    for name in ("ece", "adaptive_ece"):
        assert changes[name].interval == "noise bound"
        equal_mass = name == "adaptive_ece"
        bound = inference.compare_ece(*runs, **data, equal_mass=equal_mass, **DRAWN)
        np.testing.assert_allclose(changes[name][:3], bound[:3], atol=0.02)
    assert changes["rms"].interval == "none"
    assert np.isnan(changes["rms"].low)
    assert (changes["mce"].interval, changes["mce"].p_value) == ("percentile", None)
    samples = [
        np.mean([inference.bootstrap(metrics.nll, run, **data, **DRAWN) for run in side], axis=0)
        for side in runs
    ]
    sizes = np.bincount(CLUSTERS, WEIGHTS)  # as many equal clusters as vary so much
    units = sizes.sum() ** 2 / np.square(sizes).sum()
    quantile = np.sqrt(units / (units - 1)) * stats.t.ppf([0.05, 0.95], units - 1)
    ends = np.quantile(samples[1] - samples[0], stats.norm.cdf(quantile))
    np.testing.assert_allclose(changes["nll"][1:3], ends, rtol=1e-4)


@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_bins_on_the_host_are_those_of_the_device(num_bins):
    edges = np.linspace(0, 1, num_bins + 1, dtype=np.float32)
    near = [np.nextafter(edges, np.float32(end)) for end in (-1, 2)]
    values = np.clip(np.concatenate([edges, *near, GENERATOR.random(99, np.float32)]), 0, 1)
    for name, rule in BINNING_RULES.items():
        wanted = np.asarray(rule(jnp.asarray(values), num_bins))
        actual = bin_gaps.bin_numbers(values.astype(np.float64), num_bins, name)
        np.testing.assert_array_equal(actual, wanted)


def test_defaults_are_the_recorded_ones():
    assert_recorded("inference")


SEVERAL_METRICS = {
    name: metrics.named(name) for name in ("ece", "mean_iou", "classwise_ece", "accuracy")
}


def scenes(num_images=12, seed=0):
    """Return logits [images, 4, 5, 3], labels and weights, with void pixels of label 255."""
    random = np.random.default_rng(seed)
    logits = 2 * random.standard_normal((num_images, 4, 5, 3)).astype(np.float32)
    labels = np.where(
        random.random((num_images, 4, 5)) < 0.6, logits.argmax(-1), random.integers(0, 3, (4, 5))
    )
    weights = (random.random((num_images, 4, 5)) < 0.8).astype(np.float32)
    weights[1] = 0  # an image of void
    return logits, np.where(weights > 0, labels, 255), weights


@pytest.fixture(scope="module")
def stream():
    """A stream of twelve images in two batches."""
    accumulated = inference.ImageStream(SEVERAL_METRICS)
    for part in (slice(0, 3), slice(3, 12)):
        accumulated.update(*(array[part] for array in scenes()))
    return accumulated


def test_pooled_values_are_those_of_all_pixels(stream):
    expected = metrics.values_of(SEVERAL_METRICS, *scenes())
    for name, value in stream.compute().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)


def test_a_wrong_label_of_any_image_is_named(stream):
    logits, labels, weights = (array[:3].copy() for array in scenes())
    labels[2, 0, 0], weights[2, 0, 0] = 77, 1
    with pytest.raises(ValueError, match="77"):
        stream.update(logits, labels, weights)


def test_per_image_is_the_mean_over_images_with_a_pixel(stream):
    logits, labels, weights = scenes()
    for name, value in stream.per_image().items():
        each = [
            SEVERAL_METRICS[name](logits[n], labels[n], weights[n])
            for n in np.delete(np.arange(12), 1)
        ]
        np.testing.assert_allclose(value, np.mean(each), rtol=1e-5, err_msg=name)


def test_intervals_are_those_of_drawn_images(stream):
    """Check against a loop over draws, in which the pixels of the drawn images are joined."""
    key, draws = jax.random.key(3), 20
    kind = {"key": key, "num_resamples": draws, "level": 0.8}
    actual = stream.estimates(**kind, method="percentile")
    valid = stream.estimates(**kind)
    logits, labels, weights = scenes()
    (counts,) = resampling.resamples_on_host(key, 11, draws)  # not the image of void
    index = [np.repeat(np.delete(np.arange(12), 1), row.astype(int)) for row in counts]
    tails = stats.norm.cdf(np.sqrt(11 / 10) * stats.t(10).ppf([0.1, 0.9]))
    samples = [metrics.values_of(SEVERAL_METRICS, logits[i], labels[i], weights[i]) for i in index]
    for name, estimate in actual.items():
        low, high = np.quantile([sample[name] for sample in samples], tails)
        np.testing.assert_allclose([estimate.low, estimate.high], [low, high], rtol=1e-4)
        np.testing.assert_allclose(estimate.value, stream.compute()[name])
        if SEVERAL_METRICS[name].biased:  # percentiles exclude the error of a calibrated model
            assert valid[name].interval == "none"
            assert np.all(np.isnan(valid[name].low))
        else:
            assert valid[name][1:] == estimate[1:]
    right = inference.ImageStream(metrics.accuracy)
    right.update(logits, logits.argmax(-1), weights)
    assert right.estimates(key=key)["accuracy"].low == pytest.approx(0.05 ** (1 / 11))


test_docstring = docstrings_of("inference")
