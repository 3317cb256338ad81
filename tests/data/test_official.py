"""Data sets from their authors' own files: exact pixels, classes and order, honest errors."""

import dataclasses
import os
import pickle
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io

from calib_jax import data
from calib_jax.core.files import reading
from calib_jax.data.formats import archives, files
from calib_jax.data.images import decoded
from tests.data import tiny

CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def assert_split(dataset, train, test, *, seed=1):
    """The parts are those of the papers' split of what was written, to the last pixel."""
    images, labels = train
    order = np.arange(len(labels))
    np.random.RandomState(seed).shuffle(order)
    validating = len(labels) // 10
    for source, index in (
        (dataset.train, order[validating:]),
        (dataset.validation, order[:validating]),
    ):
        np.testing.assert_array_equal(source.inputs, images[index])
        np.testing.assert_array_equal(source.labels, labels[index])
    np.testing.assert_array_equal(dataset.test.inputs, test[0])
    np.testing.assert_array_equal(dataset.test.labels, test[1])
    assert dataset.train.inputs.dtype == dataset.test.inputs.dtype == np.uint8


def packed(place, name):
    """Make the archive of a folder, beside it, and remove the folder's own name."""
    archive = place.parent / name
    with tarfile.open(archive, "w:gz" if name.endswith("gz") else "w") as tar:
        tar.add(place, place.name)
    place.rename(place.parent / "elsewhere")
    return archive


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_cifar10_is_the_same_in_every_form(folder, form, monkeypatch):
    tiny.cifar10(folder / "tfds")
    place = tiny.cifar10_binary(folder / "cifar10")
    if form == "archive":
        packed(place, "cifar-10-binary.tar.gz")
        monkeypatch.setattr(files, "unlike", lambda path, download: "")
    one = data.cifar10(data_dir=str(folder))
    other = data.cifar10(data_dir=str(folder), source="official")
    assert "read as prepared by TFDS, version 3.0.2" in one.description
    assert "read from its authors' cifar-10-" in other.description
    for dataset in (one, other):
        assert_split(dataset, tiny.examples("train"), tiny.examples("test"))


def test_an_archive_that_was_not_published_is_not_opened(folder):
    archive = packed(tiny.cifar10_binary(folder / "cifar10"), "cifar-10-binary.tar.gz")
    size = archive.stat().st_size
    with pytest.raises(reading.Unreadable, match=rf"was published: it has {size:,} bytes and not"):
        data.cifar10(data_dir=str(folder))
    download = dataclasses.replace(data.about("cifar10").downloads[0], size=size)
    assert files.unlike(archive, download).endswith(f" and not {download.md5}")
    download = dataclasses.replace(download, md5=archives.md5(archive))
    assert files.unlike(archive, download) == ""


def test_cifar100_takes_the_fine_label_in_every_form(folder):
    tiny.cifar100(folder)
    parts = {part: tiny.examples(part, classes=100) for part in tiny.SIZES}
    features = ("id", "image", "label", "coarse_label")
    tiny.tfds_images(folder / "other", "cifar100", parts, features=features)
    for place in (folder, folder / "other"):
        dataset = data.cifar100(data_dir=str(place))
        assert_split(dataset, parts["train"], parts["test"])
        assert dataset.num_classes == 100
    assert (dataset.class_names[0], dataset.class_names[99]) == ("apple", "worm")


def test_the_slip_of_cifar100_is_what_the_released_code_computes(folder):
    tiny.cifar100(folder)
    dataset = data.cifar100(data_dir=str(folder), test_normalization="imagenet")
    assert "Test images alone are normalised with" in dataset.description
    assert dataset.brightest is None  # no stored value of a test pixel is white
    images = tiny.examples("test", classes=100)[0]
    mean, deviation = IMAGENET
    expected = (images.astype(np.float64) / 255 - mean) / deviation
    np.testing.assert_allclose(dataset.prepare(dataset.test.inputs), expected, atol=1e-5)
    mean, deviation = CIFAR10
    expected = (dataset.validation.inputs.astype(np.float64) / 255 - mean) / deviation
    np.testing.assert_allclose(dataset.prepare(dataset.validation.inputs), expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"got 'imagenets'; did you mean 'imagenet'\?"):
        data.cifar100(data_dir=str(folder), test_normalization="imagenets")


def test_the_digit_is_the_class_of_svhn_in_every_form(folder):
    tiny.svhn(folder)
    train, test = tiny.examples("train"), tiny.examples("test")
    official = data.svhn(data_dir=str(folder))
    assert_split(official, train, test)
    assert official.augment is None
    assert official.class_names == tuple("0123456789")
    # TFDS keeps no numbers: another order of the same pairs.
    tiny.tfds_images(folder / "tfds", "svhn_cropped", features=("image", "label"))
    prepared = data.svhn(data_dir=str(folder))
    assert "TFDS" in prepared.description
    assert "another order" in prepared.description
    order = np.random.default_rng(7).permutation(20)
    np.testing.assert_array_equal(prepared.test.inputs, test[0][order])
    np.testing.assert_array_equal(prepared.test.labels, test[1][order])


def test_svhn_can_be_shown_to_a_network_of_cifar10(folder):
    tiny.svhn(folder)
    tiny.cifar10_c(folder)
    tiny.cifar10(folder)
    known = data.named("cifar10", data_dir=str(folder))
    mean, deviation = CIFAR10
    for name in ("svhn", "cifar10_c"):
        images = data.named(name, data_dir=str(folder)).test.inputs
        assert images.dtype == np.uint8
        expected = (images.astype(np.float64) / 255 - mean) / deviation
        np.testing.assert_allclose(known.prepare(images), expected, atol=1e-5)


@pytest.mark.parametrize(("corruption", "severity"), [("gaussian_noise", 5), ("fog", 1)])
def test_a_severity_of_cifar10_c_is_a_fifth_of_its_file(folder, corruption, severity):
    tiny.cifar10_c(folder)
    images, labels = tiny.examples("test")
    expected = tiny.corrupted(images, corruption).reshape(5, *images.shape)[severity - 1]
    options = {"corruption": corruption, "severity": severity}
    parts = {"test": (expected, labels)}
    config = f"cifar10_corrupted/{corruption}_{severity}"
    tiny.tfds_images(folder / "other", config, parts, features=("image", "label"))
    order = np.random.default_rng(7).permutation(20)  # TFDS keeps no numbers
    for place, index in ((folder, np.arange(20)), (folder / "other", order)):
        dataset = data.named("cifar10_c", data_dir=str(place), **options)
        np.testing.assert_array_equal(dataset.test.inputs, expected[index])
        np.testing.assert_array_equal(dataset.test.labels, labels[index])
        assert (len(dataset.train), len(dataset.validation)) == (0, 0)
        assert f"20 with {corruption} of severity {severity} to test" in dataset.description


def test_the_corruptions_have_other_names_in_tfds(folder):
    parts = {"test": tiny.examples("test", size=4)}
    for config in ("frosted_glass_blur_2", "elastic_2"):
        tiny.tfds_images(folder, f"cifar10_corrupted/{config}", parts, features=("image", "label"))
    for corruption in ("glass_blur", "elastic_transform"):
        options = {"corruption": corruption, "severity": 2}
        assert len(data.named("cifar10_c", data_dir=str(folder), **options).test) == 4
    configs = data.about("cifar10_c").variants
    assert len(configs) == 95
    with pytest.raises(FileNotFoundError, match=r"(?s)tfds build \S+/snow_5 .*CIFAR-10-C"):
        data.cifar10_c(data_dir=str(folder), corruption="snow")
    with pytest.raises(ValueError, match=r"no corruption is called 'fogg'; did you mean 'fog'"):
        data.cifar10_c(data_dir=str(folder), corruption="fogg")
    with pytest.raises(ValueError, match=r"severity must lie in \[1, 5\], got 0"):
        data.cifar10_c(data_dir=str(folder), severity=0)


def pairs(source, written):
    """Name the file that each image of a source was written to, with its label."""
    names = {image.tobytes(): name for name, image in written.items()}
    return [(names[x.tobytes()], int(y)) for x, y in zip(source.inputs, source.labels, strict=True)]


def test_tiny_imagenet_holds_out_as_many_of_each_class(folder):
    written = tiny.tiny_imagenet(folder)
    dataset = data.tiny_imagenet(data_dir=str(folder))
    assert dataset.class_names == ("goldfish", "bull", "fly")
    train, validation = pairs(dataset.train, written), pairs(dataset.validation, written)
    # Classes are numbered in the order of their ids: n01 is 0, though it stands second.
    for name, label in train + validation:
        assert name.startswith(f"train/n0{label + 1}/")
    assert sorted(train + validation) == sorted(
        (f"train/n0{k + 1}/images/n0{k + 1}_{i}.JPEG", k) for k in range(3) for i in range(60)
    )
    assert np.bincount([label for _, label in validation]).tolist() == [50, 50, 50]
    assert [label for _, label in train] != sorted(label for _, label in train)
    test = pairs(dataset.test, written)
    assert test == [(f"val/images/val_{i}.JPEG", [2, 0, 1][i % 3]) for i in range(6)]
    other = data.tiny_imagenet(data_dir=str(folder), seed=2, training_size=7)
    assert set(pairs(other.validation, written)) != set(validation)
    assert len(other.train) == 7
    mean, deviation = IMAGENET
    expected = (dataset.test.inputs.astype(np.float64) / 255 - mean) / deviation
    np.testing.assert_allclose(dataset.prepare(dataset.test.inputs), expected, atol=1e-5)


def test_the_released_split_of_tiny_imagenet_tests_on_what_validates(folder):
    written = tiny.tiny_imagenet(folder)
    dataset = data.tiny_imagenet(data_dir=str(folder), split="released")
    assert len({name for name, _ in pairs(dataset.train, written)}) == 180
    assert pairs(dataset.validation, written) == pairs(dataset.test, written)
    assert "the same images validate and test" in dataset.description
    for options, message in [
        ({"split": "paper"}, r"got 'paper'; did you mean 'papers'\?"),
        ({"validation_per_class": 60}, r"must lie in \[1, 59\], .* got 60"),
        ({"training_size": 31}, r"training_size must lie in \[1, 30\], got 31"),
    ]:
        with pytest.raises(ValueError, match=message):
            data.tiny_imagenet(data_dir=str(folder), **options)


def test_tiny_imagenet_is_decoded_once_unless_a_file_changes(folder, monkeypatch):
    written = tiny.tiny_imagenet(folder)
    count = []
    decode = decoded.pixels
    monkeypatch.setattr(decoded, "pixels", lambda *args: count.append(1) or decode(*args))
    first, again = (data.tiny_imagenet(data_dir=str(folder)) for _ in range(2))
    assert len(count) == len(written) == 186
    np.testing.assert_array_equal(first.train.inputs, again.train.inputs)
    path = folder / "tiny-imagenet-200" / "val" / "images" / "val_3.JPEG"
    other = np.zeros((64, 64, 3), np.uint8)
    path.write_bytes(tiny.coded(other, "JPEG"))
    np.testing.assert_array_equal(data.tiny_imagenet(data_dir=str(folder)).test.inputs[3], other)
    assert len(count) == 2 * 186


def test_an_augmented_image_of_tiny_imagenet_has_its_size(folder):
    tiny.tiny_imagenet(folder)
    dataset = data.tiny_imagenet(data_dir=str(folder))
    example = jax.tree.map(lambda leaf: leaf[0], dataset.train.examples)
    seen = jax.eval_shape(dataset.augment, jax.random.key(0), example).inputs
    assert (seen.shape, seen.dtype) == ((64, 64, 3), jnp.uint8)


@pytest.mark.parametrize(
    ("name", "file", "damage", "message"),
    [
        ("cifar10", "cifar-10-batches-bin/data_batch_3.bin", b"x" * 3072, "whole records of 3,073"),
        ("cifar10", "cifar-10-batches-bin/test_batch.bin", b"", "has 0 bytes"),
        ("cifar10", "cifar-10-batches-bin/data_batch_5.bin", None, r"has no data_batch_5\.bin"),
        ("cifar10", "cifar-10-batches-bin/test_batch.bin", b"\x0a" * 3073, "has the label 10"),
        ("cifar100", "cifar-100-binary/train.bin", b"\x64" * 3074, "label 100; labels must lie in"),
        ("svhn", "svhn/test_32x32.mat", None, r"has no test_32x32\.mat: download http"),
        (
            "svhn",
            "svhn/train_32x32.mat",
            b"MATLAB 5.0 or not",
            r"train_32x32\.mat cannot .* download http",
        ),
        ("cifar10_c", "CIFAR-10-C/gaussian_noise.npy", None, r"has no gaussian_noise\.npy"),
        ("cifar10_c", "CIFAR-10-C/gaussian_noise.npy", b"", "is no whole array"),
        ("tiny_imagenet", "tiny-imagenet-200/wnids.txt", None, r"has no wnids\.txt: unpack"),
        (
            "tiny_imagenet",
            "tiny-imagenet-200/wnids.txt",
            b"n01\nn09\n",
            "no images of the class n09",
        ),
        (
            "tiny_imagenet",
            "tiny-imagenet-200/val/images/val_2.JPEG",
            None,
            r"has no val/images/val_2",
        ),
        (
            "tiny_imagenet",
            "tiny-imagenet-200/val/images/val_2.JPEG",
            b"no",
            r"2\.JPEG cannot be read",
        ),
        (
            "tiny_imagenet",
            "tiny-imagenet-200/val/val_annotations.txt",
            b"val_0.JPEG\tn09\t0\n",
            r"has .*n09.* in place of a file and a class",
        ),
    ],
)
def test_damaged_files_are_named(folder, name, file, damage, message):
    {**tiny.WRITERS, "cifar10": tiny.cifar10_binary}[name](folder)
    if damage is None:
        os.remove(folder / file)
    else:
        (folder / file).write_bytes(damage)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        data.named(name, data_dir=str(folder))
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


class Trap:
    """What leaves a trace when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("form", ["a pickle", "an array"])
def test_nothing_is_ever_unpickled(folder, form):
    place = tiny.cifar10_c(folder)
    trap = Trap(folder / "sprung")
    if form == "a pickle":
        (place / "labels.npy").write_bytes(pickle.dumps(trap))
    else:
        np.save(place / "labels.npy", np.array([trap] * 100), allow_pickle=True)
    with pytest.raises(ValueError, match=r"labels\.npy cannot be read as an array"):
        data.cifar10_c(data_dir=str(folder))
    assert not trap.path.exists()


def test_matlab_files_of_another_shape_are_refused(folder):
    place = tiny.svhn(folder)
    for content, message in [
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((5, 1))}, "and not"),
        (
            {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.full((4, 1), 11, np.uint8)},
            "than 1 to 10",
        ),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.zeros((4, 1), np.uint8)}, "1 to 10: .0"),
        ({"X": np.zeros((32, 32, 3, 4), np.uint8)}, "has no variable y; download http"),
    ]:
        scipy.io.savemat(place / "test_32x32.mat", content)
        with pytest.raises(ValueError, match=message):
            data.svhn(data_dir=str(folder))


def test_what_is_absent_is_named_with_the_way_to_get_it(folder):
    for name in ("cifar10", "cifar100", "svhn", "cifar10_c", "tiny_imagenet"):
        about = data.about(name)
        with pytest.raises(FileNotFoundError) as caught:
            data.named(name, data_dir=str(folder))
        said = str(caught.value)
        assert all(download.url in said for download in about.downloads)
        assert f"{folder / name}" in said
        assert (f"tfds build {about.tfds}" in said) == bool(about.tfds)
        assert (f"--prepare={name}" in said) == (name in {"cifar10_c", "tiny_imagenet"})
    with pytest.raises(FileNotFoundError) as caught:
        data.cifar10(data_dir=str(folder), source="official")
    assert "tfds build" not in str(caught.value)
    assert "(from data_dir)" in str(caught.value)
    with pytest.raises(ValueError, match=r"cifar10: source .* got 'offical'; did you mean 'offi"):
        data.cifar10(data_dir=str(folder), source="offical")
