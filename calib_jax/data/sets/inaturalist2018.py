"""iNaturalist 2018: photographs of 8,142 species, naturally long-tailed, streamed from disk.

https://github.com/visipedia/inat_comp/tree/master/2018 links the official files:

    train_val2018.tar.gz     120 GB, the photographs
    train2018.json.tar.gz     26 MB, the training list
    val2018.json.tar.gz       26 MB, the validation list
"""

import pathlib

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register, some_of_each
from calib_jax.data.formats import files
from calib_jax.data.images.jpeg import Listed, check_sizes, listed, photographs

_LISTS = ("train2018.json", "val2018.json")
_KIND, _ADVICE = "a list of iNaturalist", "get it anew"
_MAX_BYTES = 1 << 29
_ABOUT = About(
    title="iNaturalist 2018, photographs of 8,142 species",
    licence="terms of the competition: non-commercial research and education only",
    counts={"train": 437_513},
    official=_LISTS[:1],
    by_hand=(
        "unpack train_val2018.tar.gz, train2018.json.tar.gz and val2018.json.tar.gz of"
        " https://github.com/visipedia/inat_comp/tree/master/2018 there"
    ),
    size=120_000_000_000,
)


@register("inaturalist2018", _ABOUT)
def inaturalist2018(
    *,
    data_dir: str | None = None,
    validation_per_class: int = 1,
    seed: int = 0,
    size: int = 224,
    resize: int = 256,
) -> Dataset:
    """Stream iNaturalist 2018: 437,513 photographs to train, 2 to 1,000 of each species.

    The official validation part has three photographs of each species: one validates and two
    test, because the labels of the official test part are not published. Training crops a random
    window, resizes it to `size` and mirrors it half of the time. Evaluation resizes the shorter
    side to `resize` and crops the center. Photographs are normalized by ImageNet's statistics. With
    data.order=class_balanced classes are drawn equally often, as in the second stage of Kang et al.

    Args:
      data_dir: the folder of the data sets. Either it, or its subfolder `inaturalist2018`, contains
        `train2018.json`, `val2018.json` and the folder `train_val2018`. None uses the environment
        variable CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      validation_per_class: how many photographs of each species of the official validation part
        validate; the others test.
      seed: seed of this split.
      size: side of the returned images, in pixels.
      resize: length of the shorter side before the center crop of evaluation.

    References:
      Van Horn et al. 2018, The iNaturalist Species Classification and Detection Dataset.
      Kang et al. 2020, Decoupling Representation and Classifier for Long-Tailed Recognition.
    """
    checks.whole("validation_per_class", validation_per_class)
    check_sizes(size, resize)
    place = files.find("inaturalist2018", _ABOUT, data_dir).path.parent
    (train, names), (others, same) = (_listed(place, name) for name in _LISTS)
    if names != same:
        raise reading.Unreadable(
            f"{_LISTS[0]} and {_LISTS[1]} in {place} have other classes: get both anew."
        )
    validating = some_of_each(
        others.labels, names, validation_per_class, name="inaturalist2018", seed=seed
    )
    testing = np.delete(np.arange(len(others.labels)), validating)
    parts = {
        "train": (train, np.arange(len(train.labels))),
        "validation": (others, validating),
        "test": (others, testing),
    }
    rule = f"{validation_per_class} of each class of the official validation part, seed {seed}"
    rule += "; Van Horn et al. 2018"
    return photographs("inaturalist2018", _ABOUT, names, parts, (size, resize), rule)


def _listed(place: pathlib.Path, name: str) -> tuple[Listed, tuple[str, ...]]:
    """Read a list in the COCO format; return its photographs and the names of the classes."""
    path = place / name
    content = reading.json_mapping(path, _KIND, _ADVICE, at_most=_MAX_BYTES)
    # The JSON may have any form: the guard turns a missing or wrong entry into one sentence.
    with reading.guard(path, _KIND, _ADVICE, library=True):
        for table in ("images", "annotations", "categories"):
            if not isinstance(content.get(table), list):
                raise ValueError(f"it has no list {table}")
        files_by_id = {row["id"]: row["file_name"] for row in content["images"]}
        classes = {row["id"]: str(row["name"]) for row in content["categories"]}
        names = [files_by_id[row["image_id"]] for row in content["annotations"]]
        labels = [row["category_id"] for row in content["annotations"]]
        if sorted(classes) != list(range(len(classes))) or not set(labels) <= classes.keys():
            raise ValueError(f"category_id must lie in [0, {len(classes) - 1}]")
        return listed(path, place, names, labels), tuple(classes[k] for k in range(len(classes)))
