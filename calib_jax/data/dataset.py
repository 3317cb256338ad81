"""The Dataset class, the catalogue of data sets by name, and splits and subsets of examples."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, NamedTuple, TypeVar

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import (
    Draw,
    Examples,
    InMemory,
    RandomViews,
    Source,
    labels_of,
    read,
    weighted_labels,
)
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


_CATALOGUE: checks.Catalogue[Callable[..., "Dataset"]] = checks.Catalogue("data set")
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


# ------------------------------------------------------------------------------------------------
# Splits by the papers' rule, and subsets of a source.


class Split(NamedTuple):
    """The numbers of the examples in each part."""

    train: np.ndarray
    validation: np.ndarray
    calibration: np.ndarray


def split(count: int, *, validation: float = 0.1, calibration: float = 0.0, seed: int = 1) -> Split:
    """Split examples into exactly the same indices as the papers' released code.

    The indices are shuffled; the first ones are for validation, the rest for training. For
    CIFAR-10's 50,000 images and seed 1, these are the 45,000 images on which the published networks
    were trained and the 5,000 on which their temperatures were chosen.

    Args:
      count: number of examples.
      validation: the fraction used for validation, rounded down.
      calibration: the fraction of the validation part (its first examples, rounded down) moved to
        the calibration part, on which to fit a calibrator; `get_val_temp` in the released code.
      seed: seed of the shuffle.

    References:
      Mukhoti et al. 2020, section 5, and its released code.

    >>> parts = split(50_000)
    >>> len(parts.train), len(parts.validation), parts.validation[:3]
    (45000, 5000, array([26247, 35067, 34590]))
    """
    checks.between("validation", validation, 0, 1)
    checks.between("calibration", calibration, 0, 1)
    order = shuffled(count, seed=seed)
    validating = int(validation * count)
    calibrating = int(calibration * validating)
    return Split(order[validating:], order[calibrating:validating], order[:calibrating])


def split_in_two(name: str, count: int, *, validation: float, seed: int) -> Split:
    """Split the training part of a data set, and raise an error if one of two parts is empty.

    Args:
      name: the name of the data set, for the message.
      count, validation, seed: as for `split`.
    """
    parts = split(count, validation=validation, seed=seed)
    for part, numbers in (("training", parts.train), ("validation", parts.validation)):
        if not len(numbers):
            raise ValueError(f"{name}: no example is left for {part}: validation={validation}.")
    return parts


def shuffled(count: int, *, seed: int = 1) -> np.ndarray:
    """Shuffle the numbers 0 ... count - 1 by NumPy's legacy generator, which never changes.

    >>> shuffled(5)
    array([2, 1, 4, 0, 3])
    """
    checks.whole("count", count)
    checks.seed(seed)
    order = np.arange(count)
    np.random.RandomState(seed).shuffle(order)
    return order


def first(numbers: np.ndarray, training_size: int | None) -> np.ndarray:
    """Return the first training_size numbers, or all."""
    if training_size is not None:
        checks.whole("training_size", training_size)
        checks.between("training_size", training_size, 1, len(numbers))
    return numbers[:training_size]


def sizes(train: Sized, validation: Sized, test: Sized) -> str:
    """Format the number of examples of each part."""
    return f"{len(train):,} to train, {len(validation):,} to validate, {len(test):,} to test"


def some_of_each(
    labels: np.ndarray, class_names: Sequence[str], per_class: int, *, name: str, seed: int = 0
) -> np.ndarray:
    """Draw per_class examples of every class, for validation; every class must have more.

    Args:
      labels: the class of each example.
      class_names: one name for each class.
      per_class: how many examples of each class are drawn, at least 1.
      name: the data set, for error messages.
      seed: seed of the draw.

    Returns:
      The numbers of the drawn examples, in ascending order.

    >>> some_of_each(np.array([0, 0, 0, 1, 1]), ("cat", "dog"), 1, name="pets")
    array([2, 4])
    """
    checks.whole("per_class", per_class)
    checks.seed(seed)
    labels = _classes(labels, len(class_names))
    ends = np.cumsum(np.bincount(labels, minlength=len(class_names)))
    by_class = np.split(np.argsort(labels, kind="stable"), ends[:-1])
    random, drawn = np.random.default_rng(seed), []
    for class_name, some in zip(class_names, by_class, strict=True):
        if len(some) <= per_class:
            raise ValueError(
                f"{name}: validation_per_class={per_class} leaves nothing of the class"
                f" {class_name}, which has {len(some)} photographs."
            )
        drawn.append(some[random.permutation(len(some))[:per_class]])
    return np.sort(np.concatenate(drawn))


def _classes(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Validate that labels are classes."""
    labels = np.asarray(labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(f"labels must be integers, got {labels.dtype}.")
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if wrong.size:
        raise ValueError(f"labels must lie in [0, {num_classes - 1}], got {wrong[0]}.")
    return labels


def with_label_noise(
    labels: np.ndarray, share: float, num_classes: int, generator: np.random.Generator
) -> np.ndarray:
    """Replace a fraction of the labels by classes drawn uniformly.

    Args:
      labels: the class of each example.
      share: the fraction, rounded to whole examples.
      num_classes: the number of classes, of which a replaced label may keep its own.
      generator: the source of randomness; a larger fraction replaces the same labels and more.
    """
    order = generator.permutation(len(labels))
    drawn = generator.integers(num_classes, size=len(labels), dtype=labels.dtype)
    hit = order[: round(share * len(labels))]
    noisy = labels.copy()
    noisy[hit] = drawn[hit]
    return noisy


def long_tailed(labels: np.ndarray, num_classes: int, *, factor: float) -> np.ndarray:
    r"""Select examples so that the class sizes fall exponentially, from the first class on.

    $$n_k = \lfloor n \, r^{-k / (K - 1)} \rfloor$$

    with n the size of the smallest class in `labels`, which the first class keeps, and r the
    factor. The first $n_k$ examples of each class are kept.

    Args:
      labels: the class of each example.
      num_classes: K, at least 2.
      factor: r, the size of the first selected class over that of the last, at least 1.

    Returns:
      The numbers of the kept examples, in ascending order.

    References:
      Cao et al. 2019, Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss.

    >>> long_tailed(np.arange(12) % 2, 2, factor=3)
    array([ 0,  1,  2,  3,  4,  6,  8, 10])
    """
    checks.at_least("num_classes", num_classes, 2)
    checks.at_least("factor", factor, 1)
    labels = _classes(labels, num_classes)
    largest = int(np.bincount(labels, minlength=num_classes).min())
    # A product such as 100 * 100**-0.5 may fall just below the whole number.
    sizes = np.floor(largest * float(factor) ** -np.linspace(0, 1, num_classes) + 1e-9).astype(int)
    if not sizes.all():
        raise ValueError(
            f"a factor of {factor:g} leaves no example of class {np.argmin(sizes)}: the smallest of"
            f" the classes has {largest}; give a smaller factor."
        )
    return np.sort(
        np.concatenate([np.flatnonzero(labels == k)[:size] for k, size in enumerate(sizes)])
    )


@dataclasses.dataclass(frozen=True)
class _Stored:
    """Some examples of a source in a given order, as they are stored."""

    source: Source
    index: np.ndarray

    @property
    def labels(self) -> np.ndarray | None:
        """The labels of the examples, or None if the source has none."""
        labels = labels_of(self.source)
        return None if labels is None else labels[self.index]

    @property
    def weights(self) -> np.ndarray | None:
        """The weights of the labels, or None if the source has none."""
        weights = getattr(self.source, "weights", None)
        return None if weights is None else np.asarray(weights)[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: np.ndarray) -> Examples:
        return self.source[self.index[index]]


class Subset(_Stored):
    """A view of some examples of a source in a given order; created by `subset`."""

    def drawn(self, index: np.ndarray, draw: Draw) -> Examples:
        """Read a random view of each example, if the source supports it."""
        return read(self.source, self.index[index], draw)


def as_stored(source: Source) -> Source:
    """Remove the random views from a source; return a source without views unchanged."""
    return _Stored(source, np.arange(len(source))) if isinstance(source, RandomViews) else source


def subset(source: Source, index: np.ndarray) -> Source:
    """Select examples of a source by index; a subset of an in-memory source is in memory.

    >>> letters = InMemory(np.array([10, 11, 12]), np.array([0, 1, 2]))
    >>> subset(letters, np.array([2, 0])).labels
    array([2, 0])
    """
    index = np.asarray(index)
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        raise ValueError(
            f"subset: index must be a vector of integers, got {index.dtype} {index.shape}."
        )
    if index.size and (index.min() < 0 or index.max() >= len(source)):
        wrong = index.min() if index.min() < 0 else index.max()
        raise ValueError(f"subset: the source has {len(source)} examples, got the index {wrong}.")
    if isinstance(source, InMemory):
        return InMemory(*source[index])
    if isinstance(source, Subset):
        return Subset(source.source, source.index[index])
    return Subset(source, index)
