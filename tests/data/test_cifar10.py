"""CIFAR-10 from files of TFDS: exact pixels, the papers' order and augmentation."""

import os
import pathlib
import subprocess
import sys

import numpy as np

from calib_jax import data
from calib_jax.core.examples import InMemory
from calib_jax.data.formats import files as reader
from tests.data import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]


def assert_tiny(dataset):
    """All that was written is there, in the order of the authors, split by the papers' rule."""
    images, labels = tiny.examples("train")
    parts = data.split(len(labels))
    for source, index in ((dataset.train, parts.train), (dataset.validation, parts.validation)):
        np.testing.assert_array_equal(source.inputs, images[index])
        np.testing.assert_array_equal(source.labels, labels[index])
    images, labels = tiny.examples("test")
    np.testing.assert_array_equal(dataset.test.inputs, images)
    np.testing.assert_array_equal(dataset.test.labels, labels)


def test_what_was_written_is_read(folder):
    place = tiny.cifar10(folder)
    before = sorted(place.iterdir())
    dataset = data.cifar10(data_dir=str(folder))
    assert_tiny(dataset)
    assert all(isinstance(getattr(dataset, part), InMemory) for part in ("train", "test"))
    assert (dataset.train.inputs.dtype, dataset.train.labels.dtype) == (np.uint8, np.int32)
    assert sorted(place.iterdir()) == before  # nothing is written


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
