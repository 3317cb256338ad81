"""SYNTHIA: rendered video of a virtual city with a class for every pixel, streamed from disk.

Each sequence of SYNTHIA-SEQS is an archive of its own at synthia-dataset.net, such as
SYNTHIA-SEQS-05-SUMMER.rar. Only its folders RGB and GT/LABELS are read.
"""

import dataclasses
import functools
import random

import numpy as np

from calib_jax.core import checks
from calib_jax.data.dataset import About, Dataset, register, sizes
from calib_jax.data.formats import files
from calib_jax.data.images import scenes
from calib_jax.data.images.image_sets import IMAGENET, normalized
from calib_jax.data.images.scenes import ADVICE, Scenes

# The classes of the sequences, by the numbers of the published label maps.
CLASSES = {
    **{1: "sky", 2: "building", 3: "road", 4: "sidewalk", 5: "fence", 6: "vegetation", 7: "pole"},
    **{8: "car", 9: "traffic sign", 10: "pedestrian", 11: "bicycle", 12: "lane marking"},
    15: "traffic light",
}
_VOID = (0, 13, 14)  # void, and two reserved numbers
_PREFIX = "SYNTHIA-SEQS-"
_IMAGES, _LABELS = "RGB", "GT/LABELS"
_HOW = (
    "download a sequence, such as SYNTHIA-SEQS-05-SUMMER.rar, from"
    " https://synthia-dataset.net/downloads and unpack it there"
)
_ABOUT = About(
    title="SYNTHIA-SEQS, rendered street scenes with 13 classes of pixels",
    licence="CC BY-NC-SA 3.0",
    official=("SYNTHIA-SEQS-05-SUMMER",),
    by_hand=_HOW,
    size=5_000_000_000,
)


@register("synthia", _ABOUT)
def synthia(
    *,
    data_dir: str | None = None,
    sequence: str = "05-SUMMER",
    cameras: str = "Stereo_Left",
    height: int | None = None,
    width: int | None = None,
    seed: int = 0,
    jitter: float = 0.0,
) -> Dataset:
    """Stream a sequence of SYNTHIA-SEQS: 70 % of the frames train, 10 % validate, 20 % test.

    The frames are shuffled before they are split, as in the released code of the recall loss.
    Neighboring frames of the video are alike, so its test part is easier than another sequence.

    Pixels of the 13 classes have weight 1; void pixels are labelled 13 and have weight 0. The
    released code trains on void as a class. Training images and label maps are mirrored half of the
    time. Images are normalized by ImageNet's statistics.

    Args:
      data_dir: the folder of the data sets. Either it, or its subfolder `synthia`, contains the
        folder of the sequence, such as `SYNTHIA-SEQS-05-SUMMER`. None uses the environment variable
        CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      sequence: the number and the season or weather, as in the name of its folder.
      cameras: "Stereo_Left" or "Stereo_Right", each with four views.
      height, width: the size to which images are resized, 384 and 768 in the paper; None keeps 760
        x 1280.
      seed: seed of the split.
      jitter: the largest relative change of the colors of training images; 0 for none.

    References:
      Ros et al. 2016, The SYNTHIA Dataset.
      Tian et al. 2021, Recall Loss (the sequence, its size and its parts).
    """
    checks.one_of("cameras", cameras, ("Stereo_Left", "Stereo_Right"))
    checks.between("jitter", jitter, 0, 1)
    checks.seed(seed)
    size = scenes.size_of_scenes("synthia", height, width)
    about = dataclasses.replace(_ABOUT, official=(f"{_PREFIX}{sequence}",))
    located = files.find("synthia", about, data_dir)
    folders = (located.path / _IMAGES, located.path / _LABELS)
    pairs = scenes.paired(folders, f"{cameras}/*/*", (".png", ".png"), _HOW)
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)
    first, second = round(0.7 * len(order)), round(0.8 * len(order))
    if not 0 < first < second < len(order):
        raise ValueError(f"{located.path} has {len(order)} frames; a split needs more: {ADVICE}.")
    table = scenes.table_of(CLASSES, _VOID)
    part = functools.partial(Scenes, pairs, table=table, void=len(CLASSES), size=size)
    parts = np.split(np.array(order), [first, second])
    return Dataset(
        name="synthia",
        class_names=tuple(CLASSES.values()),
        train=part(parts[0]),
        validation=part(np.sort(parts[1])),
        test=part(np.sort(parts[2])),
        description=(
            f"{_ABOUT.title}, sequence {sequence}, {cameras}: {sizes(*parts)}, split with seed"
            f" {seed}; void pixels have weight 0; {located}. Licence: {_ABOUT.licence}. Ros et al."
            " 2016."
        ),
        prepare=normalized(IMAGENET),
        brightest=255,
        augment=scenes.recolored(jitter),
    )
