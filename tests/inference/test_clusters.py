"""Resampling whole clusters: the draws, the width and coverage of intervals, the refusals."""

import jax
import numpy as np
import pytest

from calib_jax import inference, metrics

from .test_bootstrap import sample

KEY = jax.random.key(5)
NUM_CLUSTERS = 120
SIZES = np.random.default_rng(0).permutation(np.arange(NUM_CLUSTERS) % 8 + 1)  # 1 to 8 examples
ACCURACY = 0.7


def clustered(correlation, seed):
    """Return logits, labels, weights and clusters, with correlated hits within a cluster.

    With probability sqrt(correlation) an example has the hit of its cluster, else one of its own.
    """
    random = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(NUM_CLUSTERS), SIZES)
    shared = random.random(NUM_CLUSTERS)[cluster]
    takes_shared = random.random(len(cluster)) < np.sqrt(correlation)
    hit = np.where(takes_shared, shared, random.random(len(cluster))) < ACCURACY
    weights = random.choice([0.5, 1.0, 2.0], len(cluster)).astype(np.float32)
    logits = np.tile(np.float32([2, 0]), (len(cluster), 1))
    order = random.permutation(len(cluster))  # clusters need not be contiguous
    return logits, np.where(hit, 0, 1)[order], weights[order], cluster[order]


def test_clusters_of_one_example_are_the_examples():
    """Also by class, in estimates and in pairs: the same draws give the same samples."""
    logits, labels = sample(num_rows=60)
    ids = np.arange(60)[::-1] * 3
    given = {"key": KEY, "num_resamples": 20}
    for by_class in (False, True):
        # Ids are sorted: the last row is the first cluster.
        rows = inference.bootstrap(
            metrics.nll, logits[::-1], labels[::-1], by_class=by_class, **given
        )
        clusters = inference.bootstrap(
            metrics.nll, logits, labels, by_class=by_class, clusters=ids, **given
        )
        np.testing.assert_allclose(clusters, rows, rtol=1e-5)
    estimate = inference.estimates(metrics.nll, logits, labels, clusters=ids[::-1], **given)
    pair = inference.paired_bootstrap(
        metrics.nll, logits, 2 * logits, labels, clusters=ids[::-1], **given
    )
    wanted = inference.estimates(metrics.nll, logits, labels, **given)
    np.testing.assert_allclose(estimate[:3], wanted[:3], rtol=1e-5)
    wanted = inference.paired_bootstrap(metrics.nll, logits, 2 * logits, labels, **given)
    np.testing.assert_allclose(pair.samples, wanted.samples, atol=1e-6)


def test_by_class_keeps_the_number_of_clusters_of_every_class():
    logits, labels = sample(num_rows=60)
    ids = np.arange(60) // 3
    labels = np.random.default_rng(0).integers(0, 3, 20)[ids]
    counts = inference.bootstrap(
        metrics.confusion_counts, logits, labels, key=KEY, num_resamples=6, by_class=True,
        clusters=ids,
    )  # fmt: skip
    per_class = np.bincount(labels, minlength=4)
    np.testing.assert_array_equal(counts.sum(axis=-1), np.tile(per_class, (6, 1)))
    assert len(np.unique(counts, axis=0)) > 1


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_the_spread_is_that_of_the_sums_of_clusters(correlation):
    """Check the standard deviation of a ratio against its linearised form, in NumPy."""
    *data, cluster = clustered(correlation, seed=1)
    _, labels, weights = data
    residual = weights * ((labels == 0) - np.average(labels == 0, weights=weights))
    wanted = np.sqrt((np.bincount(cluster, residual) ** 2).sum()) / weights.sum()
    samples = inference.bootstrap(metrics.accuracy, *data, key=KEY, clusters=cluster)
    np.testing.assert_allclose(np.std(samples), wanted, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_intervals_cover_at_their_nominal_rate(correlation):
    """Check 500 draws, whose standard error is 1.3 %; rows drawn alone cover too rarely."""
    inside = {"clusters": 0, "rows": 0}
    for seed in range(500):
        *data, cluster = clustered(correlation, seed)
        for kind, ids in (("clusters", cluster), ("rows", None)):
            low, high = inference.estimates(
                metrics.accuracy, *data, key=jax.random.key(seed), num_resamples=300, clusters=ids
            )[1:3]
            inside[kind] += bool(low <= ACCURACY <= high)
    assert 0.86 <= inside["clusters"] / 500 <= 0.94
    assert inside["rows"] / 500 < {0.0: 0.94, 0.5: 0.82, 1.0: 0.7}[correlation]
