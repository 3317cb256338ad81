"""CamVid: label maps with void, both forms, sizes, and pairs that stay together."""

import tarfile

import jax
import numpy as np
import pytest

from calib_jax import data
from tests.data import tiny

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
