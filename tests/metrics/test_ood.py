"""Detection of inputs out of distribution, against pairs and thresholds counted one by one."""

import numpy as np
import pytest

from calib_jax import metrics

from .laws import assert_laws, value_of


def sample(seed=0, rows=40, classes=3):
    """Draw logits on a coarse grid, so that many examples have equal scores."""
    rng = np.random.default_rng(seed)
    logits = rng.integers(-2, 3, (rows, classes)).astype(np.float32)
    return logits, rng.integers(0, 2, rows)


def score_of(logits, score):
    """Return the score, rounded: equal logits in another order are a tie."""
    z = logits.astype(np.float64)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    scores = {
        "entropy": -(p * np.log(p)).sum(axis=1),
        "max_confidence": -p.max(axis=1),
        "energy": -np.log(np.exp(z).sum(axis=1)),
    }
    return np.round(scores[score], 9)


def pairs_won(scores, out):
    """Return the share of pairs (out, in) in which the one out scores higher; a tie is half."""
    wins = [(a > b) + 0.5 * (a == b) for a in scores[out == 1] for b in scores[out == 0]]
    return np.mean(wins)


def average_precision(scores, wanted):
    """Return sum over distinct thresholds of recall gained x precision."""
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = wanted[scores >= threshold]
        now = chosen.sum() / wanted.sum()
        total, recall = total + (now - recall) * chosen.mean(), now
    return total


def rates(scores, out):
    """Return (false, true) positive rates of every distinct threshold."""
    return [
        (np.mean(scores[out == 0] >= t), np.mean(scores[out == 1] >= t))
        for t in sorted(set(scores), reverse=True)
    ]


def canonical(logits):
    """Sort each row: no score asks which class it is, and equal scores are equal to the bit."""
    return np.sort(logits, axis=1)


@pytest.mark.parametrize("score", ["entropy", "max_confidence", "energy"])
def test_equals_what_pairs_and_thresholds_say(score):
    logits, out = sample()
    logits = canonical(logits)
    scores = score_of(logits, score)
    assert len(set(scores)) < len(scores)

    actual = value_of(metrics.ood_auroc, logits, out, score=score)
    np.testing.assert_allclose(actual, pairs_won(scores, out), rtol=1e-6)
    actual = value_of(metrics.ood_auroc, logits, out, score=score, positive="in")
    np.testing.assert_allclose(actual, pairs_won(-scores, 1 - out), rtol=1e-6)
    actual = value_of(metrics.ood_aupr, logits, out, score=score)
    np.testing.assert_allclose(actual, average_precision(scores, out), rtol=1e-6)
    actual = value_of(metrics.ood_aupr, logits, out, score=score, positive="in")
    np.testing.assert_allclose(actual, average_precision(-scores, 1 - out), rtol=1e-6)
    for tpr in (0.5, 0.95, 1.0):
        for positive, points in (("out", rates(scores, out)), ("in", rates(-scores, 1 - out))):
            wanted = min(false for false, true in points if true >= tpr)
            chosen = {"score": score, "tpr": tpr, "positive": positive}
            actual = value_of(metrics.ood_fpr95, logits, out, **chosen)
            np.testing.assert_allclose(actual, wanted, rtol=1e-6)


@pytest.mark.parametrize("positive", ["out", "in"])
def test_the_curve_passes_through_every_threshold(positive):
    logits, out = sample(1)
    logits = canonical(logits)
    curve = value_of(metrics.ood_roc_curve, logits, out, positive=positive)
    assert {column.shape for column in curve} == {(len(out) + 1,)}
    actual = {(round(float(f), 5), round(float(t), 5)) for f, t, _ in zip(*curve, strict=True)}
    scores = score_of(logits, "entropy")
    sign = 1 if positive == "out" else -1
    points = rates(sign * scores, out if positive == "out" else 1 - out)
    assert actual == {(0.0, 0.0)} | {(round(f, 5), round(t, 5)) for f, t in points}
    assert np.all(np.diff(sign * curve.threshold[1:]) <= 0)
    assert curve.threshold[0] == sign * np.inf


@pytest.mark.parametrize(
    ("metric", "options"),
    [
        (metrics.ood_auroc, {}),
        (metrics.ood_auroc, {"score": "max_confidence"}),
        (metrics.ood_auroc, {"score": "energy"}),
        (metrics.ood_aupr, {}),
        (metrics.ood_aupr, {"positive": "in"}),
        (metrics.ood_fpr95, {"tpr": 0.8}),
        (metrics.ood_fpr95, {"tpr": 0.8, "positive": "in"}),
    ],
)
def test_laws(metric, options):
    assert_laws(metric, *sample(2), wrong_label=2, **options)


def test_a_score_that_separates_is_perfect():
    logits = np.zeros((10, 2), np.float32)
    logits[:6, 0] = np.arange(5, 11)
    logits[6:, 1] = np.linspace(0, 0.5, 4)
    batch = metrics.in_and_out(logits[:6], logits[6:])
    assert value_of(metrics.ood_auroc, *batch) == 1
    assert value_of(metrics.ood_aupr, *batch) == 1
    assert value_of(metrics.ood_aupr, *batch, positive="in") == 1
    assert value_of(metrics.ood_fpr95, *batch) == 0


def test_saturated_scores_know_nothing():
    """Thousands of confidences of exactly 1 have no order, whatever order the rows are in."""
    logits = np.tile(np.array([[200.0, 0.0]], np.float32), (10, 1))
    out = np.arange(10) < 4
    batch = (logits, out.astype(int))
    assert value_of(metrics.ood_auroc, *batch) == 0.5
    np.testing.assert_allclose(value_of(metrics.ood_aupr, *batch), 0.4, rtol=1e-6)
    assert value_of(metrics.ood_fpr95, *batch) == 1


@pytest.mark.parametrize("metric", [metrics.ood_auroc, metrics.ood_fpr95], ids=lambda m: m.name)
@pytest.mark.parametrize("label", [0, 1])
def test_one_kind_alone_has_no_value(metric, label):
    logits, _ = sample(rows=10, classes=2)
    assert np.isnan(value_of(metric, logits, np.full(10, label)))


def test_nineteen_of_twenty_are_95_percent():
    """A threshold that finds exactly the share asked for counts as finding it."""
    logits = np.zeros((40, 3), np.float32)
    logits[:, 0] = np.linspace(1, 5, 40)
    out = (np.arange(40) < 19).astype(int)
    out[39] = 1  # the 20th example out of distribution looks the surest of all
    assert value_of(metrics.ood_fpr95, logits, out) == 0


def test_sets_of_other_classes_do_not_join():
    with pytest.raises(ValueError, match=r"same classes, got shapes \(2, 3\) and \(2, 4\)"):
        metrics.in_and_out(np.zeros((2, 3)), np.zeros((2, 4)))


def test_options_are_checked():
    logits, out = sample(rows=10)
    with pytest.raises(ValueError, match="did you mean 'entropy'"):
        value_of(metrics.ood_auroc, logits, out, score="entrpy")
    with pytest.raises(ValueError, match="positive must be one of"):
        value_of(metrics.ood_aupr, logits, out, positive="both")
    with pytest.raises(ValueError, match="tpr must lie in"):
        value_of(metrics.ood_fpr95, logits, out, tpr=95)
