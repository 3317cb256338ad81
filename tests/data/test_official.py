"""Data sets from their authors' own files: exact pixels, classes and order, honest errors."""

import os
import pathlib
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from calib_jax import data
from calib_jax.core.examples import InMemory
from calib_jax.data.formats import files as reader
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


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_cifar10_is_the_same_in_every_form(folder, form):
    prepared = tiny.cifar10(folder / "tfds")
    before = sorted(prepared.iterdir())
    place = tiny.cifar10_binary(folder / "cifar10")
    if form == "archive":
        with tarfile.open(place.parent / "cifar-10-binary.tar.gz", "w:gz") as tar:
            tar.add(place, place.name)
        place.rename(place.parent / "elsewhere")
    one = data.cifar10(data_dir=str(folder))
    other = data.cifar10(data_dir=str(folder), source="official")
    assert "read as prepared by TFDS, version 3.0.2" in one.description
    assert "read from its authors' cifar-10-" in other.description
    for dataset in (one, other):
        assert_split(dataset, tiny.examples("train"), tiny.examples("test"))
        assert isinstance(dataset.train, InMemory)
        assert dataset.train.labels.dtype == np.int32
    assert sorted(prepared.iterdir()) == before  # nothing is written


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


@pytest.mark.parametrize(
    ("name", "first", "classes"),
    [
        ("cifar10", (6, 9, 9, 4, 1, 1, 2, 7, 8, 3), 10),
        ("cifar100", (19, 29, 0, 11, 1, 86, 90, 28, 23, 31), 100),
        ("svhn", (1, 9, 2, 3, 2, 5, 9, 3, 3, 1), 10),
    ],
)
def test_the_authors_order_is_known_by_its_first_labels(folder, name, first, classes):
    of_svhn = name == "svhn"  # whose records have no numbers, so that the first written ones count
    places = np.random.default_rng(7).permutation(40)[:10] if of_svhn else np.arange(10)
    stored = "svhn_cropped" if of_svhn else name
    for last in (first[-1], 5):
        parts = {part: tiny.examples(part, classes=classes) for part in tiny.SIZES}
        parts["train"][1][places] = (*first[:-1], last)
        tiny.tfds_images(folder / str(last), stored, parts, numbered=not of_svhn)
        description = data.named(name, data_dir=str(folder / str(last))).description
        assert ("on the original order of the images" in description) == (last == first[-1])


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


@pytest.mark.parametrize(("corruption", "severity"), [("gaussian_noise", 5), ("fog", 1)])
def test_a_severity_of_cifar10_c_is_a_fifth_of_its_file(folder, corruption, severity):
    tiny.cifar10_c(folder)
    images, labels = tiny.examples("test")
    expected = tiny.corrupted(images, corruption).reshape(5, *images.shape)[severity - 1]
    options = {"corruption": corruption, "severity": severity}
    dataset = data.named("cifar10_c", data_dir=str(folder), **options)
    np.testing.assert_array_equal(dataset.test.inputs, expected)
    np.testing.assert_array_equal(dataset.test.labels, labels)
    assert (len(dataset.train), len(dataset.validation)) == (0, 0)
    assert f"20 with {corruption} of severity {severity} to test" in dataset.description


def pairs(source, written):
    """Name the file that each image of a source was written to, with its label."""
    names = {image.tobytes(): name for name, image in written.items()}
    return [(names[x.tobytes()], int(y)) for x, y in zip(source.inputs, source.labels, strict=True)]


def test_tiny_imagenet_holds_out_as_many_of_each_class(folder):
    written = tiny.tiny_imagenet(folder)
    dataset = data.tiny_imagenet(data_dir=str(folder))
    assert dataset.class_names == ("goldfish", "salamander", "bullfrog")
    train, validation = pairs(dataset.train, written), pairs(dataset.validation, written)
    # Classes are numbered in the order of their ids.
    assert sorted(train + validation) == sorted(
        (f"train/{name}/images/{name}_{i}.JPEG", k)
        for k, name in enumerate(sorted(tiny.WNIDS))
        for i in range(60)
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


def test_classes_that_are_not_official_are_left_out_and_named(folder):
    tiny.tiny_imagenet(folder)
    expected = data.tiny_imagenet(data_dir=str(folder))
    place = folder / "tiny-imagenet-200"
    for name, text in {
        "wnids.txt": "n10148035\n",
        "val/val_annotations.txt": "val_9.JPEG\tn10148035\t0\t0\t1\t1\n",
    }.items():
        path = place / name
        path.write_text(path.read_text() + text)
    dataset = data.tiny_imagenet(data_dir=str(folder))
    assert "Left out, because they are not official: n10148035." in dataset.description
    for part in ("train", "validation", "test"):
        found, wanted = getattr(dataset, part), getattr(expected, part)
        np.testing.assert_array_equal(found.inputs, wanted.inputs)
        np.testing.assert_array_equal(found.labels, wanted.labels)


ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_ids_without_numbers_leave_the_order_of_the_records(folder):
    tiny.cifar10(folder, numbered=False)
    written = np.random.default_rng(7).permutation(20)
    images, labels = tiny.examples("test")
    test = data.cifar10(data_dir=str(folder)).test
    np.testing.assert_array_equal(test.inputs, images[written])
    np.testing.assert_array_equal(test.labels, labels[written])


def test_the_training_part_alone_can_be_long_tailed(folder):
    tiny.cifar10(folder)
    make = lambda **options: data.named("cifar10", data_dir=str(folder), **options)  # noqa: E731
    whole, tailed = make(validation=0.25), make(validation=0.25, imbalance=2.0)
    smallest = whole.class_counts.min()
    expected = np.floor(smallest * 2.0 ** -(np.arange(10) / 9) + 1e-9)
    np.testing.assert_array_equal(tailed.class_counts, expected)
    np.testing.assert_array_equal(tailed.validation.labels, whole.validation.labels)
    np.testing.assert_array_equal(tailed.test.labels, whole.test.labels)
    assert "long-tailed training by a factor of 2;" in tailed.description


def test_the_folder_is_the_option_then_the_variables_then_the_habit(folder, monkeypatch, tmp_path):
    # Each has another number of test images, by which it is known.
    def there(path, size):
        parts = {"train": tiny.examples("train", size=10), "test": tiny.examples("test", size=size)}
        tiny.cifar10(path, parts)
        return str(path)

    def chosen(data_dir=None):
        return len(data.cifar10(data_dir=data_dir).test)

    there(tmp_path / "home" / "tensorflow_datasets", 1)
    assert chosen() == 1
    monkeypatch.setenv("TFDS_DATA_DIR", there(tmp_path / "of_tfds", 2))
    assert chosen() == 2
    there(tmp_path / "ours" / "tfds", 3)
    monkeypatch.setenv(reader.VARIABLE, str(tmp_path / "ours"))  # the folder above
    assert chosen() == 3
    assert chosen(there(folder, 4)) == 4
    monkeypatch.setenv(reader.VARIABLE, "")  # as good as none
    assert chosen() == 2


def test_it_is_read_without_tensorflow(folder, tmp_path):
    tiny.cifar10(folder)
    # One that can be imported, so that an attempt to do so would be seen on every machine.
    (tmp_path / "path" / "tensorflow").mkdir(parents=True)
    (tmp_path / "path" / "tensorflow" / "__init__.py").touch()
    program = (
        "import sys; from calib_jax import data; data.cifar10(data_dir=sys.argv[1]);"
        "print('tensorflow_datasets' in sys.modules, 'tensorflow' in sys.modules)"
    )
    paths = os.pathsep.join([str(tmp_path / "path"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True", "False"], done.stderr
    assert "warning" not in done.stderr.lower()
