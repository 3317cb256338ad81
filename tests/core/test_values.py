"""The judgement of values: one table of refusals for metrics, fits and Evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import calibrators, inference, metrics
from calib_jax.core.values import flat_rows, ids_of, refuse_probabilities, two_classes

GENERATOR = np.random.default_rng(0)
LOGITS = GENERATOR.normal(size=(40, 3)).astype(np.float32)
LABELS = GENERATOR.integers(0, 3, 40)
P = np.asarray(jax.nn.softmax(LOGITS))

PLACES = {
    "metric": metrics.ece,
    "fit": calibrators.temperature.fit,
    "Evaluation": inference.Evaluation,
}
every_place = pytest.mark.parametrize("place", PLACES)


def with_entry(array, place, value):
    array = np.array(array)
    array[place] = value
    return array


BAD = {
    "NaN": ((with_entry(LOGITS, (3, 1), np.nan), LABELS), "1 of 40 rows have NaN or infinite"),
    "infinity": ((with_entry(LOGITS, (3, 1), np.inf), LABELS), "1 of 40 rows have NaN or inf"),
    "no possible class": ((with_entry(LOGITS, 3, -np.inf), LABELS), "1 of 40 rows have NaN"),
    "label too large": ((LOGITS, with_entry(LABELS, [2, 5], 3)), "2 of 40 labels .* 3 is one"),
    "negative label": ((LOGITS, with_entry(LABELS, 2, -1)), "1 of 40 labels .* -1 is one"),
    "label beyond 32 bits": ((LOGITS, with_entry(LABELS, 2, 2**32 + 1)), "1 of 40 labels are not"),
    "probabilities": ((P, LABELS), "all 40 rows of the logits look like probabilities"),
    "negative weight": ((LOGITS, LABELS, with_entry(np.ones(40), 1, -1)), "1 of 40 weights are"),
    "odd weights": (
        (LOGITS, LABELS, with_entry(np.ones(40), [1, 2], [np.nan, np.inf])),
        "2 of 40 weights are",
    ),
    "no weight": ((LOGITS, LABELS, np.zeros(40)), "all 40 weights are 0"),
    "too few weights": ((LOGITS, LABELS, np.ones(39)), r"weights must have shape \(40,\)"),
    "empty": ((LOGITS[:0], LABELS[:0]), r"there are no examples, .* shape \(0,\)"),
    "labels too short": ((LOGITS, LABELS[:9]), r"logits \(40, 3\) need labels of shape \(40,\)"),
}


@every_place
@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_refused(place, name):
    given, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        PLACES[place](*given)


@every_place
def test_wrong_types_are_refused(place):
    with pytest.raises(TypeError, match="logits must be floating point, got int"):
        PLACES[place](LOGITS.astype(int), LABELS)
    with pytest.raises(TypeError, match=r"must be integers, got float.*labels\.astype\(int\)"):
        PLACES[place](LOGITS, LABELS.astype(float))


def test_rows_of_weight_0_may_hold_anything():
    weights = with_entry(np.ones(40), [2, 5], 0)
    logits, labels = with_entry(LOGITS, 2, np.nan), with_entry(LABELS, 5, 255)
    expected = metrics.ece(LOGITS, LABELS, weights)
    np.testing.assert_array_equal(metrics.ece(logits, labels, weights), expected)
    fitted = calibrators.temperature.fit(logits, labels, weights)
    assert fitted.temperature == calibrators.temperature.fit(LOGITS, LABELS, weights).temperature


def test_an_impossible_class_is_no_mistake():
    logits = with_entry(LOGITS, slice(4), [[-np.inf, 0, -np.inf], [5, -np.inf, 0]] * 2)
    assert np.isfinite(metrics.ece(logits, LABELS))


@pytest.mark.parametrize(
    ("weights", "scaled"),
    [([0.5, 1, 0, 2.5], True), ([0.5, 0.5, 0, 0.5], True), ([2, 1, 0, 1], False)],
)
def test_rows_of_a_data_set_are_flat_and_their_weights_count(weights, scaled):
    batch = LOGITS[:4, None], LABELS[:4, None], np.float32(weights)[:, None]
    logits, labels, kept = flat_rows("f", *batch, merges=True)
    np.testing.assert_array_equal(logits, LOGITS[:4])
    np.testing.assert_array_equal(labels, LABELS[:4])
    np.testing.assert_array_equal(kept, weights)
    counts = 3 * np.array(weights) / sum(weights) if scaled else weights
    np.testing.assert_allclose(flat_rows("f", *batch)[2], counts, rtol=1e-6)
    assert flat_rows("f", LOGITS[:, :1], np.zeros(40, int))[0].shape == (40, 1)


def test_inside_jit_bad_values_give_nan():
    for logits, labels in ((BAD["NaN"][0]), (LOGITS, with_entry(LABELS, 2, 3))):
        assert jnp.isnan(jax.jit(metrics.nll)(logits, labels))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_probabilities_are_known_in_every_precision(dtype):
    with pytest.raises(ValueError, match="look like probabilities"):
        refuse_probabilities("nll", jnp.asarray(P, dtype))


@pytest.mark.parametrize(
    ("entries", "zeros", "are_probabilities"),
    [
        ([0.4123456, 0.5956], 0, True),  # the sum may be off by .008
        ([0.4123456, 0.5951], 0, True),
        ([0.4123456, 0.5962], 0, False),
        ([1.0075123, 0.0001], 0, True),
        ([0.9985123, 0.0041], 0, True),
        ([1.0085123, 0.0], 0, False),
        ([0.7], 6, True),  # 7 roundings of .05
        ([0.6], 6, False),
        ([0.95], 12, True),
        ([0.93], 12, False),
        ([0.985], 40, True),
        ([0.9841], 400, True),
        ([0.5], 20, True),
        ([0.47], 110, False),  # not off by more than .5, however many roundings
        ([1.0], 2, False),  # zeros and ones are not judged
    ],
)
def test_probabilities_are_known_as_printed(entries, zeros, are_probabilities):
    rows = np.float32([entries + zeros * [0.0]] * 20)
    if are_probabilities:
        with pytest.raises(ValueError, match="look like probabilities"):
            refuse_probabilities("nll", rows)
    else:
        refuse_probabilities("nll", rows)


def test_a_sum_of_1_is_not_enough():
    negative, above = LOGITS - LOGITS.mean(axis=1, keepdims=True) + 1 / 3, 1.2 * np.eye(7)[LABELS]
    for rows in (negative, above):  # of 7 numbers with one digit, the sum may be off by .35
        assert np.isfinite(metrics.ece(np.float32(rows), LABELS))


def test_most_rows_decide():
    """A few rows of NaN do not make logits of probabilities; half of the rows do."""
    rows = np.tile(P, (5, 1))
    with pytest.raises(ValueError, match="all 31 rows"):  # the 32 rows read first have no weight
        refuse_probabilities("nll", rows[:63], np.arange(63) % 2)
    with pytest.raises(ValueError, match="199 of 200 rows"):
        refuse_probabilities("nll", with_entry(rows, 7, -1))
    refuse_probabilities("nll", with_entry(rows, slice(0, 100), -1))
    refuse_probabilities("nll", with_entry(rows, slice(None, None, 2), -1))


def test_a_few_rows_and_zeros_and_ones_are_not_judged():
    refuse_probabilities("nll", P[:19])
    with pytest.raises(ValueError, match="all 20 rows"):
        refuse_probabilities("nll", P, [1.0] * 20 + [np.nan] * 20)  # a list, as users give
    refuse_probabilities("nll", P, np.arange(40) < 19)
    refuse_probabilities("nll", np.eye(3)[LABELS])
    refuse_probabilities("nll", LOGITS)
    refuse_probabilities("nll", np.log(P))


def test_logits_minus_1_are_the_way_out():
    shifted = metrics.ece(P - 1, LABELS)
    np.testing.assert_allclose(shifted, metrics.ece(np.log(np.exp(P)) - 2, LABELS), rtol=1e-5)


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([0.5, 1.5], [1, 0], "1 of 2 confidences are outside .*: divide percent"),
        ([0.5, np.nan], [1, 0], "1 of 2 confidences are outside"),
        ([0.5, 0.5], [1, 0.5], "1 of 2 labels are not among"),
        ([0.5, 0.5], [1, 2], "1 of 2 labels are not among the 2 classes, 2 is one"),
        ([0.5, 0.5], [1], "need one value for each answer"),
    ],
)
def test_stated_confidences_are_judged(confidence, correct, message):
    with pytest.raises(ValueError, match=message):
        metrics.ece(metrics.Stated(np.asarray(confidence), np.asarray(correct)))


def test_a_stated_confidence_holds_its_labels():
    stated = metrics.Stated([0.5, 0.5], [True, False])
    assert metrics.ece(stated) == metrics.ece(metrics.Stated([0.0, 1.0], [0, 1])) == 0
    logits = jnp.log(jnp.float32([[0.75, 0.25], [0.5, 0.5]]))
    np.testing.assert_allclose(two_classes(jnp.float32([[0.25], [0.5]])), logits, rtol=1e-6)
    assert two_classes(logits) is logits
    with pytest.raises(TypeError, match="a Stated holds its labels"):
        metrics.ece(stated, [1, 0])
    with pytest.raises(TypeError, match="logits need labels"):
        metrics.ece(LOGITS)


@pytest.mark.parametrize(
    ("names", "kind"), [([10, 9], "i"), ([True, False], "b"), (np.array(["b", "a"], object), "U")]
)
def test_names_of_clusters_keep_their_kind(names, kind):
    ids = ids_of("clusters", names, (2,))
    assert (ids.dtype.kind, ids.tolist()) == (kind, list(names))
