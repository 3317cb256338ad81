"""SVHN: digits of house numbers in street photographs."""

import pathlib

import numpy as np

from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, Download, register
from calib_jax.data.images.image_sets import Images, checked_labels
from calib_jax.data.sets.cifar import papers_images

_URL = "http://ufldl.stanford.edu/housenumbers"
_TRAIN, _TEST = "train_32x32.mat", "test_32x32.mat"
_ABOUT = About(
    title="SVHN, cropped digits, 32 x 32 in colour",
    licence="none stated; for non-commercial use only",
    counts={
        "train": (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        "test": (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    },
    tfds="svhn_cropped",
    official=(_TRAIN,),
    downloads=(
        Download(url=f"{_URL}/{_TRAIN}", size=182_040_794, md5="e26dedcc434d2e4c54c9b2d4a06d8373"),
        Download(url=f"{_URL}/{_TEST}", size=64_275_384, md5="eb5a983be6a315427106f1b164d9cef3"),
    ),
)


@register("svhn", _ABOUT)
def svhn(
    *,
    data_dir: str | None = None,
    source: str | None = None,
    validation: float = 0.1,
    seed: int = 1,
    training_size: int | None = None,
) -> Dataset:
    """Load 99,289 digits of SVHN, 32 x 32 in colour, in three parts; the class is the digit.

    The test part is the published one of 26,032; the other 73,257 are split by the papers' rule
    (`split`). The 531,131 extra images are not used. As in the papers, there is no augmentation,
    and images are normalised with the statistics of CIFAR-10, so SVHN can serve as
    out-of-distribution data for networks trained on CIFAR-10.

    TFDS neither numbers the records of SVHN nor keeps their order, so its split differs from that
    of the authors' files; the description states this.

    Args:
      data_dir, validation, seed, training_size: see `cifar10`.
      source: "tfds" for svhn_cropped prepared by TFDS, "official" for train_32x32.mat and
        test_32x32.mat; None uses the first of these that exists.

    References:
      Netzer et al. 2011, Reading Digits in Natural Images with Unsupervised Feature Learning.
      Mukhoti et al. 2020, section 5, and its released code.
    """
    options = {**locals()}
    return papers_images(
        "svhn",
        _ABOUT,
        _both,
        class_names=tuple("0123456789"),
        first_labels=(1, 9, 2, 3, 2, 5, 9, 3, 3, 1),
        reference="Netzer et al. 2011",
        augment=None,
        **options,
    )


def _both(path: pathlib.Path) -> tuple[Images, Images]:
    return _matlab(path), _matlab(path.with_name(_TEST))


def _matlab(path: pathlib.Path) -> Images:
    """Read X `[32, 32, 3, n]` and y `[n, 1]`; the file stores the digit 0 as label 10."""
    from scipy.io import loadmat

    again = f"download {_URL}/{path.name} to there again"
    if not path.exists():
        raise FileNotFoundError(f"{path.parent} has no {path.name}: {again}.")
    # SciPy raises errors of many kinds for a damaged file.
    with reading.guard(path, "a MATLAB file with X and y", again, library=True):
        variables = loadmat(path, variable_names=("X", "y"))
        pixels, labels = np.moveaxis(variables["X"], -1, 0), variables["y"].ravel()
        if pixels.shape != (len(labels), 32, 32, 3) or pixels.dtype != np.uint8:
            raise ValueError(f"X is {pixels.dtype} {pixels.shape} for {len(labels)} labels")
    return Images(
        np.ascontiguousarray(pixels), checked_labels(labels, 10, str(path), lowest=1) % 10
    )
