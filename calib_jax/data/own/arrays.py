"""Data sets of the user's own from arrays, and arrays from data sets of other libraries."""

import numbers
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import jax
import numpy as np

from calib_jax.core.examples import InMemory
from calib_jax.core.inputs import checks
from calib_jax.core.inputs.arrays import as_array
from calib_jax.core.types import PyTree
from calib_jax.data.dataset import Augment, Dataset
from calib_jax.data.images.image_files import eight_bits
from calib_jax.data.images.image_sets import Statistics, normalized

Part = tuple[Any, Any]
_CHUNK = 1 << 20  # values of pixels that are counted at a time

_MOST_CLASSES = 1_000_000  # each has a name


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
    if augment is not None and not callable(augment):
        raise TypeError(
            "augment must be a function, such as data.on_inputs(data.random_flip()), or None, got"
            f" {augment!r}."
        )
    if prepare is not None and not callable(prepare):
        raise TypeError(f"prepare must be a function of the inputs, or None, got {prepare!r}.")
    given = {"train": (inputs, labels)}
    fractions: dict[str, float] = {}
    for part, value in (("validation", validation), ("test", test)):
        if isinstance(value, Sequence):
            given[part] = _pair(part, value)
        elif isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0:
            fractions[part] = float(value)
        else:
            raise _no_part(part, value)
    names = _class_names(given, class_names)
    arrays = {part: _as_arrays(part, values, names) for part, values in given.items()}
    if prepare is None:
        _refuse_channels_first(arrays["train"][0])
    for part, (held, _) in arrays.items():
        _check_inputs(part, held, arrays["train"][0])
    parts = split_by_class(arrays["train"][1], names, fractions, seed)
    sources = {part: InMemory(*values) for part, values in arrays.items()}
    whole = sources["train"]
    sources |= {part: InMemory(*whole[rows]) for part, rows in parts.items()}
    return assembled(
        name,
        names,
        sources,
        f"{name}: {held_out(fractions, seed)}",
        augment=augment,
        prepare=prepare,
    )


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
    pixels = sources["train"].inputs
    are_pixels = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 4
    if prepare is None and are_pixels:
        prepare = normalized(statistics_of(pixels))
    prepared: dict[str, Any] = {} if prepare is None else {"prepare": prepare}
    train, validation, test = (sources[part] for part in ("train", "validation", "test"))
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
        **prepared,
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
            counts[k] += np.bincount(chunk.reshape(-1), minlength=256)
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
        checks.between(part, fraction, 0, 1)
        if fraction == 0:
            raise ValueError(
                f"{part}=0 holds out no example, and every part needs one of each class: give a"
                " fraction, such as 0.1, or a pair (inputs, labels)."
            )
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
            plural = "" if len(rows) == 1 else "s"
            if name == "0" and not len(rows):
                raise ValueError(
                    "no label is 0: labels count from 0. Subtract the lowest label from all labels."
                )
            raise ValueError(
                f"the class {name!r} has {len(rows)} example{plural}, and needs {needed}: one for"
                f" each of {', '.join(chosen)}.\nAdd examples, leave the class out, or give"
                " the other parts."
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


def _pair(part: str, value: Sequence[Any]) -> Part:
    """Validate the inputs and the labels of a part."""
    without_weights = len(value) == 3 and value[2] is None  # `Examples`
    if isinstance(value, str) or not (len(value) == 2 or without_weights):
        raise _no_part(part, value)
    return value[0], value[1]


def _no_part(part: str, value: Any) -> ValueError:
    """Build the error for a part that is neither a fraction nor a pair of inputs and labels."""
    length = len(value) if isinstance(value, Sized) and not isinstance(value, str) else None
    got = repr(value) if length is None else f"{type(value).__name__} of length {length}"
    advice = " For weights, make a Dataset of InMemory sources." if length == 3 else ""
    return ValueError(f"{part} must be a fraction or a pair (inputs, labels), got {got}.{advice}")


def _check_inputs(part: str, inputs: PyTree, training: PyTree) -> None:
    """Validate that a part has the tree, dtypes and shapes of the training inputs."""
    trees: list[Any] = [jax.tree.structure(inputs), jax.tree.structure(training)]
    tree, expected_tree = trees
    if tree != expected_tree:
        raise ValueError(
            f"{part}: inputs must have the tree of training, {expected_tree}, got {tree}."
        )
    expected_leaves = jax.tree.leaves(training)
    for (path, leaf), expected in zip(
        jax.tree.leaves_with_path(inputs), expected_leaves, strict=True
    ):
        if (leaf.dtype, leaf.shape[1:]) != (expected.dtype, expected.shape[1:]):
            raise ValueError(
                f"{part}: inputs{jax.tree_util.keystr(path)} must be {_kind(expected)} as in"
                f" training, got {_kind(leaf)}."
            )


def _refuse_channels_first(pixels: PyTree) -> None:
    """Raise an error for pixels with the channels before height and width."""
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 4):
        return
    if pixels.shape[1] in (1, 3) and pixels.shape[3] > 4:
        raise ValueError(
            "pixels must be [n, height, width, channels], got"
            f" {_kind(pixels)}: np.moveaxis(inputs, 1, -1) puts the channels last."
        )


def _kind(array: np.ndarray) -> str:
    """Describe the dtype and the shape of an example.

    >>> _kind(np.zeros((9, 4, 5), np.uint8))
    'uint8 [n, 4, 5]'
    """
    return f"{array.dtype} [{', '.join(map(str, ['n', *array.shape[1:]]))}]"


def _class_names(given: Mapping[str, Part], class_names: Sequence[str] | None) -> tuple[str, ...]:
    """Name the classes: as given, by the names in the labels, or by the numbers of the labels."""
    if class_names is not None:
        if len(set(class_names)) < len(class_names) or len(class_names) < 2:
            raise ValueError(
                f"class_names must be two names or more, all different, got {list(class_names)}."
            )
        return tuple(map(str, class_names))
    by_part = {part: _labels(part, values[1]).reshape(-1) for part, values in given.items()}
    are_names = by_part["train"].dtype.kind == "U"
    for part, values in by_part.items():
        if (values.dtype.kind == "U") != are_names:
            expected = "names" if are_names else "numbers"
            raise TypeError(
                f"{part}: labels must be {expected} of classes as in training, got {values.dtype}:"
                " convert them, or give class_names."
            )
    labels = np.concatenate(list(by_part.values()))
    if are_names:
        names = tuple(np.unique(labels).tolist())
    else:
        largest = int(labels.max()) if labels.size else -1  # unsigned labels have no -1
        if largest >= _MOST_CLASSES:
            raise ValueError(
                f"labels must number the classes 0, 1, ..., at most {_MOST_CLASSES:,}, got"
                f" {largest}: np.unique(labels, return_inverse=True) numbers them."
            )
        names = tuple(map(str, range(largest + 1)))
    if len(names) < 2:
        raise ValueError(
            f"labels must have two classes or more, got only {', '.join(names) or 'none'}."
        )
    return names


def _as_arrays(part: str, values: Part, class_names: Sequence[str]) -> tuple[PyTree, np.ndarray]:
    """Validate the inputs and the labels of a part; number labels that are names."""
    for leaf in jax.tree.leaves(values[0]):
        _refuse_masked(part, "inputs", leaf)
    inputs, labels = jax.tree.map(_array, values[0]), _labels(part, values[1])
    leaves = jax.tree.leaves(inputs)
    for leaf in leaves:
        if leaf.dtype.kind in "OSUcMm":
            raise TypeError(f"{part}: inputs must be real numbers, got {leaf.dtype}: encode them.")
    lengths = {len(leaf) if leaf.ndim else 0 for leaf in leaves}
    if lengths != {len(labels)} or labels.ndim != 1:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves[:3]) + ", ..." * (len(leaves) > 3)
        advice = " Stack a list of arrays: np.stack(inputs)." if isinstance(values[0], list) else ""
        raise ValueError(
            f"{part}: inputs and labels must have one entry for each example, got inputs {shapes}"
            f" and labels {labels.shape}.{advice}"
        )
    if labels.dtype.kind == "U":
        number = {name: k for k, name in enumerate(class_names)}
        unknown = next((str(text) for text in labels if str(text) not in number), None)
        if unknown is not None:
            raise ValueError(
                f"{part}: the label {unknown!r} is none of the classes {', '.join(class_names)}."
            )
        labels = np.array([number[str(text)] for text in labels])
    outside = (labels < 0) | (labels >= len(class_names))
    if outside.any():
        place = int(np.argmax(outside))
        raise ValueError(
            f"{part}: the label {labels[place]} of example {place} must lie in"
            f" [0, {len(class_names) - 1}]."
        )
    return inputs, labels.astype(np.int32)


def _labels(part: str, values: Any) -> np.ndarray:
    """Convert labels to an array of integers or strings."""
    _refuse_masked(part, "labels", values)
    labels = checks.of_one_kind(np.asarray(values))
    if labels.dtype.kind == "S":
        labels = np.char.decode(labels, "utf-8")
    if labels.dtype.kind == "b":
        labels = labels.astype(np.int32)
    if labels.dtype.kind not in "iuU":
        raise TypeError(f"{part}: labels must be integers or names of classes, got {labels.dtype}.")
    return labels


def _refuse_masked(part: str, what: str, values: Any) -> None:
    """Raise an error for masked values, whose mask a plain array does not have."""
    if np.ma.is_masked(values):
        count = np.ma.count_masked(values)
        raise ValueError(
            f"{part}: {count} of the {what} {'is' if count == 1 else 'are'} masked: leave these"
            " examples out, or fill the values."
        )


def _array(leaf: Any) -> np.ndarray:
    """Convert an array of any library; images without channels get one."""
    array = np.asarray(as_array(leaf))
    return array[..., None] if array.dtype == np.uint8 and array.ndim == 3 else array


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
    if isinstance(dataset, Mapping):
        raise TypeError(
            f"arrays_of takes one data set, got a mapping of {', '.join(map(str, dataset))}: give"
            " one of its entries."
        )
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"arrays_of needs len(dataset) and dataset[i], which a {type(dataset).__name__} lacks:"
            " give list(dataset)."
        )
    if size is not None and np.shape(size) != (2,):
        raise TypeError(f"size must be (height, width), such as (64, 64), got {size!r}.")
    values, classes, modes = [], [], set()
    for number in range(len(dataset)):
        row = dataset[number]
        try:
            value, label = row[inputs], row[labels]
        except (KeyError, IndexError, TypeError) as error:
            size_of = f"has {len(row)} values" if isinstance(row, Sized) else f"is {row!r}"
            known = f"has {list(row)}" if isinstance(row, Mapping) else size_of
            raise ValueError(
                f"row {number} has no {inputs!r} and {labels!r}; it {known}: set inputs and labels."
            ) from error
        if hasattr(value, "convert") and hasattr(value, "resize"):  # an image of Pillow
            grey = value.mode in ("1", "L", "F") or value.mode.startswith("I")
            try:
                value = eight_bits(value, "L" if grey else "RGB")
            except ValueError as error:
                raise ValueError(f"the image of row {number} cannot be read: {error}.") from error
            value = value if size is None else value.resize(size[::-1])
            modes.add(value.mode)
        if channels_first and (modes or np.ndim(value) < 3):
            got = "an image of Pillow" if modes else f"the shape {np.shape(value)}"
            raise ValueError(
                f"channels_first: inputs must be arrays [channels, height, width], got {got}: leave"
                " out channels_first."
            )
        values.append(np.asarray(value))
        classes.append(np.asarray(label))
    if not values:
        raise ValueError("the data set has no examples.")
    if len(modes) > 1:  # grey images among images in colour
        values = [np.repeat(v[..., None], 3, axis=-1) if v.ndim == 2 else v for v in values]
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        some = ", ".join(map(str, sorted(shapes)[:3]))
        advice = ": set size=(height, width)" if modes and size is None else ""
        raise ValueError(f"all inputs must have one shape, got {some}{advice}.")
    if len(shapes := {label.shape for label in classes}) > 1:
        some = ", ".join(map(str, sorted(shapes)[:3]))
        raise ValueError(f"all labels must have one shape, got {some}.")
    stacked = np.stack(values)
    return np.moveaxis(stacked, 1, -1) if channels_first else stacked, np.stack(classes)
