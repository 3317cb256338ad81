"""CIFAR-10-C: the test images of CIFAR-10, corrupted in 19 ways."""

import pathlib

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, Download, register
from calib_jax.data.formats import files
from calib_jax.data.images.image_sets import Images, checked_labels, prepare_cifar10
from calib_jax.data.sets.cifar import CLASSES

# The authors intend the last four for choosing hyperparameters.
CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "zoom_blur", "snow", "frost", "fog", "brightness", "contrast"),
    *("elastic_transform", "pixelate", "jpeg_compression"),
    *("speckle_noise", "gaussian_blur", "spatter", "saturate"),
)
_SEVERITIES = 5
_ABOUT = About(
    title="CIFAR-10-C, corrupted test images of CIFAR-10, 32 x 32 in colour",
    licence="CC BY 4.0",
    counts={"test": (1000,) * 10},
    official=("CIFAR-10-C",),
    downloads=(
        Download(
            url="https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
            size=2_918_471_680,
            md5="56bf5dcef84df0e2308c6dcbcbbd8499",
            folder="CIFAR-10-C",
        ),
    ),
)


@register("cifar10_c", _ABOUT)
def cifar10_c(
    *, data_dir: str | None = None, corruption: str = "gaussian_noise", severity: int = 5
) -> Dataset:
    """Load 10,000 images of CIFAR-10-C: one corruption at one severity.

    These are the corrupted test images of CIFAR-10 with its labels. The training and validation
    parts are empty.

    Args:
      data_dir: see `cifar10`; it contains the authors' folder CIFAR-10-C.
      corruption: one of 19 corruptions, by the authors' name.
      severity: from 1, the weakest, to 5.

    References:
      Hendrycks and Dietterich 2019, Benchmarking Neural Network Robustness to Common Corruptions
      and Perturbations.
    """
    checks.one_of("corruption", corruption, CORRUPTIONS)
    checks.between("severity", severity, 1, _SEVERITIES)
    located = files.find("cifar10_c", _ABOUT, data_dir)
    test = _severity(located.path, corruption, severity)
    nothing = Images(test.images[:0], test.labels[:0])
    return Dataset(
        name="cifar10_c",
        class_names=CLASSES,
        train=nothing.source(),
        validation=nothing.source(),
        test=test.source(),
        description=(
            f"{_ABOUT.title}: {len(test.labels)} with {corruption} of severity {severity} to test,"
            f" none to train or validate; {located}. Licence {_ABOUT.licence}, Hendrycks and"
            " Dietterich 2019."
        ),
        prepare=prepare_cifar10,
        brightest=255,
    )


def _severity(path: pathlib.Path, corruption: str, severity: int) -> Images:
    """Read one severity: a fifth of the rows of the images and of the labels."""
    # Memory-mapped, because one severity needs only a fifth of the 150 MB.
    pixels, labels = (
        reading.npy(path / f"{name}.npy", "an array of CIFAR-10-C", "unpack the archive anew")
        for name in (corruption, "labels")
    )
    count, rest = divmod(labels.size, _SEVERITIES)
    if rest or not count or pixels.shape != (*labels.shape, 32, 32, 3) or pixels.dtype != np.uint8:
        raise reading.Unreadable(
            f"{corruption}.npy in {path} is {pixels.dtype} {pixels.shape} with {labels.size:,}"
            f" labels, and not {_SEVERITIES} equal parts of images 32 x 32 with a label each."
        )
    rows = slice((severity - 1) * count, severity * count)
    image_labels = checked_labels(labels[rows], len(CLASSES), f"labels.npy in {path}")
    return Images(np.array(pixels[rows]), image_labels)
