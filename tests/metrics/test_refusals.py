"""Wrong input raises an error with the value and the way out; inside `jit` it gives NaN."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from calib_jax import metrics

from . import value_of

LOGITS = np.asarray([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.5], [0.0, 1.0, 0.0]], "float32")
LABELS = np.asarray([0, 1, 2, 1])
P = np.full((20, 2), 0.5, np.float32)


def with_entry(array, index, value):
    """Return a copy with one entry replaced."""
    array = np.array(array)
    array[index] = value
    return array


# Arguments of a metric of the top label, and what the error says.
REFUSED = {
    "NaN": ((with_entry(LOGITS, (1, 0), np.nan), LABELS), "1 of 4 rows have NaN.*weight 0"),
    "label": ((LOGITS, with_entry(LABELS, 1, 255)), "1 of 4 labels .* 3 classes, 255.*weight 0"),
    "negative label": ((LOGITS, with_entry(LABELS, 3, -1)), "1 of 4 labels .* -1 is one"),
    "probabilities": ((P * 1.0, np.zeros(20, int)), "all 20 rows .* look like probabilities"),
    "weight": ((LOGITS, LABELS, [1, -1, 1, np.nan]), "2 of 4 weights are negative"),
    "no weight": ((LOGITS, LABELS, np.zeros(4)), "all 4 weights are 0"),
    "lengths": ((LOGITS, LABELS[:3]), r"logits \(4, 3\) need .*labels of shape \(4,\), got \(3,\)"),
    "lengths of JAX arrays": (
        (jnp.asarray(LOGITS), jnp.asarray(LABELS[:3], jnp.int32)),
        r"logits \(4, 3\) need .*labels of shape \(4,\), got \(3,\)",
    ),
    "weights of another length": ((LOGITS, LABELS, np.ones(3)), r"shape \(4,\).*got \(3,\)"),
    "one-hot labels": ((LOGITS, np.eye(3, dtype=int)[LABELS]), r"labels of shape \(4,\)"),
    "classes first": ((np.zeros((2, 3, 8, 8)), np.zeros((2, 8, 8), int)), "moveaxis"),
    "one logit": ((np.zeros(4, np.float32), LABELS), "calib_jax.binary"),
    "integer logits": ((LABELS, LOGITS), "must be floating point.*swapped"),
    "unknown option": ((LOGITS, LABELS), {"bins": 10}, "no option 'bins'.*did you mean 'num_bins'"),
    "a part of a class": (
        (LOGITS, LABELS),
        {"excluded_class": 0.5},
        "excluded_class must be an int",
    ),
    "no bins": ((LOGITS, LABELS), {"num_bins": 0}, "num_bins must be at least 1, got 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_input_is_refused(case, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    data, *options, sentence = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=sentence):
        metrics.ece(*data, **dict(*options))


def test_costs_and_counts_have_a_row_or_a_number_for_each_class():
    with pytest.raises(TypeError, match="costs must be real numbers, got lists of different"):
        metrics.expected_cost(LOGITS, LABELS, costs=[[1, 2], [3], [1, 2]])
    with pytest.raises(ValueError, match=r"2 counts for 3 classes\."):
        metrics.shot_accuracy([500, 5])(LOGITS, LABELS)


def test_inside_jit_wrong_values_are_nan():
    for case in ("NaN", "negative label", "no weight"):
        assert np.isnan(jax.jit(metrics.accuracy)(*REFUSED[case][0]))


@pytest.mark.parametrize("given", [[metrics.ece], "ece", {}, {"ece": "ece"}, LOGITS])
def test_metrics_have_names(given, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"mapping from names to metrics, got .*named\(NAME\)"):
        metrics.values_of(given, LOGITS, LABELS)
    with pytest.raises(TypeError, match="must be a metric or a mapping"):
        metrics.Stream(given)


def test_names_have_a_nearest_name():
    with pytest.raises(ValueError, match=r"did you mean 'ece'"):
        metrics.named("eec")
    with pytest.raises(AttributeError, match="did you mean 'adaptive_ece'"):
        _ = metrics.adaptiv_ece
    with pytest.raises(AttributeError, match=r"'mcnemar', which is in calib_jax\.inference"):
        _ = metrics.mcnemar


CHOICES = ("edges", "binning", "classes", "score", "positive", "kind", "estimator")
WRONG = dict.fromkeys(CHOICES, ("nonsense", "must be one of .*, got 'nonsense'"))
WRONG |= {
    **{"num_bins": (0, "num_bins must be at least 1, got 0"), "k": (0, "at least 1, got 0")},
    **{
        "level": (90, "level must be a fraction"),
        "coverage": (90, r"coverage must lie in \[0, 1\]"),
    },
    **{"risk": (5, "risk must lie in"), "threshold": (99, "threshold must lie in")},
    **{"bandwidth": (0, "bandwidth must be greater than 0"), "p": (0.5, "p must be at least 1")},
    **{"costs": (((0, 1),), "costs must be finite"), "abstain_cost": (np.inf, "must be a finite")},
}


@pytest.mark.parametrize("option", WRONG)
def test_every_metric_validates_its_options(option):
    value, message = WRONG[option]
    members = [one for one in metrics.catalogue().values() if option in one.defaults()]
    assert members
    for metric in members:
        with pytest.raises(ValueError, match=message):
            value_of(metric, jnp.asarray(LOGITS), LABELS % 2, **{option: value})
