"""Data sets of the user's own: arrays, folders of images, and data sets of other libraries."""

import jax
import numpy as np
import pytest
from PIL import Image

from calib_jax import data
from calib_jax.core.examples import Examples
from calib_jax.data.images import image_files
from tests.data import tiny, tiny_photographs

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
    assert dataset.brightest == 255
    assert dataset.description.endswith("21 to train, 6 to validate, 3 to test, in 3 classes.")


@pytest.mark.parametrize("fraction", [0.4, 0.42, 0.45])
@pytest.mark.parametrize("count", [3, 4, 6, 8])
def test_each_part_has_an_example_of_each_class(count, fraction):
    labels = np.repeat([0, 1], [count, 20])
    dataset = data.from_arrays(np.arange(len(labels)), labels, validation=fraction, test=fraction)
    for part in (dataset.train, dataset.validation, dataset.test):
        assert np.bincount(part.labels, minlength=2).min() > 0


def test_arrays_may_have_their_parts_names_and_trees():
    names = np.array(["eel", "ant"] * 5)
    for form in (object, "S", np.dtypes.StringDType()):
        assert data.from_arrays(np.arange(10), names.astype(form)).class_names == ("ant", "eel")
    tree = {"words": np.arange(10)[:, None], "length": np.ones(10, int)}
    held = ({"words": np.array([[7]]), "length": np.array([1])}, ["eel"])
    dataset = data.from_arrays(tree, names, validation=held, test=0.2)
    assert dataset.class_names == ("ant", "eel")
    assert dataset.validation.labels.tolist() == [1]
    np.testing.assert_array_equal(dataset.train.labels, 1 - dataset.train.inputs["words"][:, 0] % 2)
    data.from_arrays(PIXELS[:, :3, :, [0, 1, 2, 0]], LABELS)  # three rows, four channels
    grey = data.from_arrays(PIXELS[..., 0], LABELS, class_names=("a", "b", "c"))
    assert grey.train.inputs.shape[1:] == (4, 5, 1)
    floats = data.from_arrays(PIXELS.astype(np.float32), LABELS)
    np.testing.assert_array_equal(floats.prepare(floats.train.inputs), floats.train.inputs)
    assert floats.train.inputs.dtype == np.float32
    dark = np.arange(30 * 64, dtype=int).reshape(30, 8, 8, 1) == 9  # deviates by less than a level
    dark = data.from_arrays(dark.astype(np.uint8), LABELS)
    seen = np.concatenate([dark.prepare(part.inputs) for part in (dark.train, dark.test)])
    np.testing.assert_allclose(np.unique(seen)[1:] - seen.min(), 1, rtol=1e-4)


SMALL = {"height": 4, "width": 5}


def test_an_image_is_cut_in_the_middle_and_resized(tmp_path):
    """The halves of 8 x 4 pixels: of a square, the columns 2 to 5 are left."""
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 3:] = 200
    pixels[:, 6:] = 100
    for name in ("_a", "b"):
        (tmp_path / name).mkdir()
        for k in range(3):
            Image.fromarray(pixels).save(tmp_path / name / f"{k}.png")
    image = data.from_folder(str(tmp_path), height=4, width=4).train.inputs[0]
    np.testing.assert_array_equal(image, pixels[:, 2:6])
    for size, padding in ((8, 1), (16, 2)):  # an eighth of the height
        options = {"height": size, "width": 4, "augment": "crop_and_flip"}
        white = Examples(np.full((size, 4, 3), 255, np.uint8), np.zeros((), int))
        augment = jax.vmap(data.from_folder(str(tmp_path), **options).augment, (0, None))
        seen = jax.jit(augment)(jax.random.split(jax.random.key(0), 99), white)
        empty = np.all(np.asarray(seen.inputs) == 0, axis=(2, 3))
        assert empty.sum(axis=1).max() == padding


def test_folders_and_columns_may_give_the_parts(tmp_path):
    for part in ("train", "val"):
        tiny.own_images(tmp_path).rename(tmp_path / part)
    dataset = data.from_folder(str(tmp_path), **SMALL)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [12, 15, 3]
    lines = ["File,label,split"]
    for k in range(4):
        lines += [f"train/cat/{k}.png,10.5,Train", f"val/newt/{k}.png,9,{'test' if k > 1 else ''}"]
    (tmp_path / "images.csv").write_text("\n".join(lines) + "\n")
    dataset = data.from_folder(str(tmp_path), csv_file="images.csv", **SMALL)
    assert dataset.class_names == ("9", "10.5")
    parts = (dataset.train, dataset.validation, dataset.test)
    assert [np.bincount(part.labels).tolist() for part in parts] == [[1, 3], [1, 1], [2]]


FIRST = np.moveaxis(PIXELS, -1, 1)
REFUSED = {
    r"got \(30, 3, 4, 5\):.* puts the channels last": (FIRST, LABELS, {}),
    "validation must be a fraction or a pair .* got str": (PIXELS, LABELS, {"validation": "10 %"}),
    "must leave examples to train on": (PIXELS, LABELS, {"validation": 0.5, "test": 0.5}),
    "train: inputs and labels must have one entry": (PIXELS[1:], LABELS, {}),
    "test: inputs must be .* as in training": (PIXELS, LABELS, {"test": (FIRST, LABELS)}),
    "label nan of example 2 is no name": (PIXELS, np.array(["a", "b", np.nan], object)[LABELS], {}),
    "the label 3 of example 2 must be one of the 3": (PIXELS, LABELS + (LABELS == 2), {}),
    "label d of example 0 .* classes, a, b, c": (PIXELS, np.array([*"dbc"])[LABELS], {}),
    r"got \(30, 1, 4, 5\):.* puts the channels last": (FIRST[:, :1], LABELS, {}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_arrays_that_do_not_fit_are_refused_in_a_sentence(message):
    pixels, labels, options = REFUSED[message]
    with pytest.raises(ValueError, match=message):
        data.from_arrays(pixels, labels, class_names=("a", "b", "c"), **options)


def test_data_sets_of_other_libraries_become_arrays():
    photos = [Image.new("RGB", (6 + k, 4), (10 * k, 0, 0)) for k in range(3)]
    hugging_face = [{"image": photo, "labels": k} for k, photo in enumerate(photos)]
    x, y = data.arrays_of(hugging_face, inputs="image", labels="labels", size=(2, 3))
    assert (x.shape, x.dtype, y.tolist()) == ((3, 2, 3, 3), np.uint8, [0, 1, 2])
    assert x[2, 0, 0].tolist() == [20, 0, 0]
    of_torch = [(np.zeros((3, 4, 5), np.float32), 1), (np.ones((3, 4, 5), np.float32), 0)]
    x, y = data.arrays_of(of_torch, channels_first=True)
    assert (x.shape, x.dtype, y.tolist()) == ((2, 4, 5, 3), np.float32, [1, 0])
    x, _ = data.arrays_of([(photos[0], 0), (photos[1].convert("L"), 1)], size=(3, 2))
    assert x.shape == (2, 3, 2, 3)
    assert np.ptp(x[1], axis=-1).max() == 0
    assert data.arrays_of([(photos[0].convert("L"), 0)] * 2)[0].shape == (2, 4, 6)


def test_grey_and_deep_images_become_bytes():
    grey = PIXELS[0, ..., 0] // 2
    repeated = np.repeat(grey[..., None], 3, axis=-1)
    coded = tiny_photographs.png(grey)
    np.testing.assert_array_equal(image_files.pixels(coded, (4, 5, 3)), repeated)
    assert image_files.pixels(tiny_photographs.photograph(1, 40, 30), (30, 40, 3)).std() > 9
    deep = Image.fromarray(grey.astype(np.uint16) * 257 + 100)
    np.testing.assert_array_equal(image_files.eight_bits(deep, "L"), grey)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_of_images(tmp_path, channels, monkeypatch):
    folder = tiny.own_images(tmp_path)
    (folder / ".git").mkdir()  # is no class
    monkeypatch.setenv("HOME", str(tmp_path))
    dataset = data.from_folder(f"~/{folder.name}", channels=channels, **SMALL)
    assert dataset.class_names == ("cat", "dog", "newt")
    parts = (dataset.train, dataset.validation, dataset.test)
    assert [np.bincount(part.labels).tolist() for part in parts] == [[4, 3, 2], [1] * 3, [1] * 3]
    # Each class has its own range of levels, which no resizing leaves.
    for part in parts:
        assert part.inputs.shape[1:] == (4, 5, channels)
        np.testing.assert_array_equal(part.inputs.mean((1, 2, 3)) // 60, part.labels)


def test_a_table_of_images_gives_the_labels(tmp_path):
    folder = tiny.own_images(tmp_path)
    lines = [f"cat/{k}.png,cat" for k in range(6)] + [f"dog/{k}.png,dog" for k in range(5)]
    (folder / "a.csv").write_text("\n".join(["file,label", *lines]) + "\n")
    dataset = data.from_folder(str(folder), csv_file="a.csv", classes=("dog", "cat"), **SMALL)
    assert dataset.class_counts.tolist() == [3, 4]
