"""Ranking metrics of a classifier, against pairs and thresholds counted one by one."""

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics

from .laws import assert_laws, value_of
from .reference import softmax


def sample(seed=0, rows=60, num_classes=4, distinct=12):
    """Draw few distinct rows, each several times: many examples are tied."""
    random = np.random.default_rng(seed)
    logits = (2 * random.standard_normal((distinct, num_classes))).astype(np.float32)
    logits = logits[random.integers(0, distinct, rows)]
    guess = np.where(random.random(rows) < 0.5, logits.argmax(axis=1), 0)
    labels = np.where(random.random(rows) < 0.7, guess, random.integers(0, num_classes, rows))
    return logits, labels


def area_of_pairs(score, positive, weight):
    """Return the share of pairs (positive, negative) that are ranked right; a tie is half."""
    won = total = 0.0
    for a, weight_a in zip(score[positive], weight[positive], strict=True):
        for b, weight_b in zip(score[~positive], weight[~positive], strict=True):
            won += weight_a * weight_b * ((a > b) + 0.5 * (a == b))
            total += weight_a * weight_b
    return won / total if total else np.nan


def precision_at_thresholds(score, positive, weight):
    """Return the sum over distinct thresholds of recall gained x precision."""
    everything = weight[positive].sum()
    if not everything:
        return np.nan
    value = recall = 0.0
    for threshold in sorted(set(score[weight > 0]), reverse=True):
        chosen = score >= threshold
        actual = weight[chosen & positive].sum()
        value += (actual / everything - recall) * actual / weight[chosen].sum()
        recall = actual / everything
    return value


def macro(value_of_class, logits, labels, weights):
    """Average over the classes that have a value; of two classes take class 1."""
    p = softmax(logits)
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    values = [value_of_class(p[:, k], labels == k, weights) for k in classes]
    return np.nanmean(values) if not np.isnan(values).all() else np.nan


REFERENCES = {"auroc": area_of_pairs, "average_precision": precision_at_thresholds}
both = pytest.mark.parametrize("name", REFERENCES)


@both
@pytest.mark.parametrize("num_classes", [2, 3, 4])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_pairs_and_thresholds(name, num_classes, weighted):
    logits, labels = sample(num_classes, num_classes=num_classes)
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], 60) if weighted else np.ones(60)
    actual = value_of(metrics.named(name), logits, labels, weights.astype(np.float32))
    wanted = macro(REFERENCES[name], logits, labels, weights)
    np.testing.assert_allclose(actual, wanted, rtol=3e-6)


@both
def test_classes_without_examples_are_left_out(name):
    logits, labels = sample(5)
    labels = np.minimum(labels, 1)
    actual = value_of(metrics.named(name), logits, labels)
    wanted = macro(REFERENCES[name], logits, labels, np.ones(60))
    np.testing.assert_allclose(actual, wanted, rtol=3e-6)
    # One class alone has no negative examples, and all of its examples are found first.
    alone = value_of(metrics.named(name), logits, np.zeros(60, int))
    assert np.isnan(alone) if name == "auroc" else alone == 1


@both
def test_a_perfect_classifier_ranks_perfectly(name):
    labels = np.arange(12) % 3
    logits = 4 * np.eye(3, dtype=np.float32)[labels]
    assert value_of(metrics.named(name), logits, labels) == 1
    assert value_of(metrics.named(name), logits[:, :2], labels % 2 * 0 + (labels == 1)) == 1


def test_probabilities_that_round_to_one_are_still_ranked():
    """The odds e^20, e^30, ... differ, though every probability of class 1 is 1 in float32."""
    logits = np.stack([np.zeros(4), [20.0, 30.0, 40.0, 50.0]], axis=1).astype(np.float32)
    labels = np.array([0, 1, 1, 1])
    np.testing.assert_array_equal(jax.nn.softmax(logits)[:, 1], 1)
    assert value_of(metrics.auroc, logits, labels) == 1
    three = np.concatenate([logits, np.full((4, 1), -9, np.float32)], axis=1)
    assert value_of(metrics.auroc, three, labels) == 1


@both
@pytest.mark.parametrize("rows", [13, 6])
def test_equal_rows_are_tied_in_a_compiled_program(name, rows):
    """Whatever their place: at the end of the rows a compiler may round differently."""
    few = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    logits = few[np.arange(rows) % 2]
    labels = np.arange(rows) // 2 % 4
    wanted = macro(REFERENCES[name], logits, labels, np.ones(rows))
    assert metrics.named(name)(logits, labels) == pytest.approx(wanted, rel=3e-6)


@both
def test_laws(name):
    logits, labels = sample(2, rows=40, num_classes=3)
    assert_laws(metrics.named(name), logits, labels)


@both
def test_bootstrap_is_the_metric_of_the_resampled_data(name):
    from tests.inference.test_bootstrap import resampled_counts

    logits, labels = sample(3, rows=30, num_classes=3)
    key = jax.random.key(0)
    metric = metrics.named(name)
    samples = inference.bootstrap(metric, logits, labels, key=key, num_resamples=2)
    drawn = resampled_counts(key, 30, 2)
    wanted = [macro(REFERENCES[name], logits, labels, weight) for weight in drawn]
    np.testing.assert_allclose(samples, wanted, rtol=3e-6)


def test_an_option_of_ood_auroc_names_it():
    with pytest.raises(TypeError, match=r"has no option 'score' .*; 'ood_auroc' has it"):
        metrics.auroc(*sample(), score="energy")
