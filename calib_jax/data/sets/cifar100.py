"""CIFAR-100: small colour photographs in 100 classes."""

import dataclasses
import functools

from calib_jax.core.inputs import checks
from calib_jax.data.dataset import Dataset, register
from calib_jax.data.facts import About, Download
from calib_jax.data.formats import binary, files
from calib_jax.data.images import image_sets

# In the alphabetical order of the labels.
_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_ABOUT = About(
    title="CIFAR-100, 32 x 32 in colour",
    licence="none stated; the authors ask to be cited",
    counts={"train": (500,) * 100, "test": (100,) * 100},
    tfds="cifar100",
    official=("cifar-100-binary", "cifar-100-binary.tar.gz"),
    downloads=(
        Download(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            size=168_513_733,
            md5="03b5dce01913d631647c71ecec9e9cb8",
            folder="cifar-100-binary",
        ),
    ),
)
_OFFICIAL = functools.partial(
    binary.images,
    folder="cifar-100-binary",
    parts={"train": ("train.bin",), "test": ("test.bin",)},
    num_labels=2,  # one of 20 coarse classes, then the class
    num_classes=100,
)
_READERS = files.readers(_OFFICIAL, 100)


@register("cifar100", _ABOUT)
def cifar100(
    *,
    data_dir: str | None = None,
    source: str | None = None,
    validation: float = 0.1,
    seed: int = 1,
    training_size: int | None = None,
    imbalance: float | None = None,
    test_normalization: str = "cifar10",
) -> Dataset:
    """Load the 60,000 images of CIFAR-100, 32 x 32 in colour, in three parts.

    Images are split, cropped, mirrored and normalised as in `cifar10`, with the statistics of
    CIFAR-10, as in the papers.

    Args:
      data_dir, source, validation, seed, training_size, imbalance: see `cifar10`.
      test_normalization: "cifar10" normalises all parts with the same statistics. "imagenet"
        reproduces a mistake of the released code, with which the published numbers were measured:
        only the test images are normalised with the statistics of ImageNet. All parts share one
        `prepare`, so the test pixels are then stored rescaled, as float32 instead of uint8.

    References:
      Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
      Mukhoti et al. 2020, section 5, and its released code.
    """
    options = {**locals()}
    del options["data_dir"], options["source"], options["test_normalization"]
    checks.one_of("test_normalization", test_normalization, ("cifar10", "imagenet"))
    (train, test), located = files.read("cifar100", _ABOUT, data_dir, source, _READERS)
    mistake = test_normalization == "imagenet"
    if mistake:
        test = image_sets.as_if_normalized(
            test, by=image_sets.IMAGENET, prepared_by=image_sets.CIFAR10
        )
    dataset = image_sets.papers_dataset(
        train,
        test,
        name="cifar100",
        title=_ABOUT.title,
        reference="Krizhevsky 2009",
        read=located,
        class_names=tuple(_NAMES.split()),
        first_labels=(19, 29, 0, 11, 1, 86, 90, 28, 23, 31),
        **options,
        augment=image_sets.crop_and_flip,
    )
    if not mistake:
        return dataset
    note = " Test images alone are normalised with the statistics of ImageNet."
    return dataclasses.replace(dataset, description=dataset.description + note)
