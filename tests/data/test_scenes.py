"""Road scenes: pairs of images and label maps in every form, void, sizes, windows, wrong files."""

import tarfile

import jax
import numpy as np
import pytest

from calib_jax import data
from calib_jax.core.examples import Draw
from calib_jax.data.images.scenes import window
from calib_jax.data.sets.cityscapes import CLASSES
from tests.data import tiny, tiny_photographs

VOID = len(CLASSES)


def train_ids(label_map):
    """The class of each pixel by the benchmark's table, pixel by pixel."""
    numbers = {value: number for number, value in enumerate(CLASSES)}
    return np.array([[numbers.get(int(value), VOID) for value in row] for row in label_map])


def test_the_parts_of_cityscapes(folder):
    frames = tiny_photographs.cityscapes(folder)
    dataset = data.cityscapes(data_dir=str(folder), crop=8, held_out=["ulm"])
    parts = {
        "train": [f for f in frames if f[0] == "train" and not f[1].startswith("ulm")],
        "validation": [f for f in frames if f[1].startswith("ulm")],
        "test": [f for f in frames if f[0] == "val"],
    }
    for part, expected in parts.items():
        source = getattr(dataset, part)
        assert len(source) == len(expected)
        number = len(expected) // 2
        some = source[np.array([number, 0])]
        for row, (_, _, image, label_map) in enumerate([expected[number], expected[0]]):
            np.testing.assert_array_equal(some.inputs[row], image)
            np.testing.assert_array_equal(some.labels[row], train_ids(label_map))
            np.testing.assert_array_equal(some.weights[row], some.labels[row] != VOID)
    assert dataset.class_names[:3] == ("road", "sidewalk", "building")
    assert [*CLASSES] == [7, 8, 11, 12, 13, 17, *range(19, 29), 31, 32, 33]
    assert "12 to train, 3 to validate, 6 to test" in dataset.description


def test_windows_of_image_and_label_map_are_the_same(folder):
    for _, frame, _, label_map in tiny_photographs.cityscapes(folder):
        # Let the image hold its labels, so that a pixel shows whether its label came along.
        part = "val" if frame.startswith(tiny_photographs.CITIES["val"]) else "train"
        city = frame.partition("_")[0]
        path = folder / f"cityscapes/leftImg8bit/{part}/{city}/{frame}_leftImg8bit.png"
        path.write_bytes(tiny_photographs.png(np.repeat(label_map[..., None], 3, axis=-1)))
    source = data.cityscapes(data_dir=str(folder), crop=9, scales=(1.0,)).train
    some, index = source[np.arange(4)], np.arange(4)
    draw = Draw(seed=0, epoch=1, copy=2)
    after = source.drawn(index, draw)
    assert after.inputs.shape == (4, 9, 9, 3)
    for row in range(4):
        np.testing.assert_array_equal(after.labels[row], train_ids(after.inputs[row, ..., 0]))
        random = np.random.default_rng([0, 1, row, 3])
        random.integers(1)  # the scale
        top, left = (random.random(2) * [12 - 9 + 1, 24 - 9 + 1]).astype(int)
        shown = some.labels[row, top : top + 9, left : left + 9]
        expected = shown[:, ::-1] if random.random() < 0.5 else shown
        np.testing.assert_array_equal(after.labels[row], expected)
    same = source.drawn(index[::-1], draw)
    np.testing.assert_array_equal(same.labels[::-1], after.labels)
    assert not np.array_equal(source.drawn(index, Draw(seed=0, epoch=2)).labels, after.labels)


def test_a_window_larger_than_the_scene_is_void_outside(folder):
    tiny_photographs.cityscapes(folder)
    source = data.cityscapes(data_dir=str(folder), crop=16, scales=(0.5, 2.0)).train
    drawn = source.drawn(np.arange(6), Draw(seed=0, epoch=0))
    shown = (drawn.inputs.max(axis=-1) > 0).reshape(6, -1).sum(axis=1)
    # Half of 12 x 24 pixels lies inside 16 x 16; of the double a window fills it.
    assert set((shown > 100).tolist()) == {False, True}
    small = shown <= 6 * 12
    assert small.any()
    assert np.all(drawn.weights[small][:, 6:] == 0)


def test_the_window_of_a_scaled_scene():
    # The last place: rows 50 to 100 of the doubled 100 rows are rows 25 to 50 of the file.
    last = window((50, 60), (50, 60), (50, 50), 2.0, (0.999, 0.999))
    assert last == ((50, 50), (35.0, 25.0, 60.0, 50.0))
    # Resized to half its size before all else.
    assert window((50, 60), (25, 30), (25, 30), 1.0, (0.0, 0.0)) == ((25, 30), (0.0, 0.0, 60, 50))


def test_the_parts_of_synthia(folder):
    frames = tiny_photographs.synthia(folder)
    dataset = data.synthia(data_dir=str(folder))
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):  # whose split was 1's
        data.synthia(data_dir=str(folder), seed=-1)
    sizes = {part: len(getattr(dataset, part)) for part in ("train", "validation", "test")}
    assert sizes == {"train": 14, "validation": 2, "test": 4}
    images, labels = [], []
    for part in sizes:
        some = getattr(dataset, part)[np.arange(sizes[part])]
        images += [*some.inputs]
        labels += [*some.labels]
        np.testing.assert_array_equal(some.weights, some.labels != 13)
    by_image = {image.tobytes(): label_map for image, label_map in frames.values()}
    numbers = {**{value: value - 1 for value in range(1, 13)}, 15: 12}
    for image, classes in zip(images, labels, strict=True):
        published = by_image.pop(image.tobytes())
        expected = [[numbers.get(int(value), 13) for value in row] for row in published]
        np.testing.assert_array_equal(classes, expected)
    assert not by_image
    resized = data.synthia(data_dir=str(folder), height=6, width=12)
    drawn = resized.train.drawn(np.arange(2), Draw(seed=0, epoch=0))
    assert drawn.labels.shape == (2, 6, 12)
    # Colors change, and label maps stay.
    assert dataset.augment is None
    one = jax.tree.map(lambda leaf: leaf[0], dataset.train[np.arange(1)])
    augment = jax.jit(data.synthia(data_dir=str(folder), jitter=0.5).augment)
    after = augment(jax.random.key(0), one)
    assert (after.inputs.dtype, after.inputs.shape) == (np.uint8, one.inputs.shape)
    assert not np.array_equal(after.inputs, one.inputs)
    np.testing.assert_array_equal(after.labels, one.labels)


PARTS = {"train": "train", "validation": "val", "test": "test"}


def packed(folder):
    """Replace the folder by the archive of it."""
    with tarfile.open(folder / "camvid.tar", "w") as tar:
        tar.add(folder / "camvid", "camvid")
    (folder / "camvid").rename(folder / "unpacked")


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_images_and_label_maps_are_the_same_in_every_form(folder, form):
    pairs = tiny.camvid(folder)
    if form == "archive":
        packed(folder)
    dataset = data.camvid(data_dir=str(folder))
    for part, name in PARTS.items():
        expected = [pairs[key] for key in sorted(pairs) if key[0] == name]
        source = getattr(dataset, part)
        assert source.inputs.dtype == np.uint8
        np.testing.assert_array_equal(source.inputs, [image for image, _ in expected])
        np.testing.assert_array_equal(source.labels, [labels for _, labels in expected])
        np.testing.assert_array_equal(source.weights, source.labels != 11)
    assert "6 to train, 3 to validate, 4 to test" in dataset.description
    labels = np.stack([labels for (part, _), (_, labels) in pairs.items() if part == "train"])
    np.testing.assert_array_equal(dataset.class_counts, np.bincount(labels.flat)[:11])


def test_resizing_averages_images_and_picks_labels(folder):
    pairs = tiny.camvid(folder)
    stored = data.camvid(data_dir=str(folder))
    dataset = data.camvid(data_dir=str(folder), height=6, width=8)
    image, label_map = pairs["val", "frame_10"]
    number = sorted(name for part, name in pairs if part == "val").index("frame_10")
    example = dataset.validation[np.array([number])]
    means = image.reshape(6, 2, 8, 2, 3).mean(axis=(1, 3))
    assert np.abs(example.inputs[0] - means).max() <= 1  # rounded
    # The middle of two pixels is as near to either.
    either = label_map.reshape(6, 2, 8, 2).transpose(0, 2, 1, 3).reshape(6, 8, 4)
    assert np.all((either == example.labels[0][..., None]).any(axis=-1))
    again = data.camvid(data_dir=str(folder), training_size=2)
    np.testing.assert_array_equal(again.train.inputs, stored.train.inputs[:2])


def test_images_and_label_maps_are_augmented_together(folder):
    tiny.camvid(folder)
    dataset = data.camvid(data_dir=str(folder))
    some = dataset.train[np.arange(6)]
    # Let the image hold its label, so that a pixel shows whether its label came along.
    images = np.repeat(some.labels[..., None], 3, axis=-1).astype(np.uint8)
    keys = jax.random.split(jax.random.key(2), 6)
    after = jax.jit(jax.vmap(dataset.augment))(keys, some._replace(inputs=images))
    counts = np.asarray(after.weights) > 0
    np.testing.assert_array_equal(np.asarray(after.inputs)[..., 0][counts], after.labels[counts])
    np.testing.assert_array_equal(after.inputs[..., 2][counts], after.labels[counts])
    assert set(after.labels[counts].tolist()) == set(range(11))
    assert not np.array_equal(after.labels, some.labels)
