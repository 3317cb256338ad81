"""Venn-Abers calibration against isotonic regressions that are fitted anew for every example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from calib_jax.calibrators import venn_abers
from tests.calibrators.members import problem
from tests.calibrators.test_binned import pav


def refitted(score, target, weight, new):
    """Fit isotonic regressions with the new example and each answer; return p0 and p1."""
    both = []
    for answer in (0, 1):
        knots, values = pav(np.append(score, new), np.append(target, answer), np.append(weight, 1))
        both.append(values[np.flatnonzero(knots == new)[0]])
    return both


def question(logits, labels):
    """Return the probability of class 1 of two, or of the predicted class, and the answer."""
    p = scipy.special.softmax(logits, axis=1)
    if logits.shape[1] == 2:
        return p[:, 1], labels == 1
    return p.max(axis=1), p.argmax(axis=1) == labels


@pytest.mark.parametrize("num_classes", [2, 4])
def test_it_is_two_isotonic_regressions_for_each_example(num_classes, x64):
    logits, labels = problem(80, num_classes, seed=3, dtype=np.float64)
    logits = np.round(2 * logits) / 2  # some scores are equal
    new = np.concatenate([logits[:20], 1.3 * problem(40, num_classes, 4, dtype=np.float64)[0]])
    new = np.concatenate([new, 30 * new[-5:]])  # beyond all fitted scores
    weights = np.random.default_rng(0).choice([0.0, 1.0, 1.5, 3.0], 80)
    params = venn_abers.fit(logits, labels, weights)
    score, target = question(logits, labels)
    # Compute the scores alike, so that equal ones stay equal.
    score, asked = (np.round(s, 12) for s in (score, question(new, np.zeros(len(new)))[0]))
    used = weights > 0
    expected = [refitted(score[used], target[used], weights[used], s) for s in asked]
    p0, p1 = np.transpose(expected)
    actual = venn_abers.bounds(params, jnp.asarray(new))
    np.testing.assert_allclose(actual[0], p0, atol=1e-9)
    np.testing.assert_allclose(actual[1], p1, atol=1e-9)
    merged = p1 / (1 - p0 + p1)
    answer = np.exp(venn_abers.apply(params, new))
    if num_classes == 2:
        np.testing.assert_allclose(answer[:, 1], merged, rtol=1e-9)
        return
    p = scipy.special.softmax(new, axis=1)
    top = p.argmax(axis=1)
    np.testing.assert_allclose(answer[np.arange(len(new)), top], merged, rtol=1e-9)
    rest = np.where(np.arange(num_classes) == top[:, None], 0, answer)
    share = np.where(np.arange(num_classes) == top[:, None], 0, p)
    share /= share.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(rest, share * (1 - merged)[:, None], rtol=1e-9)


@pytest.mark.parametrize("hits", ["all", "none", "falling", "rising"])
def test_the_hull_in_its_extreme_cases(hits, x64):
    count = np.arange(80)
    target = {"all": count >= 0, "none": count < 0, "falling": count < 40, "rising": count >= 40}
    target = target[hits]
    score = (count + 1) / 82
    logits = np.log(np.stack([1 - score, score], axis=1))
    params = venn_abers.fit(logits, target.astype(int))
    expected = [refitted(score, target, np.ones(80), s) for s in score]
    actual = np.transpose(venn_abers.bounds(params, jnp.asarray(logits)))
    np.testing.assert_allclose(actual, expected, atol=1e-9)
    assert (actual[:, 0] <= actual[:, 1]).all()


def test_single_precision_counts_exactly():
    """Sums of counts are exact, so only the last digits of the slopes differ."""
    logits, labels = problem(80, 2, seed=5)
    params = venn_abers.fit(logits, labels)
    score, target = question(np.asarray(logits, np.float64), labels)
    expected = [refitted(score, target, np.ones(80), s) for s in score]
    actual = np.transpose(venn_abers.bounds(params, jnp.asarray(logits)))
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    gap = params.p1 - params.p0
    assert (gap > 0).all()


def test_other_numbers_of_classes_are_refused_or_nan_inside_jit():
    params = venn_abers.fit(*problem(80, 2))
    logits = jnp.asarray(problem()[0])
    with pytest.raises(ValueError, match=r"fitted on 2 classes and the logits .* have 3"):
        venn_abers.bounds(params, logits)
    assert np.isnan(jax.jit(venn_abers.apply)(params, logits)).all()
