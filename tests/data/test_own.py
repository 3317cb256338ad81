"""Data sets of the user's own: arrays, folders of images, and data sets of other libraries."""

import contextlib
import tracemalloc

import jaxtyping
import numpy as np
import pytest
from PIL import Image

from calib_jax import data
from calib_jax.core.examples import Examples, InMemory
from calib_jax.data.own.arrays import statistics_of
from tests.data import tiny

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (30, 4, 5, 3), dtype=np.uint8)
LABELS = np.arange(30) % 3


def rows(source):
    return sorted(
        (image.tobytes(), int(label))
        for image, label in zip(source.inputs, source.labels, strict=True)
    )


def test_arrays_are_split_by_class_and_normalized_by_the_training_part():
    dataset = data.from_arrays(PIXELS, LABELS, validation=0.2, test=0.1, seed=3)
    parts = (dataset.train, dataset.validation, dataset.test)
    counts = [np.bincount(part.labels).tolist() for part in parts]
    assert counts == [[7, 7, 7], [2, 2, 2], [1, 1, 1]]
    everything = [(image.tobytes(), label) for image, label in zip(PIXELS, LABELS, strict=True)]
    assert sorted(row for part in parts for row in rows(part)) == sorted(everything)
    assert rows(data.from_arrays(PIXELS, LABELS, seed=4).test) != rows(dataset.test)
    prepared = np.asarray(dataset.prepare(dataset.train.inputs), np.float64)
    stored = dataset.train.inputs.astype(np.float64) / 255
    expected = (stored - stored.mean((0, 1, 2))) / stored.std((0, 1, 2))
    np.testing.assert_allclose(prepared, expected, atol=1e-5)
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.description.endswith("21 to train, 6 to validate, 3 to test, in 3 classes.")


@pytest.mark.parametrize("fraction", [0.4, 0.42, 0.45])
@pytest.mark.parametrize("count", [3, 4, 6, 8])
def test_each_part_has_an_example_of_each_class(count, fraction):
    labels = np.repeat([0, 1], [count, 20])
    dataset = data.from_arrays(np.arange(len(labels)), labels, validation=fraction, test=fraction)
    for part in (dataset.train, dataset.validation, dataset.test):
        assert np.bincount(part.labels, minlength=2).min() > 0


def test_channels_before_height_and_width_are_refused():
    pixels = np.moveaxis(PIXELS, -1, 1)
    with pytest.raises(ValueError, match=r"got uint8 \[n, 3, 4, 5\]: np.moveaxis\(inputs, 1, -1\)"):
        data.from_arrays(pixels, LABELS)
    prepared = data.from_arrays(pixels, LABELS, prepare=lambda inputs: inputs)
    assert prepared.train.inputs.shape[1:] == (3, 4, 5)


def test_arrays_may_have_their_parts_names_and_trees():
    names = np.array(["eel", "ant"] * 5)
    tree = {"words": np.arange(10)[:, None], "length": np.ones(10, int)}
    held = ({"words": np.array([[7]]), "length": np.array([1])}, ["eel"])
    dataset = data.from_arrays(tree, names, validation=held, test=0.2)
    assert dataset.class_names == ("ant", "eel")
    assert dataset.validation.labels.tolist() == [1]
    np.testing.assert_array_equal(dataset.train.labels, 1 - dataset.train.inputs["words"][:, 0] % 2)
    grey = data.from_arrays(PIXELS[..., 0], LABELS, class_names=("a", "b", "c"))
    assert grey.train.inputs.shape[1:] == (4, 5, 1)
    floats = data.from_arrays(PIXELS.astype(np.float32), LABELS)
    np.testing.assert_array_equal(floats.prepare(floats.train.inputs), floats.train.inputs)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (LABELS[:20], {}, r"train: .* got inputs \(30, 4, 5, 3\) and labels \(20,\)"),
        (LABELS - 1, {}, r"train: the label -1 of example 0 must lie in \[0, 1\]"),
        (LABELS, {"class_names": ["a", "b"]}, r"the label 2 of example 2 must lie in \[0, 1\]"),
        (LABELS.astype(str), {"class_names": ["0", "1"]}, "the label '2' is none of the classes"),
        (LABELS, {"class_names": ["a", "a"]}, "class_names must be two names or more"),
        (LABELS + 0.5, {"class_names": ["a", "b", "c"]}, "train: labels must be integers or names"),
        (np.array([0, None] * 15), {}, "train: labels must be integers or names"),
        (LABELS * 0, {}, "labels must have two classes or more, got only 0"),
        (LABELS / 2, {}, "labels must be integers or names of classes, got float64"),
        (LABELS, {"test": 0.9}, "leave examples to train on, got fractions that sum to 1.05"),
        (LABELS, {"validation": 0}, "validation=0 holds out no example, and every part needs"),
        (LABELS, {"test": -0.1}, r"test must lie in \[0, 1\], got -0.1"),
        ((np.arange(30) > 0) * 1, {}, "the class '0' has 1 example, and needs 3: one for each of"),
    ],
)
def test_arrays_that_are_no_data_set(labels, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        data.from_arrays(PIXELS, labels, **options)


def test_names_beside_numbers_of_classes_are_refused():
    # As texts "10" comes before "2", so the parts would have other classes of the same number.
    held = (PIXELS[:22], np.arange(22) % 11)
    with pytest.raises(TypeError, match="validation: labels must be numbers of classes as in"):
        data.from_arrays(*held, validation=(held[0], held[1].astype(str)))
    with pytest.raises(TypeError, match="test: labels must be names of classes as in training"):
        data.from_arrays(PIXELS, LABELS.astype(str), test=(PIXELS, LABELS))


@pytest.mark.parametrize("inputs", [np.array(["a"] * 30), np.array([[1, "a"]] * 30, object)])
def test_inputs_that_are_no_numbers_are_refused(inputs):
    with pytest.raises(TypeError, match=r"train: inputs must be real numbers, got .*: encode"):
        data.from_arrays(inputs, LABELS)


WORDS = {"words": np.zeros((30, 7), int), "length": np.ones(30, int)}


@pytest.mark.parametrize(
    ("inputs", "held", "message"),
    [
        (
            PIXELS,
            PIXELS / np.float32(255),
            r"test: inputs must be uint8 \[n, 4, 5, 3\] as in training, got float32 \[n, 4, 5, 3\]",
        ),
        (PIXELS, PIXELS[:, :3], r"must be uint8 \[n, 4, 5, 3\] .* got uint8 \[n, 3, 5, 3\]"),
        (PIXELS, PIXELS[..., 0], r"must be uint8 \[n, 4, 5, 3\] .* got uint8 \[n, 4, 5, 1\]"),
        (
            WORDS,
            WORDS | {"words": WORDS["words"][:, :5]},
            r"test: inputs\['words'\] must be int64 \[n, 7\] as in training, got int64 \[n, 5\]",
        ),
        (WORDS, {"words": WORDS["words"]}, r"tree of training, .*'length'.*, got .*'words': \*"),
        (WORDS, WORDS["words"], r"test: inputs must have the tree of training, .*, got .*\(\*\)"),
    ],
)
def test_parts_of_other_inputs_than_those_of_training_are_refused(inputs, held, message):
    with pytest.raises(ValueError, match=message):
        data.from_arrays(inputs, LABELS, test=(held, LABELS))


def test_a_part_is_a_fraction_or_a_pair():
    pair = Examples(PIXELS[:6], LABELS[:6])  # without weights
    assert len(data.from_arrays(PIXELS, LABELS, validation=pair).validation) == 6
    with jaxtyping_disabled():
        fraction = np.float32(0.2)
        assert len(data.from_arrays(PIXELS, LABELS, validation=fraction).validation) == 6
    weights = np.ones(30)
    wrong = {
        "list of length 1": [PIXELS],
        "tuple of length 3": (PIXELS, LABELS, weights),
        "Examples of length 3": Examples(PIXELS, LABELS, weights),
        "ndarray of length 2": np.array([0.1, 0.2]),
        "'ab'": "ab",
        "None": None,
        "InMemory of length 30": InMemory(PIXELS, LABELS),
        "dict of length 2": {"inputs": PIXELS, "labels": LABELS},
    }
    for text, value in wrong.items():
        with (
            jaxtyping_disabled(),
            pytest.raises(
                (ValueError, TypeError),
                match=r"test must be a fraction or a pair \(inputs, labels\), got " + text,
            ) as caught,
        ):
            data.from_arrays(PIXELS, LABELS, test=value)
        assert ("InMemory" in str(caught.value)) == ("3" in text)


@contextlib.contextmanager
def jaxtyping_disabled():
    """Call functions as a user does, without checks of the annotations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


@pytest.mark.parametrize("dtype", [">f4", "longdouble", object])
def test_numbers_that_jax_cannot_read_are_converted(dtype):
    inputs = np.arange(60, dtype=np.float32).reshape(30, 2)
    expected = data.from_arrays(inputs, LABELS).train.inputs
    held = data.from_arrays(inputs.astype(dtype), LABELS).train.inputs
    np.testing.assert_array_equal(held, expected)
    assert held.dtype in (np.float32, np.float64)  # which JAX reads


def test_masked_arrays_are_refused():
    mask = np.arange(30) == 4
    no_mask = np.ma.array(LABELS, mask=False)
    assert len(data.from_arrays(PIXELS, no_mask).train) == 18
    with pytest.raises(
        ValueError, match="train: 1 of the labels is masked: leave these examples out"
    ):
        data.from_arrays(PIXELS, np.ma.array(LABELS, mask=mask))
    with pytest.raises(ValueError, match="train: 2 of the inputs are masked"):
        data.from_arrays({"x": np.ma.array(np.eye(30)[:, :2], mask=np.eye(30)[:, :2])}, LABELS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "flip"}, r"augment must be a function, such as .*random_flip.*, got 'flip'"),
        ({"prepare": 255}, "prepare must be a function of the inputs, or None, got 255"),
        ({"seed": 0.5}, "seed must be an integer, got 0.5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_options_of_arrays_are_named(options, message):
    with jaxtyping_disabled(), pytest.raises((TypeError, ValueError), match=message):
        data.from_arrays(PIXELS, LABELS, **options)


def test_statistics_need_little_memory():
    pixels = RANDOM.integers(0, 256, (700, 64, 64, 3), dtype=np.uint8)
    scaled = pixels.reshape(-1, 3) / 255
    tracemalloc.start()
    statistics = statistics_of(pixels)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(statistics.mean, scaled.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(statistics.deviation, scaled.std(axis=0), rtol=1e-9)
    # NumPy widens the counted pixels of one channel to 8 bytes each.
    assert peak < pixels.nbytes


def test_labels_of_any_library():
    names = np.array(["cat", "dog", "eel"])
    expected = data.from_arrays(PIXELS, names[LABELS])
    for labels in (names[LABELS].astype(object), np.char.encode(names[LABELS], "utf-8")):
        dataset = data.from_arrays(PIXELS, labels)
        assert dataset.class_names == tuple(names)
        assert rows(dataset.train) == rows(expected.train)
    numbers = data.from_arrays(PIXELS, LABELS.astype(object), class_names=names.tolist())
    assert rows(numbers.train) == rows(expected.train)
    assert data.from_arrays(PIXELS, LABELS == 1).class_names == ("0", "1")
    with pytest.raises(ValueError, match=r"\(4, 5, 3, 1\), \.\.\. and labels .* np\.stack"):
        data.from_arrays(list(PIXELS), LABELS)
    pair = [PIXELS[:6], LABELS[:6]]
    assert len(data.from_arrays(PIXELS, LABELS, validation=pair).validation) == 6


class Rows:
    """A data set as Hugging Face's or torch's: a length, and rows by number."""

    def __init__(self, *examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, number):
        return self.examples[number]


def test_data_sets_of_other_libraries_become_arrays():
    photos = [Image.new("RGB", (6 + k, 4), (10 * k, 0, 0)) for k in range(3)]
    hugging_face = Rows(*({"image": photo, "labels": k} for k, photo in enumerate(photos)))
    x, y = data.arrays_of(hugging_face, inputs="image", labels="labels", size=(2, 3))
    assert (x.shape, x.dtype, y.tolist()) == ((3, 2, 3, 3), np.uint8, [0, 1, 2])
    assert x[2, 0, 0].tolist() == [20, 0, 0]
    of_torch = Rows((np.zeros((3, 4, 5), np.float32), 1), (np.ones((3, 4, 5), np.float32), 0))
    x, y = data.arrays_of(of_torch, channels_first=True)
    assert (x.shape, x.dtype, y.tolist()) == ((2, 4, 5, 3), np.float32, [1, 0])
    for value in (photos[0], photos[0].convert("L"), np.zeros((4, 5)), 3.0):
        with pytest.raises(
            ValueError, match=r"channels_first: .* \[channels, height, width\], got"
        ):
            data.arrays_of(Rows((value, 0)), channels_first=True)
    of_size = pytest.raises(TypeError, match=r"size must be \(height, width\), such as .*, got 64")
    with jaxtyping_disabled(), of_size:
        data.arrays_of(Rows((photos[0], 0)), size=64)
    with pytest.raises(ValueError, match="row 0 has no 0 and 1; it is 3: set inputs and labels"):
        data.arrays_of(Rows(3))
    with pytest.raises(ValueError, match=r"all labels must have one shape, got \(1,\), \(2,\)"):
        data.arrays_of(Rows((1.0, [0]), (2.0, [0, 1])))
    with pytest.raises(ValueError, match=r"got \(4, 6, 3\), \(4, 7, 3\), .*: set size="):
        data.arrays_of(hugging_face, inputs="image", labels="labels")
    with pytest.raises(
        ValueError, match="row 0 has no 'img' and 1; it has \\['image', 'labels'\\]"
    ):
        data.arrays_of(hugging_face, inputs="img")
    with pytest.raises(ValueError, match="has no examples"):
        data.arrays_of(Rows())
    with pytest.raises(TypeError, match="got a mapping of train, test: give one of its entries"):
        data.arrays_of({"train": hugging_face, "test": hugging_face})
    with pytest.raises(TypeError, match="which a list_iterator lacks: give list"):
        data.arrays_of(iter([(photos[0], 0)]))  # a stream
    mixed = Rows((photos[0], 0), (photos[1].convert("L"), 1))
    x, _ = data.arrays_of(mixed, size=(3, 2))
    assert x.shape == (2, 3, 2, 3)
    assert np.ptp(x[1], axis=-1).max() == 0


def grey_16(values):
    return Image.fromarray(np.array(values, np.uint16).reshape(4, 5))


def test_images_of_16_bits_keep_their_range_and_fractions_are_refused(tmp_path):
    values = 65535 * np.arange(20) // 19
    expected = np.round(values.reshape(4, 5) / 257)
    x, _ = data.arrays_of(Rows((grey_16(values), 0)))
    np.testing.assert_array_equal(x[0], expected)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(3):
            grey_16(values).save(tmp_path / name / f"{k}.png")
    images = data.from_folder(str(tmp_path), **SMALL, channels=1)
    np.testing.assert_array_equal(images.train.inputs[0, ..., 0], expected)
    assert images.description.startswith(f"Images of {tmp_path.name}, 4 x 5, 15% for validation")
    fractions = Image.fromarray(np.zeros((4, 5), np.float32))
    with pytest.raises(ValueError, match="row 0 cannot be read: its pixels are floating-point"):
        data.arrays_of(Rows((fractions, 0)))
    fractions.save(tmp_path / "a" / "3.tiff")
    with pytest.raises(ValueError, match=r"3\.tiff cannot be read as an image: its pixels are fl"):
        data.from_folder(str(tmp_path), **SMALL)


def test_hidden_copies_are_no_images(tmp_path):
    folder = tiny.own_images(tmp_path)
    count = len(data.from_folder(str(folder), **SMALL).train)
    (folder / "cat" / ".ipynb_checkpoints").mkdir()
    for name in (".ipynb_checkpoints/0-checkpoint.png", "._0.png"):
        (folder / "cat" / name).write_bytes((folder / "cat" / "0.png").read_bytes())
    (folder / "cat" / "sub.png").mkdir()
    assert len(data.from_folder(str(folder), **SMALL).train) == count


SMALL = {"height": 4, "width": 5}
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n%%EndComments\nshowpage\n%%EOF\n"


def test_a_folder_of_images_is_decoded_once(tmp_path, monkeypatch):
    folder = tiny.own_images(tmp_path)
    dataset = data.from_folder(str(folder), **SMALL)
    assert dataset.class_names == ("cat", "dog", "newt")
    parts = (dataset.train, dataset.validation, dataset.test)
    assert [np.bincount(part.labels).tolist() for part in parts] == [[4, 3, 2], [1] * 3, [1] * 3]
    # Each class has its own range of levels, which no resizing leaves.
    for part in parts:
        assert part.inputs.shape[1:] == (4, 5, 3)
        np.testing.assert_array_equal(part.inputs.mean((1, 2, 3)) // 60, part.labels)
    other = data.from_folder(str(folder), height=3, width=3, channels=1, seed=1)
    assert other.train.inputs.shape[1:] == (3, 3, 1)
    monkeypatch.setattr("PIL.Image.open", None)  # from now on nothing can be decoded
    again = data.from_folder(str(folder), **SMALL)
    assert rows(again.train) == rows(dataset.train)
    monkeypatch.undo()
    (folder / "cat" / "0.png").write_bytes((folder / "newt" / "0.png").read_bytes())
    changed = data.from_folder(str(folder), **SMALL)
    levels = np.concatenate([changed.train.inputs, changed.validation.inputs, changed.test.inputs])
    assert (levels.mean((1, 2, 3)) // 60 == 2).sum() == 5


def test_an_image_is_cut_in_the_middle_and_resized(tmp_path):
    """The halves of 8 x 4 pixels: of a square, the columns 2 to 5 are left."""
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 3:] = 200
    pixels[:, 6:] = 100
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(3):
            Image.fromarray(pixels).save(tmp_path / name / f"{k}.png")
    image = data.from_folder(str(tmp_path), height=4, width=4).train.inputs[0]
    np.testing.assert_array_equal(image, pixels[:, 2:6])


def test_folders_and_columns_may_give_the_parts(tmp_path):
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        (tiny.own_images(tmp_path / part)).rename(tmp_path / part / "inner")
        for path in (tmp_path / part / "inner").iterdir():
            path.rename(tmp_path / part / path.name)
        (tmp_path / part / "inner").rmdir()
    dataset = data.from_folder(str(tmp_path), **SMALL)
    counts = [len(part) for part in (dataset.train, dataset.validation, dataset.test)]
    assert counts == [12, 15, 3]
    lines = ["File,label,split"]
    for k in range(4):
        lines += [f"train/cat/{k}.png,10,Train", f"val/newt/{k}.png,9,{'test' if k > 1 else ''}"]
    (tmp_path / "images.csv").write_text("\n".join(lines) + "\n")
    dataset = data.from_folder(str(tmp_path), csv_file="images.csv", **SMALL)
    assert dataset.class_names == ("9", "10")
    parts = (dataset.train, dataset.validation, dataset.test)
    assert [np.bincount(part.labels).tolist() for part in parts] == [[1, 3], [1, 1], [2]]


def test_parts_beside_other_folders_are_refused_and_a_class_may_be_called_train(tmp_path):
    for part in ("Training", "testing", "dev"):
        tiny.own_images(tmp_path).rename(tmp_path / part)
    dataset = data.from_folder(str(tmp_path), **SMALL)
    assert len(dataset.train) == len(dataset.validation) == len(dataset.test)
    tiny.own_images(tmp_path).rename(tmp_path / "unlabeled")
    with pytest.raises(ValueError, match="has folders of parts, such as Training, and others: unl"):
        data.from_folder(str(tmp_path), **SMALL)
    folder = tiny.own_images(tmp_path, {"bus": 4, "train": 4})
    assert data.from_folder(str(folder), **SMALL).class_names == ("bus", "train")


def test_a_table_of_images_may_give_the_labels(tmp_path):
    folder = tiny.own_images(tmp_path)
    names = ["cat"] * 6 + ["dog"] * 5
    files = [f"cat/{k}.png" for k in range(6)] + [f"dog/{k}.png" for k in range(5)]
    lines = ["file,label", *(f"{file},{name}" for file, name in zip(files, names, strict=True))]
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    dataset = data.from_folder(str(folder), csv_file="a.csv", classes=("dog", "cat"), **SMALL)
    assert dataset.class_counts.tolist() == [3, 4]
    for text, message in (
        ("file,label\ncat/0.png,cat\ncat/77.png,cat\ncat/78.png,cat\n", "77.png .line 3., and 1 m"),
        ("file,label\ncat/0.png,\n", "line 2 of .*a.csv has no label"),
        (
            "file,label,split\ncat/0.png,cat,held\n",
            "line 2 of .* has the split 'held', which must be",
        ),
        ("file,label\ncat/0\0.png,cat\n", r"line 2 of .*a.csv names 'cat/0\\x00.png', which is no"),
        (f"file,label\n{'a' * 300},cat\n", "line 2 of .*a.csv names 'aaa.*', which is no path: "),
        ("file,label\n\x1b[2J.png,cat\n", r"files that do not exist: .*own_images/\\x1b\[2J.png"),
        (
            "image,label\ncat/0.png,cat\n",
            "must name the columns file, label and optionally split .* it has 'image', ",
        ),
        ("file,label\n", "a.csv has no files: add a line for each"),
        (
            "file,label\ncat/0.png,fish\n",
            "0.png has the label 'fish', which is none of the classes dog",
        ),
    ):
        (folder / "a.csv").write_text(text)
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            data.from_folder(str(folder), csv_file="a.csv", classes=("dog", "cat"), **SMALL)


@pytest.mark.parametrize(
    "lines",
    [
        ["cat/0.png,cat", "cat/1.png,cat", "cat/0.png,cat"],
        ["cat/0.png,cat,train", "cat/1.png,cat,val", "cat/0.png,cat,test"],
        ["cat/0.png,cat", "cat/1.png,cat", "cat/0.png,dog"],
        ["cat/0.png,cat", "cat/1.png,cat", "dog/../cat/./0.png,cat"],
        ["cat/0.png,cat", "cat/1.png,cat", "../own_images/cat/0.png,cat"],
        ["cat/0.png,cat", "cat/1.png,cat", "linked.png,cat"],
    ],
)
def test_a_table_that_names_an_image_twice_is_refused(tmp_path, lines):
    """An image in two parts would be trained on and tested."""
    folder = tiny.own_images(tmp_path)
    (folder / "linked.png").symlink_to(folder / "cat" / "0.png")
    (folder / "l.csv").write_text("\n".join(["file,label,split", *lines]) + "\n")
    again = lines[-1].partition(",")[0]
    message = rf"line 4 of .*l\.csv names {again} again \(line 2\): list each image once\."
    with pytest.raises(ValueError, match=message):
        data.from_folder(str(folder), csv_file="l.csv", **SMALL)


def test_folders_that_are_no_data_set(tmp_path):
    def refused(message, folder=tmp_path, **options):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            data.from_folder(str(folder), **SMALL | options)

    refused("there is no folder .*absent.\nPut the images into", tmp_path / "absent")
    refused("has no folders.\nPut the images into one for each class")
    folder = tiny.own_images(tmp_path, {"cat": 4, "dog": 3})
    refused("augment must be one of 'none', .* got 'turn'", folder, augment="turn")
    refused("channels must be 3 for colour or 1 for grey, got 4", folder, channels=4)
    refused("seed must be at least 0, got -1", folder, seed=-1)
    (folder / "empty").mkdir()
    refused("the class .*empty has no images: add some, or remove the folder", folder)
    (folder / "empty" / "0.png").write_bytes((folder / "cat" / "0.png").read_bytes())
    refused("the class 'empty' has 1 example, and needs 3: one for each of train", folder)
    (folder / "empty" / "0.png").unlink()
    (folder / "empty").rmdir()
    (folder / "dog" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    refused(r"dog/1\.png cannot be read as an image: .*; replace this file or remove it", folder)
    # Pillow hands PostScript to another program, whatever the name of the file.
    for content in (b"no image", POSTSCRIPT):
        (folder / "dog" / "1.png").write_bytes(content)
        refused(r"1\.png cannot be read as an image: no PNG, JPEG, .* or TIFF; replace", folder)
    assert not list(folder.glob("*.npz"))
    for path in (folder / "dog").iterdir():
        path.unlink()
    (folder / "dog").rmdir()
    refused("has one class, 'cat', and needs two or more", folder)


def test_labels_that_count_from_1_are_named():
    with pytest.raises(ValueError, match="no label is 0: labels count from 0"):
        data.from_arrays(PIXELS, LABELS + 1)
