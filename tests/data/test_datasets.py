"""Every data set of the catalogue, digits and Gaussians in particular, and splits."""

import hashlib
import json
import pathlib

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.stats
import sklearn.datasets

from calib_jax import data
from calib_jax.core.examples import InMemory, Source
from calib_jax.train.programs import wrong_label
from tests.options import assert_recorded
from tests.test_doctests import docstrings_of
from tests.train.tasks import OnDisk

PARTS = ("train", "validation", "test")


@pytest.mark.parametrize("name", data.catalogue())
@pytest.mark.usefixtures("tiny_data")
def test_every_data_set_keeps_its_promises(name):
    dataset, again = data.named(name), data.named(name)
    assert dataset.name == name
    assert dataset.description
    assert len(repr(dataset)) < 100 + len(name)
    assert dataset.num_classes == len(dataset.class_names) > 1
    assert dataset.brightest in (None, 16 if name == "digits" else 255)
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
    everything, _ = sklearn.datasets.load_digits(return_X_y=True)
    order = np.random.default_rng([1, 0]).permutation(1797)
    np.testing.assert_array_equal(images.reshape(1797, 64), everything[order])


@pytest.mark.parametrize("share", [0.15, 0.6, 1.0])
def test_label_noise_replaces_its_share_and_moves_no_image(share):
    """More noise replaces the same labels, by the same classes, and others."""
    clean, noisy = data.digits(), data.digits(label_noise=share)
    for number, part in enumerate(PARTS, 1):
        before, after = getattr(clean, part), getattr(noisy, part)
        np.testing.assert_array_equal(before.inputs, after.inputs)
        random, expected = np.random.default_rng([0, number]), before.labels.copy()
        hit = random.permutation(len(before))[: round(share * len(before))]
        expected[hit] = random.integers(10, size=len(before), dtype=expected.dtype)[hit]
        np.testing.assert_array_equal(after.labels, expected)


LIMITS = [
    (data.random_color, {"brightness": 1.5}),
    *((data.random_flip, {"probability": 1.5}), (data.places_lt, {"jitter": 1.5})),
    *((data.cityscapes, {"jitter": 1.5}), (data.synthia, {"jitter": 1.5})),
    *((data.digits, {"label_noise": 1.5}), (data.split, {"count": 9, "validation": 1.5})),
    (data.split, {"count": 9, "calibration": 1.5}),
]


@pytest.mark.parametrize(("function", "options"), LIMITS)
def test_shares_above_one_are_refused(function, options):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got 1.5"):
        function(**options)


WHOLE = [(data.cityscapes, "crop"), (data.imagenet, "size"), (data.wmt14, "learned_from")]


@pytest.mark.parametrize(("function", "option"), WHOLE)
def test_halves_are_refused(function, option, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    with pytest.raises(TypeError, match=f"{option} must be an integer, got 9.5"):
        function(**{option: 9.5})


SMALL = {"training_size": 5, "validation_size": 5, "test_size": 5}


@pytest.mark.parametrize("means", ["pair", "uniform"])
@pytest.mark.usefixtures("x64")
def test_the_posterior_is_that_of_scipy(means):
    shape = {} if means == "pair" else {"num_classes": 4, "dimensions": 3, "magnitude": 0.5}
    mixture = data.gaussians(means=means, seed=5, **SMALL, **shape)
    if means == "pair":
        centres = np.array([[1.5, 1.5], [-1.5, -1.5]])
    else:
        centres = np.random.default_rng([5, 0]).uniform(-0.5, 0.5, (4, 3))
    # Far away as well, where densities underflow.
    inputs = 20 * np.random.default_rng(0).normal(size=(6, 7, centres.shape[1]))
    logs = np.stack(
        [scipy.stats.multivariate_normal(centre).logpdf(inputs) for centre in centres], axis=-1
    )
    expected = logs - scipy.special.logsumexp(logs, axis=-1, keepdims=True)
    np.testing.assert_allclose(mixture.posterior(inputs), expected, rtol=1e-10, atol=1e-10)
    # Classes are equally likely, and examples are normal about their class: so this posterior is
    # calibrated.
    for number, part in enumerate(PARTS, 1):
        random, source = np.random.default_rng([5, number]), getattr(mixture, part)
        np.testing.assert_array_equal(source.labels, random.integers(len(centres), size=5))
        expected = centres[source.labels] + random.standard_normal((5, centres.shape[1]))
        np.testing.assert_allclose(source.inputs, expected, rtol=1e-6)


def test_defaults_are_the_recorded_ones():
    assert_recorded("data")


PUBLISHED = {
    **{"cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "svhn": (73_257, 26_032)},
    **{"tiny_imagenet": (100_000, 10_000), "imagenet": (1_281_167, 50_000)},
    **{"places_lt": (69_800, 36_500), "camvid": (468, 233), "cityscapes": (2975, 500)},
    **{"banking77": (10_003, 3080), "clinc150": (18_000, 4500), "newsgroups": (11_314, 7532)},
    **{"sst": (7792, 1821), "multi30k": (30_014, 1000), "wmt14": (3003,)},
}


def test_the_published_numbers_of_examples():
    for name, sizes in PUBLISHED.items():
        assert tuple(np.sum(count) for count in data.about(name).counts.values()) == sizes, name
    assert [len(data.about("tiny_imagenet").counts[part]) for part in ("train", "test")] == [
        200
    ] * 2
    assert data.about("cifar10_c").counts == {"test": (1000,) * 10}
    sizes = {"svhn": 246_316_178, "cityscapes": 11_241_000_000, "imagenet": 154_642_401_280}
    assert {name: data.about(name).size for name in sizes} == sizes  # in bytes


FOLDER = pathlib.Path(__file__).parents[1] / "golden"
RECIPES = json.loads((FOLDER / "recipes.json").read_text(encoding="utf-8"))
RECORDED = {recipe["id"]: recipe for recipe in RECIPES if recipe["kind"] == "split"}


def sha256(index):
    return hashlib.sha256(index.astype("<i8").tobytes()).hexdigest()


def test_cifar_is_split_as_released():
    recorded = RECORDED["split_0"]
    given, values = recorded["hyperparameters"], recorded["values"]
    parts = data.split(given["n"], validation=given["valid_size"], seed=given["random_seed"])
    assert (len(parts.validation), len(parts.train)) == (values["n_val"], values["n_train"])
    assert sha256(parts.validation) == values["sha256_val_int64_le"]
    assert sha256(parts.train) == values["sha256_train_int64_le"]
    assert len(parts.calibration) == 0


def test_calibration_takes_the_first_of_the_validation_part():
    whole, parts = data.split(1000), data.split(1000, calibration=0.25)
    np.testing.assert_array_equal(parts.train, whole.train)
    np.testing.assert_array_equal(
        np.concatenate([parts.calibration, parts.validation]), whole.validation
    )
    assert len(parts.calibration) == 25


def test_a_subset_of_a_subset_looks_up_the_right_examples():
    source = OnDisk(InMemory({"x": 10 * np.arange(100)}, np.arange(100) % 3))
    view = data.subset(data.subset(source, np.arange(50, 100)), np.array([3, 0, 7]))
    assert len(view) == 3
    assert view.source is source  # one lookup, however deep
    some = view[np.array([2, 1])]
    np.testing.assert_array_equal(some.inputs["x"], [570, 500])
    np.testing.assert_array_equal(some.labels, [57 % 3, 50 % 3])
    for wrong in (-1, 3):
        with pytest.raises(ValueError, match=f"has 3 examples, got the index {wrong}"):
            data.subset(view, np.array([0, wrong, 2]))


def drawn_of(labels, per_class, **options):
    return data.some_of_each(np.array(labels), ("cat", "dog"), per_class, name="pets", **options)


def test_some_of_each_class_are_drawn_in_any_order_of_the_labels():
    labels = np.array([0, 1, 0, 1, 1, 0])
    for seed in range(20):
        assert labels[drawn_of(labels, 1, seed=seed)].tolist() in ([0, 1], [1, 0])
        assert np.bincount(labels[drawn_of(labels, 2, seed=seed)]).tolist() == [2, 2]
    ordered = np.argsort(labels, kind="stable")
    expected = np.sort(ordered[drawn_of(labels[ordered], 2, seed=3)])
    np.testing.assert_array_equal(drawn_of(labels, 2, seed=3), expected)
    # Recorded when labels had to be in order.
    assert drawn_of(np.repeat([0, 1], [9, 6]), 2, seed=3).tolist() == [0, 7, 9, 14]


def test_long_tailed_cifar_has_the_published_class_sizes():
    """5,000 examples of each class and a factor of 100: the sizes of CIFAR-10-LT."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))
    kept = data.long_tailed(labels, 10, factor=100)
    sizes = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert np.bincount(labels[kept]).tolist() == sizes
    for k, size in enumerate(sizes):  # the first examples of every class
        np.testing.assert_array_equal(kept[labels[kept] == k], np.flatnonzero(labels == k)[:size])
    np.testing.assert_array_equal(data.long_tailed(labels, 10, factor=1), np.arange(50_000))
    assert data.long_tailed(np.array([1, 0, 1]), 2, factor=1).tolist() == [0, 1]


test_docstring = docstrings_of("data")
