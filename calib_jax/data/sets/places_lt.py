"""Places-LT: a long-tailed selection of Places365, photographs of 365 kinds of places, streamed.

The photographs come from Places365-Standard with small images (256 x 256), at
http://places2.csail.mit.edu/download.html: train_256_places365standard.tar (24 GB, its folder is
`data_256`) and val_256.tar (501 MB). The lists Places_LT_train.txt, Places_LT_val.txt and
Places_LT_test.txt are by Liu et al. 2019, https://github.com/zhmiao/OpenLongTailRecognition-OLTR.
"""

import pathlib

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files
from calib_jax.data.images.jpeg import Listed, check_sizes, listed, photographs
from calib_jax.data.images.scenes import recolored

_LISTS = {"train": "Places_LT_train.txt", "validation": "Places_LT_val.txt"}
_LISTS |= {"test": "Places_LT_test.txt"}
_KIND = "a list of photographs and classes"
_ABOUT = About(
    title="Places-LT, photographs of 365 kinds of places, long-tailed",
    licence="terms of Places365: non-commercial research and education only",
    counts={"train": 62_500 + 7_300, "test": 36_500},
    official=(_LISTS["train"],),
    by_hand=(
        "unpack train_256_places365standard.tar (to data_256) and val_256.tar from"
        " http://places2.csail.mit.edu/download.html there, and add Places_LT_train.txt,"
        " Places_LT_val.txt and Places_LT_test.txt of"
        " https://github.com/zhmiao/OpenLongTailRecognition-OLTR"
    ),
    size=24_500_000_000,
)


@register("places_lt", _ABOUT)
def places_lt(
    *, data_dir: str | None = None, size: int = 224, resize: int = 256, jitter: float = 0.4
) -> Dataset:
    """Stream Places-LT: 62,500 photographs to train (5 to 4,980 a class), 7,300 and 36,500.

    The published lists define the parts; validation and test have equal classes. Training
    crops a random window, resizes it to `size` and mirrors it half of the time; its brightness,
    contrast and saturation change on the device. Evaluation resizes the shorter side to `resize`
    and crops the center. Photographs are normalized by ImageNet's statistics. With
    data.order=class_balanced classes are drawn equally often, as in the second stage of Kang et al.

    Args:
      data_dir: the folder of the data sets. Either it, or its subfolder `places_lt`, contains the
        three lists and the folders that they name, `data_256` and `val_256`. None uses the
        environment variable CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      size: side of the returned images, in pixels.
      resize: length of the shorter side before the center crop of evaluation.
      jitter: the largest relative change of the colors of training images; 0 for none.

    References:
      Liu et al. 2019, Large-Scale Long-Tailed Recognition in an Open World.
      Kang et al. 2020, Decoupling Representation and Classifier for Long-Tailed Recognition.
    """
    check_sizes(size, resize)
    checks.between("jitter", jitter, 0, 1)
    place = files.find("places_lt", _ABOUT, data_dir).path.parent
    parts = {part: _listed(place, name) for part, name in _LISTS.items()}
    classes = _class_names(parts["train"])
    for name, of_part in parts.items():
        if (largest := of_part.labels.max()) >= len(classes):
            raise reading.Unreadable(
                f"{place / _LISTS[name]} has the class {largest}, and {_LISTS['train']} has"
                f" {len(classes)} classes: get the lists anew."
            )
    numbered = {part: (there, np.arange(len(there.names))) for part, there in parts.items()}
    rule = "the published lists of Liu et al. 2019"
    sides = (size, resize)
    return photographs("places_lt", _ABOUT, classes, numbered, sides, rule, recolored(jitter))


def _listed(place: pathlib.Path, name: str) -> Listed:
    """Read a list of lines such as `data_256/a/airfield/00000001.jpg 0`."""
    path = place / name
    names, labels = [], []
    for number, line in enumerate(reading.text(path, _KIND, "get it anew").splitlines(), start=1):
        photograph, _, label = line.rpartition(" ")
        if not photograph or not label.isdecimal() or len(label) > 6:
            raise reading.Unreadable(
                f"{path}, line {number}, must be a photograph and a class number: got"
                f" {line[:80]!r}."
            )
        names.append(photograph)
        labels.append(int(label))
    return listed(path, place, names, labels)


def _class_names(train: Listed) -> tuple[str, ...]:
    """Return the folder of each class, such as `a/airfield`."""
    numbers, first = np.unique(train.labels, return_index=True)  # photographs are sorted by class
    if missing := sorted({*range(numbers[-1] + 1)} - {*numbers.tolist()}):
        raise reading.Unreadable(
            f"{_LISTS['train']} has no photograph of class {missing[0]}: get the list anew."
        )
    paths = [pathlib.PurePosixPath(train.names[row].decode()) for row in first]
    return tuple("/".join(path.parts[1:-1]) for path in paths)
