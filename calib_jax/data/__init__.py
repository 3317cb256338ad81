"""Data: named data sets, splits, and augmentation on the device.

    digits = data.named("digits", label_noise=0.15)      a Dataset: three sources and metadata
    digits.train[np.array([3, 1])]                       Examples, indexed by number
    data.catalogue()                                     every data set by name
    data.about("cifar10")                                its licence, counts and downloads
    data.random_crop(padding=4)                          (key, image) -> image, for jit and vmap

To add a data set, add one file to `sets` and import its factory below; the catalogue lists it.
"""

from calib_jax.core import checks as _checks
from calib_jax.data.dataset import About as About
from calib_jax.data.dataset import Dataset as Dataset
from calib_jax.data.dataset import Download as Download
from calib_jax.data.dataset import Split as Split
from calib_jax.data.dataset import Subset as Subset
from calib_jax.data.dataset import about as about
from calib_jax.data.dataset import as_stored as as_stored
from calib_jax.data.dataset import catalogue as catalogue
from calib_jax.data.dataset import long_tailed as long_tailed
from calib_jax.data.dataset import named as named
from calib_jax.data.dataset import register as register
from calib_jax.data.dataset import shuffled as shuffled
from calib_jax.data.dataset import some_of_each as some_of_each
from calib_jax.data.dataset import split as split
from calib_jax.data.dataset import subset as subset
from calib_jax.data.formats.vectors import from_vectors as from_vectors
from calib_jax.data.images.augmentation import compose as compose
from calib_jax.data.images.augmentation import mixed as mixed
from calib_jax.data.images.augmentation import mixup as mixup
from calib_jax.data.images.augmentation import mixup_lambda as mixup_lambda
from calib_jax.data.images.augmentation import mixup_partners as mixup_partners
from calib_jax.data.images.augmentation import on_inputs as on_inputs
from calib_jax.data.images.augmentation import on_pairs as on_pairs
from calib_jax.data.images.augmentation import random_color as random_color
from calib_jax.data.images.augmentation import random_crop as random_crop
from calib_jax.data.images.augmentation import random_flip as random_flip
from calib_jax.data.images.augmentation import random_zoom as random_zoom
from calib_jax.data.images.image_sets import gaussian_noise as gaussian_noise
from calib_jax.data.own.arrays import arrays_of as arrays_of
from calib_jax.data.own.arrays import from_arrays as from_arrays
from calib_jax.data.own.image_folder import from_folder as from_folder
from calib_jax.data.own.tables import from_texts as from_texts
from calib_jax.data.sets.camvid import camvid as camvid
from calib_jax.data.sets.cifar import cifar10 as cifar10
from calib_jax.data.sets.cifar import cifar100 as cifar100
from calib_jax.data.sets.cifar10_c import cifar10_c as cifar10_c
from calib_jax.data.sets.cityscapes import cityscapes as cityscapes
from calib_jax.data.sets.digits import digits as digits
from calib_jax.data.sets.gaussians import gaussians as gaussians
from calib_jax.data.sets.imagenet import imagenet as imagenet
from calib_jax.data.sets.inaturalist2018 import inaturalist2018 as inaturalist2018
from calib_jax.data.sets.intents import banking77 as banking77
from calib_jax.data.sets.intents import clinc150 as clinc150
from calib_jax.data.sets.newsgroups import newsgroups as newsgroups
from calib_jax.data.sets.newsgroups import newsgroups_19997 as newsgroups_19997
from calib_jax.data.sets.places_lt import places_lt as places_lt
from calib_jax.data.sets.sst import UNKNOWN as UNKNOWN
from calib_jax.data.sets.sst import sst as sst
from calib_jax.data.sets.svhn import svhn as svhn
from calib_jax.data.sets.synthia import synthia as synthia
from calib_jax.data.sets.tiny_imagenet import tiny_imagenet as tiny_imagenet
from calib_jax.data.sets.translations import multi30k as multi30k
from calib_jax.data.sets.translations import wmt14 as wmt14
from calib_jax.data.text.sentence_pairs import Ragged as Ragged
from calib_jax.data.text.sentence_pairs import with_end as with_end
from calib_jax.data.text.subwords import Subwords as Subwords
from calib_jax.data.text.trees import Tree as Tree
from calib_jax.data.text.trees import parse_tree as parse_tree
from calib_jax.data.text.trees import plain_words as plain_words
from calib_jax.data.text.vocabulary import Vocabulary as Vocabulary
from calib_jax.data.text.vocabulary import words_of as words_of
from calib_jax.data.text.word_vectors import read_vectors as read_vectors
from calib_jax.data.text.word_vectors import write_vectors as write_vectors
from calib_jax.data.text.wordpiece import WordPiece as WordPiece

_checks.export(__name__)
