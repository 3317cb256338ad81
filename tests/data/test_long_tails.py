"""Places-LT and iNaturalist 2018: published lists, photographs that are absent, wrong lists."""

import json

import numpy as np
import pytest

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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + "data_256/b/none.jpg 1\n", "names data_256/b/none.jpg, and .*unpack"),
        (lambda text: text + "../../etc/passwd 1\n", "which is outside"),
        (lambda text: text + "a\x1b[2J\0 1\n", r"names a\\x1b\[2J\\x00, and"),
        (
            lambda text: text + "data_256/b/beach\n",
            r"line 16, must be a photograph and a class num",
        ),
        (lambda text: text + "data_256/b/beach.jpg -1\n", "line 16, must be a photograph"),
        (lambda text: text.replace(" 2\n", " 3\n"), "has no photograph of class 2"),
        (lambda text: "", "names no photographs"),
        (
            lambda text: text.replace(" 2\n", " 1\n"),
            r"_val.txt has the class 2, and Places_LT_train.txt has 2",
        ),
    ],
)
def test_wrong_lists_of_places_are_named(folder, change, message):
    tiny_scenes.places_lt(folder)
    path = folder / "places_lt/Places_LT_train.txt"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message) as caught:
        data.places_lt(data_dir=str(folder))
    assert str(caught.value).count(". ") == 0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("images", {"id": 9, "file_name": "train_val2018/none.jpg"}, None),
        ("images", {"id": "9"}, r"images\[12\] has no id of type int"),
        (
            "annotations",
            {"image_id": 99, "category_id": 1},
            r"annotations\[\d+\] has the unknown image 99",
        ),
        ("annotations", {"image_id": 0, "category_id": 5}, r"category_id must lie in \[0, 2\]"),
        ("categories", {"id": 7, "name": "x"}, "not numbered from 0"),
        ("categories", 3, r"categories\[3\] has no id"),
    ],
)
def test_wrong_lists_of_inaturalist_are_named(folder, key, value, message):
    tiny_scenes.inaturalist2018(folder)
    path = folder / "inaturalist2018/train2018.json"
    content = json.loads(path.read_text())
    content[key].append(value)
    if message is None:
        content["annotations"].append({"image_id": 9, "category_id": 1})
        message = "train2018.json names train_val2018/none.jpg, and .* does not have it: unpack"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        data.inaturalist2018(data_dir=str(folder))


@pytest.mark.parametrize("key", ["images", "annotations", "categories"])
def test_a_list_of_inaturalist_without_a_table_is_named(folder, key):
    tiny_scenes.inaturalist2018(folder)
    path = folder / "inaturalist2018/train2018.json"
    content = json.loads(path.read_text())
    del content[key]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"list of iNaturalist: it has no table {key}; get it"):
        data.inaturalist2018(data_dir=str(folder))


def test_missing_files_say_what_to_fetch(folder):
    with pytest.raises(
        FileNotFoundError, match=r"train_val2018\.tar\.gz, train2018\.json\.tar\.gz"
    ):
        data.inaturalist2018(data_dir=str(folder))
    with pytest.raises(FileNotFoundError, match=r"train_256_places365standard\.tar"):
        data.places_lt(data_dir=str(folder))
    tiny_scenes.inaturalist2018(folder)
    with pytest.raises(ValueError, match="inaturalist2018: validation_per_class=3 leaves nothing"):
        data.inaturalist2018(data_dir=str(folder), validation_per_class=3)
    (folder / "inaturalist2018/val2018.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no file .*val2018\.json"):
        data.inaturalist2018(data_dir=str(folder))
