"""Rows of equal weight are sorted by one number each, and all others by an order of indices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.core.statistics import Rows
from calib_jax.metrics.contract.terms import Ranked, ScoredClasses


@jax.jit
def sorted_rows(score, hit, weight):
    ranked = Ranked.of(Rows({"score": score, "hit": hit, "weight": weight}))
    return ranked.score, ranked["hit"], ranked.weight


def sample(score, weight=1.0, absent=0, seed=0):
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
    rows = sample(score, weight, absent)
    for actual, column in zip(sorted_rows(*rows), expected(*rows, by_hit=True), strict=True):
        np.testing.assert_array_equal(actual, column)


@pytest.mark.parametrize("reason", ["negative", "nan", "half a hit", "weights"])
def test_other_rows_are_sorted_by_index(reason):
    scores, hits, weights = sample({"negative": -0.5, "nan": np.nan}.get(reason, 0.5), absent=3)
    hits[20] = 0.5 if reason == "half a hit" else hits[20]
    weights[30] = 2 if reason == "weights" else 1
    columns = expected(scores, hits, weights, by_hit=False)
    for actual, column in zip(sorted_rows(scores, hits, weights), columns, strict=True):
        np.testing.assert_array_equal(actual, column)


def test_the_gradient_reaches_the_scores():
    scores, hits, weights = sample(0.5, absent=3)
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
    classes = ScoredClasses.of(Rows({"scores": scores, "column": column, "weight": weights}))
    for index in jnp.arange(3):
        one, one_positive = jax.jit(ScoredClasses.ranked)(classes, index)
        all_, all_positive = classes.sorted_once().ranked(index)
        np.testing.assert_array_equal(one.score, all_.score)
        np.testing.assert_array_equal(one.weight, all_.weight)
        np.testing.assert_array_equal(one_positive, all_positive)
