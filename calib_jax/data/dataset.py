"""The Dataset class, the facts of data sets, and the catalogue of data sets by name."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from calib_jax.core import checks
from calib_jax.core.checks import Catalogue
from calib_jax.core.examples import Examples, Source, weighted_labels
from calib_jax.core.types import PyTree
from calib_jax.data.text.subwords import Subwords
from calib_jax.data.text.vocabulary import Vocabulary
from calib_jax.data.text.wordpiece import WordPiece


@dataclasses.dataclass(frozen=True, kw_only=True)
class Download:
    """A file that the authors of a data set publish.

    Attributes:
      url: its address.
      size: its size in bytes.
      md5: its checksum; None if it is not known.
      folder: the folder in an archive; empty for a file that is read without unpacking.

    >>> Download(url="http://example.org/cats.tar.gz", size=9, folder="cats").name
    'cats.tar.gz'
    """

    url: str
    size: int
    md5: str | None = None
    folder: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """The metadata of a data set, defined beside its loader.

    Attributes:
      title: a short description.
      licence: its licence, or a remark that none is stated.
      counts: the number of examples of each class, or of all classes, in the published `train` part
        (of which some may be held out for validation) and `test` part.
      tfds: its name in TFDS; empty if it is not read as prepared by TFDS.
      official: names of the authors' files or folders, any one of which is enough to read it.
      downloads: the files that the authors publish.
      by_hand: short instructions if it cannot be downloaded by a command; requires `size`.
      size: download size in bytes; computed from `downloads` if there are any.
    """

    title: str
    licence: str
    counts: Mapping[str, tuple[int, ...] | int] = dataclasses.field(default_factory=dict)
    tfds: str = ""
    official: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    size: int = 0

    def __post_init__(self) -> None:
        if self.downloads:
            object.__setattr__(self, "size", sum(download.size for download in self.downloads))

    @property
    def has_files(self) -> bool:
        """Whether it is read from files that are not shipped with the library."""
        return bool(self.tfds or self.official)

    @property
    def read_as_downloaded(self) -> bool:
        """Whether the authors' files are read without unpacking."""
        return any(download.name in self.official for download in self.downloads)


_CATALOGUE: Catalogue[Callable[..., "Dataset"]] = Catalogue("data set")
_ABOUT: dict[str, About] = {}
_Factory = TypeVar("_Factory", bound=Callable[..., "Dataset"])


def register(name: str, about: About | None = None) -> Callable[[_Factory], _Factory]:
    """Register a function that loads a data set under a name, for example one of your own.

    Args:
      name: the name, which `named` and configs use; it must not be taken.
      about: licence, counts and downloads, for `experiments.data`; None if it reads no files.

    Returns:
      A decorator that returns the function unchanged. The keyword arguments of the function are
      the options of the data set.

    >>> from calib_jax import data
    >>> @data.register("few_digits")
    ... def few_digits(*, training_size=20):
    ...     return data.digits(training_size=training_size)
    >>> len(data.named("few_digits", training_size=30).train)
    30
    """

    def enter(factory: _Factory) -> _Factory:
        _CATALOGUE.register(name)(factory)
        if about is not None:
            _ABOUT[name] = about
        return factory

    return enter


Augment = Callable[[Any, Examples], Examples]


def as_they_are(inputs: PyTree) -> PyTree:
    """Return the inputs of a network as they are stored."""
    return inputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
    """Three sources of examples and the metadata that a training loop needs.

    Attributes:
      name: the name in the catalogue.
      class_names: one name per class, in the order of the labels.
      train, validation, test: the parts.
      description: sizes, split rule and licence, as human-readable text.
      prepare: `(inputs) -> inputs` for a batch, on the device: converts stored values (for example
        uint8) to network inputs (normalised floats).
      augment: `(key, Examples) -> Examples` for ONE example, on the device, mapped by vmap with one
        key per example; None for no augmentation. `on_inputs` and `on_pairs` make one of a function
        of an image. It runs before `prepare` on stored values, so that a crop pads with black
        pixels, as in the papers.
      posterior: `(inputs) -> log-probabilities` of the classes if they are known, from which the
        true calibration error and the Bayes error follow; else None.
      brightest: for images, the stored value of a white pixel, such as 255; scales noise that is
        given as a fraction of it.
      embedding: for words, the initial value of the network's layer "embedding": a vector for each
        number. None starts from random vectors.
      vocabulary: for words or word pieces, the words or pieces by number.
      texts: for translation, the sentences of the validation and the test part, `(source, target)`.
    """

    name: str
    class_names: tuple[str, ...]
    train: Source
    validation: Source
    test: Source
    description: str
    prepare: Callable[[PyTree], PyTree] = as_they_are
    augment: Augment | None = None
    posterior: Callable[[Any], Any] | None = None
    brightest: float | None = None
    embedding: np.ndarray | None = None
    vocabulary: Vocabulary | WordPiece | Subwords | None = None
    texts: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None = None

    def __repr__(self) -> str:
        """Describe the set in a line; the examples themselves would fill pages."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        sizes = ", ".join(f"{part} {len(source):,}" for part, source in parts.items())
        return f"Dataset({self.name!r}, {self.num_classes} classes, {sizes})"

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @functools.cached_property
    def class_counts(self) -> np.ndarray | None:
        """The number of training labels of each class whose weight is not 0.

        None if the labels are not in memory.

        >>> named("digits", training_size=400).class_counts.sum()
        np.int64(400)
        """
        known = weighted_labels(self.train)
        if known is None:
            return None
        labels, present = known
        valid = labels[present & (labels >= 0) & (labels < self.num_classes)]
        return np.bincount(valid, minlength=self.num_classes)


def named(name: str, /, **options: Any) -> Dataset:
    """Load the data set with this name.

    Nothing is downloaded: if the files are missing, the error explains how to get them.

    >>> digits = named("digits", training_size=400)
    >>> digits.num_classes, len(digits.train), len(digits.validation), len(digits.test)
    (10, 400, 297, 1100)
    >>> named("digit")
    Traceback (most recent call last):
    ValueError: no data set is called 'digit'; did you mean 'digits'?
    """
    dataset = _CATALOGUE.make(name, **options)
    assert isinstance(dataset, Dataset)
    return dataset


def catalogue() -> Mapping[str, Callable[..., Dataset]]:
    """Return all data sets by name; the keyword arguments of a factory are its options.

    >>> "digits" in catalogue()
    True
    """
    return _CATALOGUE


def about(name: str, /) -> About | None:
    """Return the metadata of a data set without reading it; None if it has none.

    >>> about("cifar10").title
    'CIFAR-10, 32 x 32 in colour'
    """
    checks.one_of("data set", name, _CATALOGUE)
    return _ABOUT.get(name)
