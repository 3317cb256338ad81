"""Cityscapes: frames of German streets with a class for every pixel, streamed from disk.

The labels of the official test images are not published, so the official validation images are the
test part here. After registration, www.cityscapes-dataset.com offers:

    leftImg8bit_trainvaltest.zip    11 GB, the images
    gtFine_trainvaltest.zip        241 MB, the label maps
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.data.dataset import About, Dataset, register, sizes
from calib_jax.data.formats import files
from calib_jax.data.images import scenes
from calib_jax.data.images.image_sets import IMAGENET, normalized
from calib_jax.data.images.scenes import SCALES, Pairs, Scenes

# The classes of the benchmark, by the numbers of the published label maps (`labelIds`).
CLASSES = {
    **{7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole"},
    **{19: "traffic light", 20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky"},
    **{24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train"},
    **{32: "motorcycle", 33: "bicycle"},
}
# Other objects, and 255 for license plates, whose number is -1.
_VOID = (*(value for value in range(34) if value not in CLASSES), 255)
_IMAGES, _LABELS = "leftImg8bit", "gtFine"
_ENDINGS = ("_leftImg8bit.png", "_gtFine_labelIds.png")
_HOW = (
    "register at https://www.cityscapes-dataset.com, and unpack leftImg8bit_trainvaltest.zip and"
    " gtFine_trainvaltest.zip there"
)
_ABOUT = About(
    title="Cityscapes, street scenes with 19 classes of pixels",
    licence="terms of cityscapes-dataset.com: non-commercial research and education only",
    counts={"train": 2975, "test": 500},
    official=(_IMAGES,),
    by_hand=_HOW,
    size=11_000_000_000 + 241_000_000,
)


@register("cityscapes", _ABOUT)
def cityscapes(
    *,
    data_dir: str | None = None,
    held_out: Sequence[str] = ("tubingen", "ulm", "zurich"),
    crop: int = 769,
    scales: Sequence[float] = SCALES,
    height: int | None = None,
    width: int | None = None,
    jitter: float = 0.5,
) -> Dataset:
    """Stream Cityscapes: 2,975 images of 18 cities to train and validate, 500 of 3 others to test.

    Pixels of the 19 classes of the benchmark have weight 1, all others are labelled 19 and have
    weight 0. Training images and label maps are scaled by one of six factors, cropped at random and
    mirrored half of the time, on the host; their brightness, contrast and saturation change on the
    device. Validation and test images stay whole. Images are normalized by ImageNet's statistics.

    Args:
      data_dir: the folder of the data sets. Either it, or its subfolder `cityscapes`, contains the
        official folders `leftImg8bit` and `gtFine`. None uses the environment variable
        CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      held_out: the cities of the training part that validate; whole cities, so that frames of one
        drive do not train and validate. 361 images by default.
      crop: the side of a training image, in pixels.
      scales: the factors by which training images are scaled, equally likely.
      height, width: the size to which scenes are resized before all else, such as 512 and 1024;
        None keeps 1024 x 2048.
      jitter: the largest relative change of the colors of training images; 0 for none.

    References:
      Cordts et al. 2016, The Cityscapes Dataset for Semantic Urban Scene Understanding.
      Tian et al. 2021, Recall Loss (crops of 769, the factors and the changes of colors).
    """
    checks.whole("crop", crop)
    checks.between("jitter", jitter, 0, 1)
    if not len(scales) or min(scales) <= 0:
        raise ValueError(f"cityscapes: scales must be factors above 0, such as 1.0; got {scales}.")
    size = scenes.size_of_scenes("cityscapes", height, width)
    located = files.find("cityscapes", _ABOUT, data_dir)
    train, test = (_pairs(located.path, part) for part in ("train", "val"))
    cities = [image.parent.name for image, _ in train]
    for city in held_out:
        checks.one_of("cityscapes: held_out", city, sorted(set(cities)))
    validating = np.isin(cities, list(held_out))
    if not validating.any() or validating.all():
        raise ValueError(
            f"cityscapes: held_out must name some of the cities and not all, got {held_out!r}."
        )
    table = scenes.table_of(CLASSES, _VOID)
    part = functools.partial(Scenes, table=table, void=len(CLASSES), size=size)
    sources: dict[str, Any] = {
        "train": part(train, np.flatnonzero(~validating), crop=(crop, crop), scales=tuple(scales)),
        "validation": part(train, np.flatnonzero(validating)),
        "test": part(test, np.arange(len(test))),
    }
    return Dataset(
        name="cityscapes",
        class_names=tuple(CLASSES.values()),
        **sources,
        description=(
            f"{_ABOUT.title}: {sizes(*sources.values())}, the official validation part;"
            f" validation is {', '.join(held_out)}; void pixels have weight 0; {located}. Licence:"
            f" {_ABOUT.licence}. Cordts et al. 2016."
        ),
        prepare=normalized(IMAGENET),
        brightest=255,
        augment=scenes.recolored(jitter),
    )


def _pairs(images: pathlib.Path, part: str) -> Pairs:
    """List the frames of a part of the official folders, sorted by name."""
    labels = images.with_name(_LABELS)
    if not labels.is_dir():
        raise FileNotFoundError(f"{images} is there, but {labels} is not: {_HOW}.")
    folders = (images / part, labels / part)
    return scenes.paired(folders, "*/*", _ENDINGS, _HOW)
