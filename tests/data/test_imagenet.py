"""Photographs: ImageNet, Places-LT and iNaturalist in their order, with classes and windows."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from calib_jax import data
from calib_jax.core.examples import Draw, RandomViews, read
from calib_jax.data.images import jpeg
from calib_jax.data.images.jpeg import center
from tests.data import tiny_photographs

SMALL = {"validation_per_class": 2, "size": 24, "resize": 28}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One that no test changes."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_photographs.folders(folder)
    return folder


def load(folder, **options):
    return data.named("imagenet", data_dir=str(folder), **SMALL | options)


def test_every_photograph_is_in_one_part_with_its_class(whole):
    dataset = load(whole)
    assert dataset.class_names == tiny_photographs.CLASSES
    # With a size of its own, every file is known by what its centre looks like.
    known = {}
    for _, label, content in [*tiny_photographs.train_files(), *tiny_photographs.val_files()]:
        known[jpeg.center(content, 24, 28).tobytes()] = label
    assert len(known) == 3 * (tiny_photographs.TRAIN + tiny_photographs.VAL)
    seen = []
    for part, size in (("train", 18), ("validation", 6), ("test", 12)):
        images, labels, _ = getattr(dataset, part)[np.arange(size)]
        assert len(getattr(dataset, part)) == size
        assert (images.shape, images.dtype) == ((size, 24, 24, 3), np.uint8)
        assert [known[image.tobytes()] for image in images] == labels.tolist()
        assert np.bincount(labels).tolist() == [size // 3] * 3
        seen += [image.tobytes() for image in images]
    assert sorted(seen) == sorted(known)


def test_half_of_the_official_validation_set_may_validate(whole):
    dataset = load(whole, held_out="val", seed=3)
    assert [len(part) for part in (dataset.train, dataset.validation, dataset.test)] == [24, 6, 6]
    parts = (dataset.validation, dataset.test)
    seen = sorted(image.tobytes() for part in parts for image in part[np.arange(6)].inputs)
    images = load(whole).test[np.arange(12)].inputs
    assert seen == sorted(image.tobytes() for image in images)
    assert "half of the official validation set, drawn with seed 3" in dataset.description


def resized(pixels, size, box):
    """Resample by triangles, in float64, rounding in between as bytes do."""
    pixels = np.asarray(pixels, np.float64)
    for axis, (length, low, high) in enumerate(
        [(size[1], box[1], box[3]), (size[0], box[0], box[2])]
    ):
        scale = (high - low) / length
        width = max(scale, 1.0)
        places = low + (np.arange(length) + 0.5) * scale
        distance = np.abs(np.arange(pixels.shape[axis]) + 0.5 - places[:, None]) / width
        weights = np.maximum(1 - distance, 0)
        weights /= weights.sum(axis=1, keepdims=True)
        pixels = np.moveaxis(np.tensordot(weights, pixels, (1, axis)), 0, axis)
    return pixels


def pixels_of(coded):
    with Image.open(io.BytesIO(coded)) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize(("width", "height"), [(90, 60), (60, 91), (31, 31), (20, 45)])
def test_the_centre_is_resampled_from_all_pixels(width, height):
    coded = tiny_photographs.photograph(5, width, height)
    scale = 32 / min(width, height)
    wide, tall = int(width * scale + 1e-9), int(height * scale + 1e-9)
    whole = resized(pixels_of(coded), (wide, tall), (0, 0, width, height))
    left, top = round((wide - 24) / 2), round((tall - 24) / 2)
    expected = whole[top : top + 24, left : left + 24]
    assert np.abs(jpeg.center(coded, 24, 32) - expected).max() <= 1.01


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_random_window_is_resampled_and_half_are_mirrored(form):
    """A JPEG is decoded at a half, a quarter or an eighth, and differs slightly."""
    coded = tiny_photographs.photograph(5, 90, 60)
    pixels = pixels_of(coded)
    if form == "PNG":
        coded = tiny_photographs.png(pixels)
    for seed, size in itertools.product(range(40), (4, 8, 12)):
        random = np.random.default_rng(seed)
        left, top, wide, tall = jpeg.window(90, 60, random)
        expected = resized(pixels, (size, size), (left, top, left + wide, top + tall))
        expected = expected[:, ::-1] if random.random() < 0.5 else expected
        seen = jpeg.random_window(coded, size, np.random.default_rng(seed))
        assert np.abs(seen - expected).mean() < (0.6 if form == "PNG" else 8)


def test_windows_have_the_law_of_the_papers():
    # Recorded.
    assert jpeg.window(500, 375, np.random.default_rng(0)) == (65, 166, 129, 171)
    random = np.random.default_rng(0)
    drawn = np.array([jpeg.window(500, 375, random) for _ in range(3000)])
    left, top, wide, tall = drawn.T
    assert min(left.min(), top.min()) == 0
    assert [(left + wide).max(), (top + tall).max()] == [500, 375]
    area, ratio = wide * tall / (500 * 375), wide / tall
    # Sides are whole pixels.
    assert 0.078 < area.min() < area.max() < 1.005
    assert 0.74 < ratio.min() < ratio.max() < 1.35
    # Below a quarter every window fits: uniform in area, log-uniform in ratio.
    small = area < 0.25
    assert abs(area[small].mean() - (0.08 + 0.25) / 2) < 5 * 0.17 / np.sqrt(12 * small.sum())
    logs = np.log(ratio[small])
    assert abs(logs.mean()) < 5 * np.log(16 / 9) / np.sqrt(12 * small.sum())


@pytest.mark.parametrize(
    ("width", "height", "expected"), [(1000, 10, (493, 0, 13, 10)), (10, 1000, (0, 493, 10, 13))]
)
def test_where_no_window_fits_it_is_in_the_middle(width, height, expected):
    assert jpeg.window(width, height, np.random.default_rng(0)) == expected


@pytest.mark.parametrize("mode", ["L", "CMYK", "PNG"])
def test_every_file_becomes_a_colour_image(mode):
    image = Image.fromarray(pixels_of(tiny_photographs.photograph(1, 40, 30)))
    coded = io.BytesIO()
    if mode == "PNG":  # ImageNet has one, by the name of a JPEG
        image.save(coded, "PNG")
    else:
        image.convert(mode).save(coded, "JPEG")
    seen = jpeg.center(coded.getvalue(), 24, 28)
    assert (seen.shape, seen.dtype) == ((24, 24, 3), np.uint8)
    expected = jpeg.center(tiny_photographs.photograph(1, 40, 30), 24, 28).astype(int)
    if mode == "L":
        expected = np.repeat(expected @ [[0.299], [0.587], [0.114]], 3, axis=-1)
    assert np.abs(seen - expected).mean() < 6
    assert jpeg.random_window(coded.getvalue(), 8, np.random.default_rng(0)).shape == (8, 8, 3)


def test_a_view_depends_on_seed_epoch_and_number_alone(whole):
    train = load(whole).train
    assert isinstance(train, RandomViews)
    one = train.drawn(np.arange(18), Draw(0, 3)).inputs
    # In another order, in other company.
    order = np.random.default_rng(0).permutation(18)
    np.testing.assert_array_equal(train.drawn(order, Draw(0, 3)).inputs, one[order])
    for row, number in enumerate(train.index[:3].tolist()):
        coded, random = (
            train.coded.path(number).read_bytes(),
            np.random.default_rng([0, 3, number, 3]),
        )
        view = train.drawn(np.array([row]), Draw(0, 3, copy=2)).inputs[0]
        np.testing.assert_array_equal(view, jpeg.random_window(coded, 24, random))
    # With another part held out, the same photographs still have the same windows.
    other = load(whole, held_out="val").train
    np.testing.assert_array_equal(other.drawn(train.index, Draw(0, 3)).inputs, one)
    for draw in (Draw(1, 3), Draw(0, 4)):
        assert not np.array_equal(one, train.drawn(np.arange(18), draw).inputs, equal_nan=False)
    assert read(train, np.arange(2)).inputs.tobytes() == train[np.arange(2)].inputs.tobytes()
    assert not isinstance(data.as_stored(train), RandomViews)
    np.testing.assert_array_equal(
        read(data.as_stored(train), np.arange(2), Draw(0, 0)).inputs, train[np.arange(2)].inputs
    )


def photographs(source):
    """The class and the centre of each photograph, sorted."""
    some = source[np.arange(len(source))]
    return sorted(zip(some.labels.tolist(), [x.tobytes() for x in some.inputs], strict=True))


def expected_of(folder, pairs):
    """The same, from the names of the photographs and their classes."""
    return sorted(
        (label, center((folder / name).read_bytes(), 8, 9).tobytes()) for name, label in pairs
    )


def test_places_lt_is_the_published_lists(folder):
    lines = tiny_photographs.places_lt(folder)
    dataset = data.places_lt(data_dir=str(folder), size=8, resize=9)
    for part, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        pairs = [(line.split()[0], int(line.split()[1])) for line in lines[name]]
        assert photographs(getattr(dataset, part)) == expected_of(folder / "places_lt", pairs)
    assert dataset.class_names == ("a/airfield", "b/beach", "z/zoo")
    np.testing.assert_array_equal(dataset.class_counts, [9, 4, 2])
    assert dataset.train.drawn(np.arange(3), Draw(seed=0, epoch=0)).inputs.shape == (3, 8, 8, 3)
    assert "15 to train, 6 to validate, 9 to test" in dataset.description


def test_inaturalist_is_the_published_lists(folder):
    classes = tiny_photographs.inaturalist2018(folder)
    dataset = data.inaturalist2018(data_dir=str(folder), size=8, resize=9)
    place = folder / "inaturalist2018"
    by_part = {
        part: expected_of(
            place, [(name, label) for (p, name), label in classes.items() if p == part]
        )
        for part in ("train", "val")
    }
    assert photographs(dataset.train) == by_part["train"]
    held_out = photographs(dataset.validation), photographs(dataset.test)
    assert sorted(held_out[0] + held_out[1]) == by_part["val"]
    assert [label for label, _ in held_out[0]] == [0, 1, 2]
    np.testing.assert_array_equal(dataset.class_counts, [7, 3, 2])
