"""CIFAR-10: small colour photographs in ten classes."""

import functools

from calib_jax.data.dataset import Dataset, register
from calib_jax.data.facts import About, Download
from calib_jax.data.formats import binary, files
from calib_jax.data.images.image_sets import crop_and_flip, papers_dataset

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_ABOUT = About(
    title="CIFAR-10, 32 x 32 in colour",
    licence="none stated; the authors ask to be cited",
    counts={"train": (5000,) * 10, "test": (1000,) * 10},
    tfds="cifar10",
    official=("cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
    downloads=(
        Download(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            size=170_052_171,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder="cifar-10-batches-bin",
        ),
    ),
)
_OFFICIAL = functools.partial(
    binary.images,
    folder="cifar-10-batches-bin",
    parts={
        "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("test_batch.bin",),
    },
    num_labels=1,
    num_classes=10,
)
_READERS = files.readers(_OFFICIAL, 10)


@register("cifar10", _ABOUT)
def cifar10(
    *,
    data_dir: str | None = None,
    source: str | None = None,
    validation: float = 0.1,
    seed: int = 1,
    training_size: int | None = None,
    imbalance: float | None = None,
) -> Dataset:
    """Load the 60,000 images of CIFAR-10, 32 x 32 in colour, in three parts.

    The test part is the published one. The other 50,000 images are split by the papers' rule
    (`split`): by default 45,000 for training and 5,000 for validation. These are the papers' own
    examples if the images have the order of the original files, which the ids of TFDS records
    preserve; the description reports whether the first labels match that order.

    Training images are padded by 4 black pixels, cropped at random, and mirrored half of the
    time; all are normalised with the papers' mean (.4914, .4822, .4465) and deviation (.2023,
    .1994, .2010).

    Files prepared by TFDS are read without TensorFlow, and the decoded pixels are cached beside
    them, so images are decoded only on the first load.

    Args:
      data_dir: the folder of the data sets. None uses the environment variable CALIB_JAX_DATA_DIR,
        then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      source: "tfds" for files prepared by TFDS, "official" for the authors' binary files, unpacked
        or not; None uses the first of these that exists.
      validation: the fraction of the 50,000 used for validation; must not be 0.
      seed: seed of the split.
      training_size: use only the first training_size examples of the shuffled training part; None
        uses all.
      imbalance: makes the training part long-tailed: class sizes fall exponentially from the first
        class to the last, which has imbalance times fewer examples (`long_tailed`). The first class
        has as many as the smallest one after the validation part is held out, some 4,480; in the
        CIFAR-10-LT of other papers, which hold out none, 5,000. Validation and test keep equal
        classes. None keeps all examples.

    References:
      Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
      Mukhoti et al. 2020, section 5, and its released code.
    """
    options = {**locals()}
    del options["data_dir"], options["source"]
    (train, test), located = files.read("cifar10", _ABOUT, data_dir, source, _READERS)
    return papers_dataset(
        train,
        test,
        name="cifar10",
        title=_ABOUT.title,
        reference="Krizhevsky 2009",
        read=located,
        class_names=CLASSES,
        first_labels=(6, 9, 9, 4, 1, 1, 2, 7, 8, 3),
        **options,
        augment=crop_and_flip,
    )
