"""CIFAR-10-C: the test images of CIFAR-10, corrupted in 19 ways."""

import functools
import os
import pathlib

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
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
_OTHERWISE_IN_TFDS = {"glass_blur": "frosted_glass_blur", "elastic_transform": "elastic"}


def _config(corruption: str, severity: int) -> str:
    return f"{_OTHERWISE_IN_TFDS.get(corruption, corruption)}_{severity}"


_ABOUT = About(
    title="CIFAR-10-C, corrupted test images of CIFAR-10, 32 x 32 in colour",
    licence="CC BY 4.0",
    counts={"test": (1000,) * 10},
    tfds="cifar10_corrupted",
    official=("CIFAR-10-C",),
    downloads=(
        Download(
            url="https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
            size=2_918_471_680,
            md5="56bf5dcef84df0e2308c6dcbcbbd8499",
            folder="CIFAR-10-C",
        ),
    ),
    variants={
        _config(corruption, severity): {"corruption": corruption, "severity": severity}
        for corruption in CORRUPTIONS
        for severity in range(1, _SEVERITIES + 1)
    },
)


@register("cifar10_c", _ABOUT)
def cifar10_c(
    *,
    data_dir: str | None = None,
    source: str | None = None,
    corruption: str = "gaussian_noise",
    severity: int = 5,
) -> Dataset:
    """Load 10,000 images of CIFAR-10-C: one corruption at one severity.

    These are the corrupted test images of CIFAR-10 with its labels. The training and validation
    parts are empty.

    Args:
      data_dir: see `cifar10`.
      source: "tfds" for cifar10_corrupted prepared by TFDS, "official" for the authors' folder
        CIFAR-10-C; None uses the first of these that exists.
      corruption: one of 19 corruptions, by the authors' name.
      severity: from 1, the weakest, to 5.

    References:
      Hendrycks and Dietterich 2019, Benchmarking Neural Network Robustness to Common Corruptions
      and Perturbations.
    """
    checks.one_of("corruption", corruption, CORRUPTIONS)
    checks.between("severity", severity, 1, _SEVERITIES)
    official = functools.partial(_arrays, corruption=corruption, severity=severity)
    readers = files.readers(official, len(CLASSES), parts=("test",))
    config = _config(corruption, severity)
    (test,), located = files.read("cifar10_c", _ABOUT, data_dir, source, readers, config=config)
    nothing = Images(np.empty((0, 32, 32, 3), np.uint8), np.empty(0, np.int32))
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


def _arrays(path: pathlib.Path, *, corruption: str, severity: int) -> tuple[Images, ...]:
    """Read one severity: a fifth of the rows of the images and of the labels."""
    pixels, labels = (_array(path / f"{name}.npy") for name in (corruption, "labels"))
    count, rest = divmod(labels.size, _SEVERITIES)
    shape = (labels.size, 32, 32, 3)
    whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    if rest or not count or not whole or pixels.shape != shape or pixels.dtype != np.uint8:
        raise reading.Unreadable(
            f"{corruption}.npy in {path} is {pixels.dtype} {pixels.shape} with labels.npy"
            f" {labels.dtype} {labels.shape}, and not uint8 {shape} in {_SEVERITIES} equal parts"
            " with as many whole numbers."
        )
    rows = slice((severity - 1) * count, severity * count)
    image_labels = checked_labels(labels[rows], len(CLASSES), f"labels.npy in {path}")
    return (Images(np.array(pixels[rows]), image_labels),)


def _array(path: pathlib.Path) -> np.ndarray:
    if not os.path.lexists(path):
        raise FileNotFoundError(f"{path.parent} has no {path.name}: unpack the archive anew.")
    # Memory-mapped, because one severity needs only a fifth of the 150 MB.
    return reading.npy(path, "an array of CIFAR-10-C", "unpack the archive anew")
