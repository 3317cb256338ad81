"""ImageNet: over a million photographs in 1,000 classes, streamed from disk.

The classification task of ILSVRC 2012 has 1,281,167 training photographs (732 to 1,300 per class)
and 50,000 for validation (50 per class). The latter are the test part here, because the labels of
the 100,000 test images were never published. Registered users of image-net.org can download:

    ILSVRC2012_img_train.tar       147,897,477,120 bytes, MD5 1d675b47d978889d74fa0da5fadfb00e
    ILSVRC2012_img_val.tar           6,744,924,160 bytes, MD5 29b22e2961454d5413ddabcf34fc5622
    ILSVRC2012_devkit_t12.tar.gz    the labels of the latter, MD5 fa75699e90414af021442c21a62c3abf
"""

import numpy as np

from calib_jax.core.inputs import checks
from calib_jax.data import splits
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.images import imagenet_files
from calib_jax.data.images.image_sets import IMAGENET, normalized
from calib_jax.data.images.jpeg import Photographs
from calib_jax.data.images.photo_lists import Listed

_ABOUT = About(
    title="ImageNet (ILSVRC 2012), photographs of about 500 x 375 in colour",
    licence="terms of image-net.org: non-commercial research and education only",
    counts={"train": 1_281_167, "test": 50_000},
    tfds="imagenet2012",
    looked_up=True,
    official=("train",),
    by_hand="register at https://image-net.org/challenges/LSVRC/2012/2012-downloads.php, and "
    + imagenet_files.HOW,
    size=147_897_477_120 + 6_744_924_160,
)


@register("imagenet", _ABOUT)
def imagenet(
    *,
    data_dir: str | None = None,
    source: str | None = None,
    held_out: str = "train",
    validation_per_class: int = 50,
    seed: int = 0,
    size: int = 224,
    resize: int = 256,
) -> Dataset:
    """Stream the photographs of ILSVRC 2012 in three parts, decoding each on access.

    Training crops a random window (8 to 100 % of the area, aspect ratio 3/4 to 4/3), resizes it to
    `size` and mirrors it half of the time. Evaluation resizes the shorter side to `resize` and
    crops the centre. Both run on the host; the window depends only on the run's seed, the epoch and
    the photograph. The device normalises by ImageNet's mean and deviation.

    The classes are WordNet ids, numbered in alphabetical order.

    Args:
      data_dir: the folder of the data sets. Either it, or its subfolder `imagenet`, contains the
        official folders `train/<class>/*.JPEG` and `val/` (one folder per class, or flat with the
        ground truth of the development kit or of Kaggle); or it contains `imagenet2012` prepared by
        TFDS as array_record. None uses the environment variable CALIB_JAX_DATA_DIR, then
        TFDS_DATA_DIR, then ~/tensorflow_datasets.
      source: the form to read, "tfds" or "official"; None uses the first of these that exists. Both
        have the same examples in the same order.
      held_out: the part from which validation examples are taken. "train", this library's default,
        holds out validation_per_class examples of every class of the training part and tests on the
        whole official validation set. "val" splits the official validation set into halves for
        validation and test, 25,000 each, the sizes of Guo et al., whose split is not published.
      validation_per_class: photographs of every class held out of the training part.
      seed: seed of the split.
      size: side of the returned images, in pixels.
      resize: length of the shorter side before the centre crop of evaluation.

    References:
      Russakovsky et al. 2015, ImageNet Large Scale Visual Recognition Challenge.
      Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.
    """
    if source is not None:
        checks.one_of("source", source, (imagenet_files.TFDS, imagenet_files.OFFICIAL))
    checks.one_of("held_out", held_out, ("train", "val"))
    checks.at_least("validation_per_class", validation_per_class, 1)
    checks.at_least("size", size, 1)
    checks.at_least("resize", resize, size)
    located = imagenet_files.parts(data_dir, source)
    training, testing = np.arange(len(located.train.labels)), np.arange(len(located.val.labels))
    if held_out == "train":
        validating = splits.some_of_each(
            located.train.labels, located.classes, validation_per_class, name="imagenet", seed=seed
        )
        training = np.delete(training, validating)
        rule = f"{validation_per_class} of each class of the training part, drawn with seed {seed}"
    else:
        order = splits.shuffled(len(testing), seed=seed)
        validating, testing = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
        rule = f"half of the official validation set, drawn with seed {seed}"

    def part(coded: Listed, index: np.ndarray) -> Photographs:
        return Photographs(coded, index, size, resize)

    return Dataset(
        name="imagenet",
        class_names=located.classes,
        train=part(located.train, training),
        validation=part(located.train if held_out == "train" else located.val, validating),
        test=part(located.val, testing),
        description=(
            f"ImageNet (ILSVRC 2012, from {located.form}), {size} x {size} in colour,"
            f" {len(located.classes)} classes: {len(training)} to train, {len(validating)} to"
            f" validate ({rule}), {len(testing)} to test, of the official validation set. For"
            " research that is not commercial, by the terms of image-net.org. Russakovsky et al."
            " 2015."
        ),
        prepare=normalized(IMAGENET),
        brightest=255,
    )
