"""Places-LT and iNaturalist 2018: published lists, photographs that are absent, wrong lists."""

import numpy as np

from calib_jax import data
from calib_jax.core.examples import Draw
from calib_jax.data.images.jpeg import center
from tests.data import tiny_scenes


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
    lines = tiny_scenes.places_lt(folder)
    dataset = data.places_lt(data_dir=str(folder), size=8, resize=9)
    for part, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        pairs = [(line.split()[0], int(line.split()[1])) for line in lines[name]]
        actual = photographs(getattr(dataset, part))
        assert actual == expected_of(folder / "places_lt", pairs)
    assert dataset.class_names == ("a/airfield", "b/beach", "z/zoo")
    np.testing.assert_array_equal(dataset.class_counts, [9, 4, 2])
    drawn = dataset.train.drawn(np.arange(3), Draw(seed=0, epoch=0))
    assert drawn.inputs.shape == (3, 8, 8, 3)
    assert "15 to train, 6 to validate, 9 to test" in dataset.description


def test_inaturalist_is_the_published_lists(folder):
    classes = tiny_scenes.inaturalist2018(folder)
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
