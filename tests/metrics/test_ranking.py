"""Ranking metrics, against pairs and thresholds counted one by one; the order of equal rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import metrics
from calib_jax.core.statistics import Rows
from calib_jax.metrics.terms import Ranked, ScoredClasses, ranked_if_scored

from . import value_of
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


def rates(score, positive, weight):
    """Return recall, false positive rate and precision at every distinct threshold."""
    rows = []
    for threshold in sorted(set(score[weight > 0]), reverse=True):
        chosen = score >= threshold
        found, alarms = weight[chosen & positive].sum(), weight[chosen & ~positive].sum()
        totals = weight[positive].sum(), weight[~positive].sum()
        with np.errstate(invalid="ignore"):
            rows.append((found / totals[0], alarms / totals[1], found / (found + alarms)))
    return np.array(rows)


def precision_at_thresholds(score, positive, weight):
    """Return the sum over distinct thresholds of recall gained x precision."""
    recall, _, precision = rates(score, positive, weight).T
    return np.sum(np.diff(recall, prepend=0) * precision)


def macro(value_of_class, logits, labels, weights):
    """Average over the classes that have a value; of two classes take class 1."""
    p = softmax(logits)
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    values = [value_of_class(p[:, k], labels == k, weights) for k in classes]
    return np.nanmean(values) if not np.isnan(values).all() else np.nan


REFERENCES = {"auroc": area_of_pairs, "average_precision": precision_at_thresholds}
both = pytest.mark.parametrize("name", REFERENCES)


@both
@pytest.mark.parametrize(("num_classes", "weighted"), [(2, False), (2, True), (3, True), (4, True)])
def test_classes_against_the_rest(name, num_classes, weighted):
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


def test_probabilities_that_round_to_one_are_still_ranked():
    """The odds e^20, e^30, ... differ, though every probability of class 1 is 1 in float32."""
    logits = np.stack([np.zeros(4), [20.0, 30.0, 40.0, 50.0]], axis=1).astype(np.float32)
    labels = np.array([0, 1, 1, 1])
    np.testing.assert_array_equal(jax.nn.softmax(logits)[:, 1], 1)
    assert value_of(metrics.auroc, logits, labels) == 1
    assert value_of(metrics.average_precision, logits, 1 - labels) == 1 / 4  # found last
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


# --------------------------------------------------------------------------------------------
# Detection of inputs out of distribution.


def in_and_out(seed=0, rows=40):
    """Draw rows on a coarse grid, sorted, so that equal scores are equal to the bit."""
    random = np.random.default_rng(seed)
    logits = np.sort(random.integers(-2, 3, (rows, 3)).astype(np.float32), axis=1)
    return logits, random.integers(0, 2, rows)


def score_of(logits, score):
    z = logits.astype(np.float64)
    p = softmax(z)
    scores = {
        "entropy": -(p * np.log(p)).sum(axis=1),
        "max_confidence": -p.max(axis=1),
        "energy": -np.log(np.exp(z).sum(axis=1)),
    }
    return np.round(scores[score], 9)


@pytest.mark.parametrize(
    ("score", "positive"), [("entropy", "out"), ("max_confidence", "out"), ("energy", "in")]
)
def test_out_of_distribution_scores(score, positive):
    logits, out = in_and_out()
    sign = 1 if positive == "out" else -1
    scores, found = sign * score_of(logits, score), out == (positive == "out")
    assert len(set(scores)) < len(scores)
    recall, alarms, _ = rates(scores, found, np.ones(40)).T
    wanted = {
        "ood_auroc": area_of_pairs(scores, found, np.ones(40)),
        "ood_aupr": precision_at_thresholds(scores, found, np.ones(40)),
        "ood_fpr95": alarms[recall >= 0.95].min(),
    }
    options = {"score": score, "positive": positive}
    names = (*wanted, "ood_roc_curve")
    several = {name: metrics.named(name, **options) for name in names}
    values = metrics.values_of(several, logits, out)
    for name, value in wanted.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-6)
    curve = values["ood_roc_curve"]
    points = {(round(float(f), 5), round(float(t), 5)) for f, t, _ in zip(*curve, strict=True)}
    assert points == {(0.0, 0.0), *zip(alarms.round(5), recall.round(5), strict=True)}
    assert {column.shape for column in curve} == {(41,)}
    assert curve.threshold[0] == sign * np.inf
    np.testing.assert_allclose(np.sort(scores)[::-1], sign * curve.threshold[1:], rtol=1e-5)


@pytest.mark.parametrize("surest_is_out", [0, 1])
def test_a_curve_ends_where_everything_is_found(surest_is_out):
    logits = np.array([[1, 0], [2, 0], [3, 0]], np.float32)
    out = np.abs(surest_is_out - np.array([1, 1, 0]))
    curve = value_of(metrics.ood_roc_curve, logits, out)
    assert curve.false_positive_rate[-1] == curve.true_positive_rate[-1] == 1


@pytest.mark.parametrize("label", [0, 1])
def test_one_kind_alone_has_no_value(label):
    logits, _ = in_and_out(rows=10)
    for metric in (metrics.ood_auroc, metrics.ood_fpr95):
        assert np.isnan(value_of(metric, logits, np.full(10, label)))


def test_nineteen_of_twenty_are_95_percent():
    """A threshold that finds exactly the share asked for counts as finding it."""
    logits = np.zeros((40, 3), np.float32)
    logits[:, 0] = np.linspace(1, 5, 40)
    out = (np.arange(40) < 19).astype(int)
    out[39] = 1  # the 20th example out of distribution looks the surest of all
    assert value_of(metrics.ood_fpr95, logits, out) == 0


def test_sets_are_joined():
    inside, outside = np.zeros((2, 3, 2), np.float32), np.ones((3, 2), np.float32)
    logits, labels = metrics.in_and_out(inside, outside)
    assert logits.shape == (9, 2)
    np.testing.assert_array_equal(labels, [0] * 6 + [1] * 3)


@jax.jit
def sorted_rows(score, hit, weight):
    ranked = Ranked.of(Rows({"score": score, "hit": hit, "weight": weight}))
    return ranked.score, ranked["hit"], ranked.weight


def scored_rows(score, weight=1.0, absent=0, seed=0):
    """Return 64 rows with this score in some of them, and the first ones absent."""
    random = np.random.default_rng(seed)
    scores = random.integers(0, 9, 64).astype(np.float32) / 8  # ties
    scores[10:12] = score
    hits = random.integers(0, 2, 64).astype(np.float32)
    weights = np.full(64, weight, np.float32)
    weights[:absent] = 0
    return scores, hits, weights


def expected(scores, hits, weights, by_hit):
    """Sort with NumPy: absent rows last, then by score; equal scores by hit, or as they came."""
    absent = weights <= 0
    scores, hits = np.where(absent, np.inf, scores), np.where(absent, 0, hits)
    order = np.lexsort((hits, scores, absent)) if by_hit else np.argsort(scores, kind="stable")
    return scores[order], hits[order], weights[order]


@pytest.mark.parametrize("score", [0.0, -0.0, 1e-45, np.nextafter(np.float32(1), 2), 3e38, np.inf])
@pytest.mark.parametrize(("weight", "absent"), [(1.0, 0), (0.3, 7), (5.0, 64)])
def test_one_key_per_row(score, weight, absent):
    rows = scored_rows(score, weight, absent)
    for actual, column in zip(sorted_rows(*rows), expected(*rows, by_hit=True), strict=True):
        np.testing.assert_array_equal(actual, column)


@pytest.mark.parametrize("reason", ["negative", "nan", "half a hit", "weights"])
def test_other_rows_are_sorted_by_index(reason):
    scores, hits, weights = scored_rows(
        {"negative": -0.5, "nan": np.nan}.get(reason, 0.5), absent=3
    )
    hits[20] = 0.5 if reason == "half a hit" else hits[20]
    weights[30] = 2 if reason == "weights" else 1
    columns = expected(scores, hits, weights, by_hit=False)
    for actual, column in zip(sorted_rows(scores, hits, weights), columns, strict=True):
        np.testing.assert_array_equal(actual, column)


def test_the_gradient_reaches_the_scores():
    scores, hits, weights = scored_rows(0.5, absent=3)
    slope = jax.grad(lambda score: jnp.sum(sorted_rows(score, hits, weights)[0][:10] ** 2))(scores)
    lowest = np.argsort(np.where(weights > 0, scores, np.inf), kind="stable")[:10]
    wanted = np.zeros(64)
    wanted[lowest] = 2 * scores[lowest]
    np.testing.assert_allclose(slope, wanted)


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_classes_sorted_at_once_and_one_by_one(weight):
    """Unequal weights make the one sort by index; equal ones by key."""
    random = np.random.default_rng(1)
    scores, column = random.random((64, 3)).astype(np.float32), random.integers(0, 3, 64)
    weights = np.where(np.arange(64) == 5, weight, 1).astype(np.float32)
    classes = ranked_if_scored(Rows({"scores": scores, "column": column, "weight": weights}))
    for index in jnp.arange(3):
        one, one_positive = jax.jit(ScoredClasses.ranked)(classes, index)
        all_, all_positive = classes.sorted_once().ranked(index)
        np.testing.assert_array_equal(one.score, all_.score)
        np.testing.assert_array_equal(one.weight, all_.weight)
        np.testing.assert_array_equal(one_positive, all_positive)
