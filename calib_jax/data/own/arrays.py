"""Data sets of the user's own from arrays, and arrays from data sets of other libraries."""

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.core.types import PyTree
from calib_jax.data.dataset import Augment, Dataset, as_they_are
from calib_jax.data.images.image_files import eight_bits
from calib_jax.data.images.image_sets import Statistics, normalized

_CHUNK = 1 << 20  # values of pixels that are counted at a time


def from_arrays(
    inputs: PyTree,
    labels: Any,
    *,
    validation: float | Sequence[Any] = 0.15,
    test: float | Sequence[Any] = 0.15,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
    augment: Augment | None = None,
    prepare: Callable[[PyTree], PyTree] | None = None,
    name: str = "arrays",
) -> Dataset:
    """Build a data set from arrays in memory.

    Args:
      inputs: an array whose first axis numbers the examples, or a tree of such arrays. Pixels of
        type uint8, `[n, height, width]` or `[n, height, width, channels]`, are normalised by the
        mean and the deviation of the training part.
      labels: `[n]`, integers from 0 or names of classes.
      validation: the fraction of each class to hold out, or `(inputs, labels)`. A fraction holds
        out at least one example of each class. Given inputs have the tree, the dtypes and the
        shapes of the training inputs.
      test: the fraction of each class for the test part, or `(inputs, labels)`.
      class_names: names of the classes in the order of their numbers. By default the sorted names
        in `labels`, or the numbers up to the largest label.
      seed: seed of the split.
      augment: see `Dataset.augment`, such as `on_inputs(random_flip())`.
      prepare: see `Dataset.prepare`; None normalises pixels and does not change other inputs.
      name: name of the data set.

    >>> pixels = np.zeros((20, 8, 8), np.uint8)
    >>> pets = from_arrays(pixels, ["cat", "dog"] * 10, test=0.2)
    >>> pets.class_names, len(pets.train), len(pets.validation), len(pets.test)
    (('cat', 'dog'), 12, 4, 4)
    """
    given: dict[str, Any] = {"train": (inputs, labels)}
    fractions: dict[str, float] = {}
    for part, value in (("validation", validation), ("test", test)):
        if isinstance(value, numbers.Real):
            fractions[part] = float(value)
        elif isinstance(value, list | tuple) and len(value) == 2:
            given[part] = value
        else:
            raise ValueError(
                f"{part} must be a fraction or a pair (inputs, labels), got"
                f" {type(value).__name__} {str(value)[:40]!r}."
            )
    by_part = {part: _labels(part, values[1]) for part, values in given.items()}
    names = _class_names(by_part, class_names)
    sources = {
        part: _checked(part, values[0], by_part[part], names) for part, values in given.items()
    }
    kinds = {part: _kinds(source.inputs) for part, source in sources.items()}
    for part, kind in kinds.items():
        if kind != kinds["train"]:
            raise ValueError(f"{part}: inputs must be {kinds['train']} as in training, got {kind}.")
    whole = sources["train"]
    pixels = whole.inputs
    first = _are_pixels(pixels) and pixels.shape[1] in (1, 3) and pixels.shape[3] > 4
    if prepare is None and first:
        raise ValueError(
            f"pixels must be [n, height, width, channels], got {pixels.shape}:"
            " np.moveaxis(inputs, 1, -1) puts the channels last."
        )
    parts = split_by_class(whole.labels, names, fractions, seed)
    sources |= {part: InMemory(*whole[rows]) for part, rows in parts.items()}
    description = f"{name}: {held_out(fractions, seed)}"
    return assembled(name, names, sources, description, augment=augment, prepare=prepare)


def assembled(
    name: str,
    class_names: Sequence[str],
    sources: Mapping[str, InMemory],
    description: str,
    *,
    augment: Augment | None = None,
    prepare: Callable[[PyTree], PyTree] | None = None,
) -> Dataset:
    """Build a data set from three sources; pixels are normalised by the training part.

    Args:
      name, class_names, augment: see `Dataset`.
      sources: the sources `train`, `validation` and `test`.
      description: what the examples are; their numbers are added.
      prepare: see `from_arrays`.
    """
    train, validation, test = (sources[part] for part in ("train", "validation", "test"))
    are_pixels = _are_pixels(train.inputs)
    if prepare is None and are_pixels:
        prepare = normalized(statistics_of(train.inputs))
    return Dataset(
        name=name,
        class_names=tuple(class_names),
        train=train,
        validation=validation,
        test=test,
        description=(
            f"{description}; {len(train):,} to train, {len(validation):,} to validate,"
            f" {len(test):,} to test, in {len(class_names)} classes."
        ),
        augment=augment,
        brightest=255 if are_pixels else None,
        prepare=prepare or as_they_are,
    )


def statistics_of(pixels: np.ndarray) -> Statistics:
    """Compute the mean and the deviation of each channel, for pixels scaled to [0, 1].

    >>> statistics_of(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1))
    Statistics(mean=(0.5,), deviation=(0.5,))
    """
    channels = pixels.shape[-1]
    counts = np.zeros((channels, 256), np.int64)
    # NumPy widens the pixels that it counts to 8 bytes each.
    step = max(1, _CHUNK // max(1, pixels[:1].size))
    for start in range(0, len(pixels), step):
        for k in range(channels):
            chunk = pixels[start : start + step, ..., k]
            counts[k] += np.bincount(chunk.ravel(), minlength=256)
    levels = np.arange(256) / 255
    mean = counts @ levels / counts.sum(axis=1)
    square = counts @ levels**2 / counts.sum(axis=1)
    # An image of one colour has no deviation, and 1/255 is the step between two levels.
    deviation = np.sqrt(np.maximum(square - mean**2, 255.0**-2))
    return Statistics(tuple(mean.tolist()), tuple(deviation.tolist()))


def split_by_class(
    labels: np.ndarray, class_names: Sequence[str], fractions: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Hold out a fraction of each class for some parts, and train on the rest.

    Args:
      labels: the class of each example, `[n]`.
      class_names: names of the classes, for messages.
      fractions: the fraction of each part that is held out, rounded to at least one example.
      seed: seed of NumPy's generator.

    Returns:
      the numbers of the examples of `train` and of each part, in ascending order.

    >>> split_by_class(np.array([0, 0, 0, 1, 1, 1]), ["a", "b"], {"test": 0.3}, seed=0)
    {'train': array([0, 1, 3, 4]), 'test': array([2, 5])}
    """
    checks.seed(seed)
    for part, fraction in fractions.items():
        checks.above(part, fraction, 0)
    if sum(fractions.values()) >= 1:
        raise ValueError(
            f"validation and test must leave examples to train on, got fractions that sum to"
            f" {sum(fractions.values()):g}."
        )
    generator = np.random.default_rng(seed)
    chosen: dict[str, list[np.ndarray]] = {part: [] for part in ("train", *fractions)}
    for number, name in enumerate(class_names):
        rows = generator.permutation(np.flatnonzero(labels == number))
        needed = len(chosen)
        if len(rows) < needed:
            advice = "number the labels from 0" if name == "0" and not len(rows) else "add examples"
            raise ValueError(
                f"the class {name!r} has {len(rows)} examples, and needs {needed}, one for each of"
                f" {', '.join(chosen)}: {advice}, leave the class out, or give the other parts."
            )
        start = 0
        for place, (part, fraction) in enumerate(fractions.items(), start=1):
            left = len(rows) - start - (needed - place)  # one for each part that follows
            count = min(max(1, round(fraction * len(rows))), left)
            chosen[part].append(rows[start : start + count])
            start += count
        chosen["train"].append(rows[start:])
    return {part: np.sort(np.concatenate(rows)) for part, rows in chosen.items()}


def held_out(fractions: Mapping[str, float], seed: int) -> str:
    """Describe a split."""
    if not fractions:
        return "parts as given"
    shares = " and ".join(f"{100 * share:g}% for {part}" for part, share in fractions.items())
    return f"{shares} held out of each class with seed {seed}"


def _labels(part: str, values: Any) -> np.ndarray:
    """Convert labels to a vector of integers or of names."""
    labels = np.asarray(values)
    if labels.dtype.kind in "OTU":  # such as names from a table
        rows = np.asarray(values, object)
        named = [isinstance(row, str) for row in rows.flat]
        if any(named) and not all(named):  # NumPy would make the name "nan" of a missing one
            row = named.index(False)
            raise ValueError(f"{part}: the label {rows.flat[row]} of example {row} is no name.")
        labels = np.array(rows.tolist())
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8")
    if labels.dtype.kind not in "iubU" or labels.ndim != 1:
        raise TypeError(
            f"{part}: labels must be integers or names of classes [n], got {labels.dtype}"
            f" {labels.shape}."
        )
    return labels.astype(np.int32) if labels.dtype.kind == "b" else labels


def _class_names(
    by_part: Mapping[str, np.ndarray], class_names: Sequence[str] | None
) -> tuple[str, ...]:
    """Name the classes: as given, by the names in the labels, or by the numbers of the labels."""
    if class_names is not None:
        names = tuple(map(str, class_names))
    elif len({labels.dtype.kind == "U" for labels in by_part.values()}) > 1:
        raise TypeError("labels must be numbers in all parts, or names in all parts.")
    elif by_part["train"].dtype.kind == "U":
        names = tuple(np.unique(np.concatenate([*by_part.values()])).tolist())
    else:
        largest = max(int(labels.max(initial=0)) for labels in by_part.values())
        checks.between("the largest label", largest, 0, 999_999)
        names = tuple(map(str, range(largest + 1)))
    if len(set(names)) < max(2, len(names)):
        raise ValueError(f"class names must be two or more, all different, got {', '.join(names)}.")
    return names


def _checked(part: str, inputs: PyTree, labels: np.ndarray, names: Sequence[str]) -> InMemory:
    """Validate the inputs and the labels of a part; number labels that are names."""
    inputs = jax.tree.map(_array, inputs)
    leaves = jax.tree.leaves(inputs)
    shapes = [leaf.shape for leaf in leaves]
    if any(leaf.dtype.kind not in "biufV" for leaf in leaves):  # V is bfloat16
        raise TypeError(f"{part}: inputs must be numbers, got {leaves[0].dtype}.")
    if {shape[:1] for shape in shapes} != {(len(labels),)}:
        raise ValueError(
            f"{part}: inputs and labels must have one entry for each example, got inputs"
            f" {shapes[:3]} and labels {labels.shape}. np.stack makes an array of a list."
        )
    given, known = labels, f"0 to {len(names) - 1}"
    if labels.dtype.kind == "U":
        known = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        number = {name: k for k, name in enumerate(names)}
        labels = np.array([number.get(str(name), -1) for name in labels])
    wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if wrong.size:
        raise ValueError(
            f"{part}: the label {given[wrong[0]]} of example {wrong[0]} must be one of the"
            f" {len(names)} classes, {known}."
        )
    return InMemory(inputs, labels.astype(np.int32))


def _array(leaf: Any) -> np.ndarray:
    """Convert an array of any library; images without channels get one."""
    array = np.asarray(leaf)
    if array.dtype.kind == "O":
        array = np.array(array.tolist())
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array[..., None] if array.dtype == np.uint8 and array.ndim == 3 else array


def _are_pixels(inputs: PyTree) -> bool:
    return isinstance(inputs, np.ndarray) and inputs.dtype == np.uint8 and inputs.ndim == 4


def _kinds(inputs: PyTree) -> PyTree:
    """Describe the dtype and the shape of an example."""
    return jax.tree.map(lambda leaf: f"{leaf.dtype} {leaf.shape[1:]}", inputs)


def arrays_of(
    dataset: Any,
    *,
    inputs: str | int = 0,
    labels: str | int = 1,
    size: tuple[int, int] | None = None,
    channels_first: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Read all examples of a data set of another library into arrays, for `from_arrays`.

    It needs `len(dataset)` and `dataset[i]`, as data sets of Hugging Face and of torch have. A row
    is a mapping or a tuple; its values are numbers, arrays, tensors or images of Pillow.

        beans = load_dataset("beans", split="train")
        arrays_of(beans, inputs="image", labels="labels", size=(64, 64))
        arrays_of(torchvision.datasets.CIFAR10("DIR"))

    Args:
      dataset: the data set.
      inputs: the key of the inputs in a row, or their position.
      labels: the key or the position of the labels.
      size: height and width to which images of Pillow are resized; needed if they differ. Grey ones
        among images in colour get three equal channels, and 16 bits become 8.
      channels_first: whether images are `[channels, height, width]`, as in torch.

    >>> rows = [{"pixels": [[0.0, 1.0]], "label": 1}, {"pixels": [[2.0, 3.0]], "label": 0}]
    >>> x, y = arrays_of(rows, inputs="pixels", labels="label")
    >>> x.shape, y
    ((2, 1, 2), array([1, 0]))
    """
    if isinstance(dataset, Mapping) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"arrays_of needs a data set with len and [i], got a {type(dataset).__name__}: give one"
            " entry of a mapping, or list(dataset)."
        )
    values, classes, modes = [], [], set()
    for number in range(len(dataset)):
        row = dataset[number]
        try:
            value, label = row[inputs], row[labels]
        except (KeyError, IndexError, TypeError) as error:
            known = list(row) if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(
                f"row {number} has no {inputs!r} and {labels!r}, but {known}: set inputs, labels."
            ) from error
        if hasattr(value, "convert") and hasattr(value, "resize"):  # an image of Pillow
            grey = value.mode in ("1", "L", "F") or value.mode.startswith("I")
            with reading.guard(f"the image of row {number}", "an image", "save it anew"):
                value = eight_bits(value, "L" if grey else "RGB")
            value = value if size is None else value.resize(size[::-1])
            modes.add(value.mode)
        values.append(np.asarray(value))
        classes.append(np.asarray(label))
    if len(modes) > 1:  # grey images among images in colour
        values = [np.repeat(v[..., None], 3, axis=-1) if v.ndim == 2 else v for v in values]
    for what, arrays in (("inputs", values), ("labels", classes)):
        if len(shapes := sorted({array.shape for array in arrays})) != 1:
            raise ValueError(
                f"all {what} must have one shape, got {shapes[:3]}; size=(height, width) resizes"
                " images."
            )
    if channels_first and (modes or values[0].ndim != 3):
        raise ValueError(
            f"channels_first: inputs must be arrays [channels, height, width], got"
            f" {values[0].shape}: leave out channels_first."
        )
    stacked = np.stack(values)
    return np.moveaxis(stacked, 1, -1) if channels_first else stacked, np.stack(classes)
