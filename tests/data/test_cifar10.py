"""CIFAR-10 from files of TFDS: exact pixels, the papers' order, and a cache that is never wrong."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import data
from calib_jax.core.examples import Examples, InMemory
from calib_jax.core.files import reading
from calib_jax.data.formats import tfds as reader
from calib_jax.data.images import decoded
from tests.data import tiny

CACHE = decoded.NAME
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def counted(monkeypatch):
    """How many images have been decoded."""
    count = []
    decode = decoded.pixels
    monkeypatch.setattr(decoded, "pixels", lambda *args: count.append(1) or decode(*args))
    return count


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


def test_what_was_written_is_read_and_decoded_once(folder, counted):
    place = tiny.cifar10(folder)
    first = data.cifar10(data_dir=str(folder))
    assert len(counted) == 60
    again = data.cifar10(data_dir=str(folder))
    assert len(counted) == 60
    for dataset in (first, again):
        assert_tiny(dataset)
        assert all(isinstance(getattr(dataset, p), InMemory) for p in ("train", "test"))
        assert (dataset.train.inputs.dtype, dataset.train.labels.dtype) == (np.uint8, np.int32)
    # Nothing but the one file was left behind.
    assert [path.name for path in place.iterdir() if "calib" in path.name] == [CACHE]


def test_the_format_that_tfds_writes_unasked_is_read_too(folder):
    place = tiny.cifar10(folder, form="tfrecord")
    assert_tiny(data.cifar10(data_dir=str(folder)))
    (place / CACHE).unlink()
    shard = place / "cifar10-train.tfrecord-00000-of-00001"
    whole = shard.read_bytes()
    for content, message in (
        (whole[:-1000], "it ends within record 39"),
        (whole[:5], "it ends within record 0"),
        (b"\1" + whole[1:], "it is no file of TFRecords, or damaged, at record 0"),
        (b"<html>", "it ends within record 0"),
        (whole + whole, "more records than 40"),
        (b"", "0 records instead of 40"),
    ):
        shard.write_bytes(content)
        with pytest.raises(ValueError, match=f"train.* cannot be read .*: {message}"):
            data.cifar10(data_dir=str(folder))


def test_ids_without_numbers_leave_the_order_of_the_records(folder):
    tiny.cifar10(folder, numbered=False)
    written = np.random.default_rng(7).permutation(20)
    images, labels = tiny.examples("test")
    test = data.cifar10(data_dir=str(folder)).test
    np.testing.assert_array_equal(test.inputs, images[written])
    np.testing.assert_array_equal(test.labels, labels[written])


def test_the_description_says_whether_the_order_is_the_original_one(folder):
    images, labels = tiny.examples("train")
    tiny.cifar10(folder / "one")
    assert "another order" in data.cifar10(data_dir=str(folder / "one")).description
    labels[:10] = 6, 9, 9, 4, 1, 1, 2, 7, 8, 3  # with which data_batch_1.bin begins
    tiny.cifar10(folder / "other", {"train": (images, labels), "test": tiny.examples("test")})
    assert "original order" in data.cifar10(data_dir=str(folder / "other")).description


def test_it_is_normalised_and_augmented_as_in_the_papers(folder):
    tiny.cifar10(folder)
    dataset = data.cifar10(data_dir=str(folder))
    images = dataset.train.inputs
    prepared = jax.jit(dataset.prepare)(images)
    assert prepared.dtype == jnp.float32
    mean, deviation = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    expected = (images.astype(np.float64) / 255 - mean) / deviation
    np.testing.assert_allclose(prepared, expected, rtol=1e-5, atol=1e-6)
    # A window of the image in a frame of 4 zeros, mirrored or not, before normalisation.
    (image,) = images[:1]
    padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
    keys = jax.random.split(jax.random.key(0), 16)
    augmented = jax.vmap(dataset.augment, (0, None))(keys, Examples(image, 7))
    assert augmented.labels.tolist() == [7] * 16
    seen = np.asarray(augmented.inputs)
    assert seen.dtype == np.uint8
    windows = {
        window.tobytes(): (row, column, mirrored)
        for row in range(9)
        for column in range(9)
        for cut in [padded[row : row + 32, column : column + 32]]
        for mirrored, window in enumerate((cut, cut[:, ::-1]))
    }
    result = [windows[one.tobytes()] for one in seen]
    assert {mirrored for _, _, mirrored in result} == {0, 1}
    assert len({place[:2] for place in result}) > 8


def test_sizes_and_the_seed_are_options(folder):
    tiny.cifar10(folder)
    make = lambda **options: data.named("cifar10", data_dir=str(folder), **options)  # noqa: E731
    whole, some = make(validation=0.25, seed=3), make(validation=0.25, seed=3, training_size=7)
    assert [len(whole.train), len(whole.validation), len(some.train)] == [30, 10, 7]
    np.testing.assert_array_equal(some.train.inputs, whole.train.inputs[:7])
    np.testing.assert_array_equal(some.validation.labels, whole.validation.labels)
    index = data.split(40, validation=0.25, seed=3).validation
    np.testing.assert_array_equal(whole.validation.inputs, tiny.examples("train")[0][index])
    assert "7 to train, 10 to validate, 20 to test; split by the papers' rule with seed 3" in (
        some.description
    )
    for options, message in [
        ({"training_size": 37}, r"training_size must lie in \[1, 36\], got 37"),
        ({"training_size": 0}, "training_size .* got 0"),
        ({"validation": 0.0}, "no example is left for validation: validation=0.0"),
        ({"validation": 1.0}, "no example is left for training: validation=1.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make(**options)


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


def test_an_absent_data_set_is_said_in_lines_of_what_where_and_how(folder, monkeypatch):
    with pytest.raises(FileNotFoundError) as caught:
        data.cifar10(data_dir=str(folder))
    said = str(caught.value)
    for part in (
        f"cifar10 is neither in {folder / 'cifar10'} nor in {folder / 'tfds' / 'cifar10'}",
        "\n  To prepare it, where TensorFlow is installed: `tfds build cifar10 --data_dir=",
        f"\nneither {folder / 'cifar10'} nor {folder} (from data_dir) has cifar-10-b",
        "\n  To get it: download https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz to ",
        "\n`python -m experiments.data --list` shows where every data set lies",
        f"\nTo look in another folder: --data_dir=DIR, or the variable {reader.VARIABLE}.",
    ):
        assert part in said
    assert len(said.replace(str(folder), "").split()) < 80
    with pytest.raises(FileNotFoundError, match=r"tensorflow_datasets.* default of TFDS"):
        data.cifar10()
    monkeypatch.setenv(reader.VARIABLE, str(folder))
    with pytest.raises(FileNotFoundError, match=f"from the variable {reader.VARIABLE}"):
        data.cifar10()
    (folder / "cifar10" / "3.0.2").mkdir(parents=True)  # that was not prepared to the end
    with pytest.raises(FileNotFoundError, match="is neither"):
        data.cifar10()
    tiny.cifar10(folder / "tfds", fileFormat="riegeli")
    with pytest.raises(FileNotFoundError, match=r"3\.0\.2 has the format riegeli, which cannot"):
        data.cifar10()


def test_the_newest_version_in_a_format_that_can_be_read(folder):
    tiny.cifar10(folder, version="3.0.9", fileFormat="riegeli", alternativeFileFormats=[])
    small = {"train": tiny.examples("train"), "test": tiny.examples("test", size=3)}
    tiny.cifar10(
        folder,
        small,
        version="3.0.10",
        fileFormat="riegeli",
        alternativeFileFormats=["array_record"],
    )
    tiny.cifar10(folder, version="3.0.2")
    assert len(data.cifar10(data_dir=str(folder)).test) == 3


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def pickled(path):
    np.savez(path, made_from=np.array([object()]))


@pytest.mark.parametrize("damage", [cut, flip, empty, pickled])
def test_a_damaged_cache_is_made_anew(folder, counted, damage):
    place = tiny.cifar10(folder)
    data.cifar10(data_dir=str(folder))
    damage(place / CACHE)
    assert_tiny(data.cifar10(data_dir=str(folder)))
    assert len(counted) == 120
    data.cifar10(data_dir=str(folder))
    assert len(counted) == 120


def test_a_changed_data_set_is_decoded_anew(folder):
    place = tiny.cifar10(folder)
    data.cifar10(data_dir=str(folder))
    cache = (place / CACHE).read_bytes()
    shutil.rmtree(place)
    changed = {part: tiny.examples(part, seed=1) for part in tiny.SIZES}
    place = tiny.cifar10(folder, changed)
    (place / CACHE).write_bytes(cache)
    for path in place.glob("*.array_record*"):  # otherwise within the same second
        os.utime(path, (1, 1))
    dataset = data.cifar10(data_dir=str(folder))
    np.testing.assert_array_equal(dataset.test.inputs, changed["test"][0])
    np.testing.assert_array_equal(dataset.test.labels, changed["test"][1])


def test_a_folder_that_cannot_be_written_is_gone_without(folder, counted, monkeypatch):
    place = tiny.cifar10(folder)

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:  # a mode would not keep root from writing
        patch.setattr(decoded.np, "savez", refuse)
        for times in (1, 2):
            with pytest.warns(UserWarning, match=f"{CACHE} cannot be written .Permission denied"):
                assert_tiny(data.cifar10(data_dir=str(folder)))
            assert len(counted) == 60 * times
    assert not [path.name for path in place.iterdir() if "calib" in path.name]


def lose_records(place):
    (place / "cifar10-test.array_record-00000-of-00001").unlink()


def cut_records(place):
    path = place / "cifar10-test.array_record-00000-of-00001"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_about(place):
    (place / "dataset_info.json").write_text("{")


def lose_a_part(place):
    (place / "dataset_info.json").write_text('{"fileFormat": "array_record"}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_records, r"test in .*3\.0\.2 cannot be read"),
        (cut_records, r"test in .*3\.0\.2 cannot be read"),
        (damage_about, r"dataset_info\.json cannot be read"),
        (lose_a_part, "has no examples of train and test"),
    ],
)
def test_a_damaged_data_set_is_named(folder, damage, message):
    place = tiny.cifar10(folder)
    damage(place)
    with pytest.raises(ValueError, match=message):
        data.cifar10(data_dir=str(folder))
    assert not (place / CACHE).exists()


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (tiny.examples("test", side=28), "test in .* an image is 28 x 28, and not 32 x 32"),
        (tiny.examples("test", classes=11), r"test in .* has the label 10; labels must lie in"),
    ],
)
def test_other_images_and_labels_are_refused(folder, test, message):
    place = tiny.cifar10(folder, {"train": tiny.examples("train"), "test": test})
    with pytest.raises(ValueError, match=message):
        data.cifar10(data_dir=str(folder))
    assert not (place / CACHE).exists()


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", "type"])
def test_features_import_no_module(folder, monkeypatch, key):
    """TFDS imports the module of any class that features.json names, also from here."""
    path = tiny.cifar10(folder) / "features.json"
    features = json.loads(path.read_text())
    label = features["featuresDict"]["features"]["label"]
    label.pop("pythonClassName")
    label[key] = "owned_by_data.Feature"
    path.write_text(json.dumps(features))
    (pathlib.Path(folder) / "owned_by_data.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(reading.Unreadable, match=r"features.json .*the class 'owned_by_data\.Fea"):
        reader.opened(path.parent, "test")


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


@pytest.mark.slow
def test_the_real_one(tmp_path):
    if not os.environ.get(reader.VARIABLE):
        pytest.skip(f"the variable {reader.VARIABLE} does not say where CIFAR-10 is")
    try:
        real = reader.find_version("cifar10")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    # Elsewhere, so that it is decoded, and nothing is written where the data set lies.
    place = tmp_path / "cifar10" / real.name
    place.mkdir(parents=True)
    for path in real.iterdir():
        if path.name != CACHE:
            (place / path.name).symlink_to(path)
    dataset = data.cifar10(data_dir=str(tmp_path))
    sizes = [len(getattr(dataset, part)) for part in ("train", "validation", "test")]
    assert sizes == [45_000, 5_000, 10_000]
    images = np.concatenate([dataset.train.inputs, dataset.validation.inputs])
    labels = np.concatenate([dataset.train.labels, dataset.validation.labels])
    assert (np.bincount(labels) == 5000).all()
    assert (np.bincount(dataset.test.labels) == 1000).all()
    means = images.reshape(-1, 3).mean(axis=0) / 255
    np.testing.assert_allclose(means, (0.4914, 0.4822, 0.4465), atol=0.005)
    # Pixels and labels belong together: planes and ships are bluer than frogs and deer.
    blue = dataset.test.inputs.astype(int)[..., 2] - dataset.test.inputs[..., 1]
    blue = [blue[dataset.test.labels == label].mean() for label in range(10)]
    assert min(blue[0], blue[8]) > max(blue[4], blue[6])
