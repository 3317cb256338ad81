"""The laws of every metric about rows and weights, for the tests of a family."""

import jax
import jax.numpy as jnp
import numpy as np


def value_of(metric, logits, labels, weights=None, **options):
    """Compute a metric without compiling it whole, and without the refusals of its call."""
    weights = None if weights is None else jnp.asarray(weights)
    metric = metric.with_options(**options)
    return metric.value(metric.stat(jnp.asarray(logits), jnp.asarray(labels), weights))


def assert_same(actual, wanted, rtol=2e-5, atol=2e-6):
    """Compare numbers, or trees of them; NaN equals NaN."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), actual, wanted
    )


def assert_laws(metric, logits, labels, *, wrong_label=255, **options):
    """Check all laws on twice as many copies as there are rows: few shapes, few compilations."""
    metric = metric.with_options(**options)
    rng = np.random.default_rng(0)
    size = 2 * len(labels)
    copies = np.bincount(rng.integers(0, len(labels), size), minlength=len(labels))
    assert {0, 1, 2, 3} <= set(copies)
    logits_of_copies, labels_of_copies = (np.repeat(x, copies, axis=0) for x in (logits, labels))
    whole = value_of(metric, logits_of_copies, labels_of_copies)
    assert not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(whole))

    # weight k equals k copies; weight 0 equals absent, whatever label or logits are there; and
    # the order of the rows does not matter
    absent = np.full(len(labels), wrong_label), np.full_like(logits, np.nan)
    order = rng.permutation(size)
    weighted = (
        np.concatenate([logits, absent[1]])[order],
        np.concatenate([labels, absent[0]])[order],
        np.concatenate([copies, 0 * copies])[order].astype(np.float32),
    )
    assert_same(value_of(metric, *weighted), whole)
    # merge of parts equals the whole
    first, second = ([jnp.asarray(column[half::2]) for column in weighted] for half in (0, 1))
    assert_same(metric.value(metric.stat(*first) + metric.stat(*second)), whole)

    # no weight at all, a label out of range, a NaN: never a number
    logits, labels, weights = weighted
    counting = np.arange(size) == np.argmax(weights)
    for broken in (
        (logits, labels, np.zeros_like(weights)),
        (logits, np.where(counting, wrong_label, labels), weights),
        (np.where(counting[:, None], np.float32(np.nan), logits), labels, weights),
    ):
        assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(value_of(metric, *broken)))
