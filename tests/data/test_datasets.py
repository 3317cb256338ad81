"""Every data set of the catalogue, then digits and Gaussians in particular."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from calib_jax import data
from calib_jax.core.examples import InMemory, Source, wrong_label
from tests.options import assert_recorded

PARTS = ("train", "validation", "test")


@pytest.mark.parametrize("name", data.catalogue())
@pytest.mark.usefixtures("tiny_data")
def test_every_data_set_keeps_its_promises(name):
    dataset, again = data.named(name), data.named(name)
    assert dataset.name == name
    assert dataset.description
    assert len(repr(dataset)) < 100 + len(name)
    assert dataset.num_classes == len(dataset.class_names) > 1
    for part in PARTS:
        source = getattr(dataset, part)
        assert isinstance(source, Source)
        index = np.arange(len(source))[::-1][:50]
        some, same = source[index], getattr(again, part)[index]
        assert jax.tree.all(jax.tree.map(np.array_equal, some, same))
        assert np.issubdtype(some.labels.dtype, np.integer)
        assert wrong_label(some, dataset.num_classes) is None
        prepared = jax.tree.leaves(jax.jit(dataset.prepare)(some.inputs))
        assert all(len(x) == len(index) for x in prepared)
        if dataset.vocabulary is None:
            assert all(jnp.issubdtype(x.dtype, jnp.floating) for x in prepared)
        else:
            for words in words_of(some.inputs):
                assert 0 <= words.min() <= words.max() < len(dataset.vocabulary)


def words_of(inputs):
    """Return the arrays of word numbers; children of a tree are none."""
    by_name = inputs if isinstance(inputs, dict) else {"words": inputs}
    return [leaf for name, leaf in by_name.items() if name != "children"]


def rows(source):
    """Each image as a word of bytes, with its label."""
    images, labels, _ = source.examples
    return [(image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)]


def test_the_parts_of_digits_are_all_digits_once():
    one, other = data.digits(seed=1), data.digits(training_size=100, validation_size=7, seed=2)
    assert [len(getattr(one, part)) for part in PARTS] == [500, 297, 1000]
    assert [len(getattr(other, part)) for part in PARTS] == [100, 7, 1690]
    first, second = (
        sorted(row for part in PARTS for row in rows(getattr(digits, part)))
        for digits in (one, other)
    )
    assert first == second  # another seed and other sizes, the same 1,797 pairs
    assert rows(one.train)[:100] != rows(other.train)
    assert len(data.digits(test_size=3).test) == 3
    images = np.concatenate([getattr(one, part).inputs for part in PARTS])
    assert images.shape == (1797, 8, 8, 1)
    assert (images.dtype, images.min(), images.max()) == (np.uint8, 0, 16)
    prepared = one.prepare(images)
    assert prepared.dtype == jnp.float32
    np.testing.assert_array_equal(prepared, images / 16)


def test_label_noise_replaces_its_share_and_moves_no_image():
    clean = data.digits()
    some, more = (data.digits(label_noise=share) for share in (0.15, 0.6))
    for part in PARTS:
        before, after, later = (getattr(d, part) for d in (clean, some, more))
        np.testing.assert_array_equal(before.inputs, after.inputs)
        changed = after.labels != before.labels
        # Of the 15 % replaced, a tenth draw the class they had; 5 sd.
        replaced = round(0.15 * len(before))
        assert changed.sum() <= replaced
        assert abs(changed.sum() - 0.9 * replaced) < 5 * np.sqrt(0.09 * replaced)
        # More noise replaces the same labels, by the same classes, and others.
        np.testing.assert_array_equal(later.labels[changed], after.labels[changed])
        assert (later.labels != before.labels).sum() > changed.sum()
    all_replaced = data.digits(label_noise=1.0).test.labels
    counts = np.bincount(all_replaced, minlength=10)
    assert len(counts) == 10  # no class beyond the last
    assert scipy.stats.chisquare(counts).pvalue > 1e-6
    assert np.mean(all_replaced == clean.test.labels) < 0.15


SMALL = {"training_size": 5, "validation_size": 5, "test_size": 5}


@pytest.mark.parametrize("means", ["pair", "uniform"])
@pytest.mark.usefixtures("x64")
def test_the_posterior_is_that_of_scipy(means):
    shape = {} if means == "pair" else {"num_classes": 4, "dimensions": 3, "magnitude": 2.0}
    mixture = data.gaussians(means=means, seed=5, **SMALL, **shape)
    if means == "pair":
        centres = np.array([[1.5, 1.5], [-1.5, -1.5]])
    else:
        centres = np.random.default_rng([5, 0]).uniform(-2, 2, (4, 3))
    # Far away as well, where densities underflow.
    inputs = 20 * np.random.default_rng(0).normal(size=(6, 7, centres.shape[1]))
    logs = np.stack(
        [scipy.stats.multivariate_normal(centre).logpdf(inputs) for centre in centres], axis=-1
    )
    expected = logs - scipy.special.logsumexp(logs, axis=-1, keepdims=True)
    np.testing.assert_allclose(mixture.posterior(inputs), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "options", [{"means": "pair"}, {"num_classes": 5, "dimensions": 3, "magnitude": 1.0}]
)
def test_who_knows_the_posterior_is_calibrated(options):
    mixture = data.gaussians(test_size=50_000, seed=3, **options)
    assert isinstance(mixture.test, InMemory)
    probabilities = np.exp(np.asarray(mixture.posterior(mixture.test.inputs), np.float64))
    labels = mixture.test.labels
    true = np.eye(mixture.num_classes)[labels]
    # In each bin of each class: as many of that class as promised, within 5 sd.
    for k in range(mixture.num_classes):
        p = probabilities[:, k]
        bins = np.minimum((p * 10).astype(int), 9)
        gap = np.bincount(bins, true[:, k] - p, minlength=10)
        variance = np.bincount(bins, p * (1 - p), minlength=10)
        assert np.all(np.abs(gap) < 5 * np.sqrt(variance) + 1)
    if options.get("means") == "pair":
        # Bayes: the tail of a normal beyond half the distance of the means.
        error = np.mean(probabilities.argmax(axis=1) != labels)
        bayes = scipy.stats.norm.sf(np.hypot(1.5, 1.5))
        assert abs(error - bayes) < 5 * np.sqrt(bayes / 50_000)


def test_defaults_are_the_recorded_ones():
    assert_recorded("data")
