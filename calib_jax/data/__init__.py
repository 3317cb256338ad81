"""Data: named data sets, splits, and augmentation on the device.

    digits = data.named("digits", label_noise=0.15)      a Dataset: three sources and metadata
    digits.train[np.array([3, 1])]                       Examples, indexed by number
    data.catalogue()                                     every data set by name
    data.about("cifar10")                                its licence, counts and downloads
    data.random_crop(padding=4)                          (key, image) -> image, for jit and vmap

To add a data set, add one file to `sets` and import its factory below; the catalogue lists it.
"""

from typing import TYPE_CHECKING, Any

from calib_jax.core.names import no_attribute
from calib_jax.data.dataset import Dataset, about, catalogue, named, register
from calib_jax.data.facts import About, Download
from calib_jax.data.images.augmentation import (
    compose,
    mixed,
    mixup,
    mixup_lambda,
    mixup_partners,
    on_inputs,
    on_pairs,
    random_color,
    random_crop,
    random_flip,
    random_zoom,
)
from calib_jax.data.images.noise import gaussian_noise
from calib_jax.data.own.arrays import arrays_of, from_arrays
from calib_jax.data.own.image_folder import from_folder
from calib_jax.data.own.text_table import from_texts
from calib_jax.data.own.vectors import from_vectors
from calib_jax.data.sets.camvid import camvid
from calib_jax.data.sets.cifar10 import cifar10
from calib_jax.data.sets.cifar10_c import cifar10_c
from calib_jax.data.sets.cifar100 import cifar100
from calib_jax.data.sets.cityscapes import cityscapes
from calib_jax.data.sets.digits import digits
from calib_jax.data.sets.gaussians import gaussians
from calib_jax.data.sets.imagenet import imagenet
from calib_jax.data.sets.inaturalist2018 import inaturalist2018
from calib_jax.data.sets.intents import banking77, clinc150
from calib_jax.data.sets.multi30k import multi30k
from calib_jax.data.sets.newsgroups import newsgroups, newsgroups_19997
from calib_jax.data.sets.places_lt import places_lt
from calib_jax.data.sets.sst import UNKNOWN, sst
from calib_jax.data.sets.svhn import svhn
from calib_jax.data.sets.synthia import synthia
from calib_jax.data.sets.tiny_imagenet import tiny_imagenet
from calib_jax.data.sets.wmt14 import wmt14
from calib_jax.data.splits import Split, Subset, long_tailed, shuffled, some_of_each, split, subset
from calib_jax.data.text.dependencies import DependencyTree, read_dependencies
from calib_jax.data.text.sentence_pairs import Ragged, with_end
from calib_jax.data.text.subwords import Subwords
from calib_jax.data.text.trees import Tree, parse_tree, plain_words
from calib_jax.data.text.vocabulary import Vocabulary, words_of
from calib_jax.data.text.word_vectors import read_vectors, write_vectors
from calib_jax.data.text.wordpiece import WordPiece

__all__ = [
    "UNKNOWN",
    "About",
    "Dataset",
    "DependencyTree",
    "Download",
    "Ragged",
    "Split",
    "Subset",
    "Subwords",
    "Tree",
    "Vocabulary",
    "WordPiece",
    "about",
    "arrays_of",
    "banking77",
    "camvid",
    "catalogue",
    "cifar10",
    "cifar10_c",
    "cifar100",
    "cityscapes",
    "clinc150",
    "compose",
    "digits",
    "from_arrays",
    "from_folder",
    "from_texts",
    "from_vectors",
    "gaussian_noise",
    "gaussians",
    "imagenet",
    "inaturalist2018",
    "long_tailed",
    "mixed",
    "mixup",
    "mixup_lambda",
    "mixup_partners",
    "multi30k",
    "named",
    "newsgroups",
    "newsgroups_19997",
    "on_inputs",
    "on_pairs",
    "parse_tree",
    "places_lt",
    "plain_words",
    "random_color",
    "random_crop",
    "random_flip",
    "random_zoom",
    "read_dependencies",
    "read_vectors",
    "register",
    "shuffled",
    "some_of_each",
    "split",
    "sst",
    "subset",
    "svhn",
    "synthia",
    "tiny_imagenet",
    "with_end",
    "wmt14",
    "words_of",
    "write_vectors",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


if not TYPE_CHECKING:  # type checkers see all names above and report unknown ones

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
