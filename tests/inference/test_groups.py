"""Miscalibrated classes and groups: references, laws, size of tests, honest search, bad input."""

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics

from .simulations import CONFIDENCE, gaps, golden, outcomes, simulated, softmax

KEY = jax.random.key(0)


def data(num_rows=180, seed=0):
    """Return examples in three groups of equal size, which share their compiled programs."""
    logits, labels, _ = simulated(np.random.default_rng(seed), num_rows, 3, 1.2)
    return logits, labels, np.resize(["a", "b", "c"], num_rows)


def test_errors_are_those_of_the_subsets():
    logits, labels, groups = data()
    p = softmax(logits.astype(float))
    for part in inference.group_errors(logits, labels, groups, key=KEY, num_resamples=400):
        rows = groups == part.name
        confidence, hit = p[rows].max(-1), p[rows].argmax(-1) == labels[rows]
        assert part.size == rows.sum()
        assert part.gap == pytest.approx((confidence - hit).mean(), abs=1e-6)
        wanted = sum(abs(total) for _, total in gaps(confidence, hit, 15)) / rows.sum()
        assert part.error == pytest.approx(wanted, abs=1e-6)
        bound = inference.noise_bound(
            metrics.ece, logits[rows], labels[rows], key=KEY, num_resamples=400
        )
        assert part.error == pytest.approx(bound.value, abs=1e-6)
        assert part.floor == pytest.approx(bound.floor, rel=0.1)
        assert part.p_value == pytest.approx(bound.p_value, abs=0.1)
    per_class = np.asarray(metrics.per_class_ece(logits, labels))
    for k, part in enumerate(inference.class_errors(logits, labels, key=KEY, num_resamples=100)):
        assert part.error == pytest.approx(per_class[k], abs=1e-6)
        assert part.gap == pytest.approx((p[:, k] - (labels == k)).mean(), abs=1e-6)
        assert (part.name, part.size) == (str(k), (labels == k).sum())


def test_draws_agree_with_all_outcomes():
    """Check two groups of six of the twelve examples, each with its own p-value."""
    logits, labels = golden("a")
    groups = np.arange(12) % 2
    parts = inference.group_errors(
        logits, labels, groups, key=KEY, num_bins=5, num_resamples=20_000
    )
    for group, part in enumerate(parts):
        confidence = np.array(CONFIDENCE["a"])[groups == group]
        hits, probability = outcomes(confidence)
        values = np.array([sum(abs(t) for _, t in gaps(confidence, hit, 5)) for hit in hits]) / 6
        exact = probability @ (values >= part.error - 1e-6)
        deviation = np.sqrt(exact * (1 - exact) / 20_000)
        assert part.p_value == pytest.approx(exact, abs=4 * deviation)
        assert part.floor == pytest.approx(probability @ values, abs=0.005)
    p_values = sorted(part.p_value for part in parts)
    adjusted = sorted(part.p_holm for part in parts)
    assert adjusted == pytest.approx(
        [min(1, 2 * p_values[0]), min(1, max(p_values[1], 2 * p_values[0]))]
    )


def test_order_copies_and_absent_rows_change_nothing():
    logits, labels, groups = data(40)
    random = np.random.default_rng(1)
    counts = random.integers(0, 4, 40)
    copies = random.permutation(np.repeat(np.arange(40), counts))
    options = {"key": KEY, "num_resamples": 50}
    whole = inference.group_errors(logits[copies], labels[copies], groups[copies], **options)
    absent = np.where(counts[:, None] > 0, logits, np.nan)
    weighted = inference.group_errors(absent, labels, groups, counts, **options)
    for one, other in zip(whole, weighted, strict=True):
        assert one.name == other.name
        np.testing.assert_allclose(other[1:], one[1:], rtol=1e-9)
    whole = inference.class_errors(logits[copies], labels[copies], **options)
    weighted = inference.class_errors(absent, labels, counts, **options)
    for one, other in zip(whole, weighted, strict=True):
        np.testing.assert_allclose(other[1:], one[1:], rtol=1e-6, atol=1e-9)


def test_clusters_of_one_and_of_copies():
    logits, labels, groups = data(120)
    options = {"key": KEY, "num_resamples": 200}
    alone = inference.group_errors(logits, labels, groups, **options)
    each = inference.group_errors(logits, labels, groups, clusters=np.arange(120), **options)
    assert alone == each
    copies = np.repeat(np.arange(120), 20)
    tight = inference.group_errors(
        logits[copies], labels[copies], groups[copies], clusters=copies, **options
    )
    loose = inference.group_errors(logits[copies], labels[copies], groups[copies], **options)
    for part, in_clusters, as_rows in zip(alone, tight, loose, strict=True):
        assert in_clusters.error == pytest.approx(part.error)
        assert in_clusters.floor > 3 * as_rows.floor
        assert in_clusters.p_value > as_rows.p_value
