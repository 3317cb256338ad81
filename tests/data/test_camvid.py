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
    for _ in range(2):  # the second time from the cache
        dataset = data.camvid(data_dir=str(folder))
        for part, name in PARTS.items():
            expected = [pairs[key] for key in sorted(pairs) if key[0] == name]
            source = getattr(dataset, part)
            assert source.inputs.dtype == np.uint8
            np.testing.assert_array_equal(source.inputs, [image for image, _ in expected])
            np.testing.assert_array_equal(source.labels, [labels for _, labels in expected])
            np.testing.assert_array_equal(source.weights, source.labels != 11)
    assert "6 images to train, 3 to validate, 4 to test" in dataset.description
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
    # The cache of one size is not that of another.
    again = data.camvid(data_dir=str(folder), training_size=2)
    np.testing.assert_array_equal(again.train.inputs, stored.train.inputs[:2])


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_every_size_has_its_cache(folder, form, monkeypatch):
    tiny.camvid(folder)
    if form == "archive":
        packed(folder)
    sizes = ({}, {"height": 6, "width": 8}, {"height": 8, "width": 6})
    decoded = [data.camvid(data_dir=str(folder), **size) for size in sizes]
    monkeypatch.setattr("PIL.Image.open", None)  # from now on nothing can be decoded
    for size, before in zip(sizes, decoded, strict=True):
        after = data.camvid(data_dir=str(folder), **size)
        np.testing.assert_array_equal(after.test.inputs, before.test.inputs)
    place, prefix = (folder / "camvid", "") if form == "folder" else (folder, "camvid_")
    names = {path.name.removeprefix(prefix) for path in place.glob("*.npz")}
    assert names == {f"calib_jax_decoded{end}.npz" for end in ("", "_6x8", "_8x6")}


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


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("trainannot/frame_9.png", np.full((12, 16), 12, np.uint8), r"frame_9\.png has the label"),
        ("valannot/frame_9.png", np.zeros((12, 16, 3), np.uint8), "it has colors .RGB."),
        ("test/frame_9.png", np.zeros((8, 16, 3), np.uint8), "16 x 8 pixels, and its label map"),
        ("testannot/frame_9.png", None, "has no frame_9 in testannot"),
        ("val/frame_9.png", b"no", r"val/frame_9\.png cannot be read as an image: no JPEG"),
        ("valannot/frame_9.png", tiny.coded(np.zeros((12, 16), np.uint8), "JPEG"), "JPEG changes"),
        ("train/other.jpg", np.zeros((12, 16, 3), np.uint8), "has no other in trainannot"),
    ],
)
def test_files_that_do_not_fit_are_named(folder, file, content, message):
    tiny.camvid(folder)
    path = folder / "camvid" / file
    if content is None:
        path.unlink()
    else:
        is_image = isinstance(content, np.ndarray)
        path.write_bytes(tiny.coded(content, "PNG") if is_image else content)
    with pytest.raises(ValueError, match=message) as caught:
        data.camvid(data_dir=str(folder))
    assert str(folder) in str(caught.value)


def test_a_pair_of_another_size_than_the_first_is_named(folder):
    tiny.camvid(folder)
    for kind, shape in (("", (8, 16, 3)), ("annot", (8, 16))):
        path = folder / "camvid" / f"val{kind}" / "frame_11.png"
        path.write_bytes(tiny.coded(np.zeros(shape, np.uint8), "PNG"))
    with pytest.raises(ValueError, match=r"frame_11\.png has 16 x 8 pixels, unlike the first"):
        data.camvid(data_dir=str(folder))
    assert data.camvid(data_dir=str(folder), height=4, width=4).test.labels.shape == (4, 4, 4)


def test_sizes_that_do_not_exist_are_refused(folder):
    tiny.camvid(folder)
    with pytest.raises(ValueError, match="give both height and width, or neither"):
        data.camvid(data_dir=str(folder), height=120)
    with pytest.raises(ValueError, match=r"training_size must lie in \[1, 6\], got 7"):
        data.camvid(data_dir=str(folder), training_size=7)
    with pytest.raises(ValueError, match="height must be at least 1, got 0"):
        data.camvid(data_dir=str(folder), height=0, width=4)
