"""Scenes: images with label maps, decoded when they are read, as a random window or as a whole.

A large set of full-size scenes does not fit into memory. The stream's threads decode, scale, crop
and mirror image and label map alike, because a device needs one shape. Colors change on the device.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import Draw, Examples
from calib_jax.core.files import reading
from calib_jax.data.dataset import Augment
from calib_jax.data.images.augmentation import on_inputs, random_color
from calib_jax.data.images.image_files import opened

ADVICE = "get the data set anew"
OTHER_SIZE = "has another size than the first image: resize all by the options height and width."
UNKNOWN = -1  # in a table of values: no class has this value, and void has another
_MOST_PIXELS = 10_000_000
# The only mode of 6 bytes a pixel, of which Pillow keeps the upper byte of each channel.
_UPPER, _LOWER = "RGB;16B", "RGB;16L"

Size = tuple[int, int]  # height and width
Box = tuple[float, float, float, float]  # left, upper, right and lower edge, in pixels
# Factors of Tian et al. 2021 for Cityscapes.
SCALES = (0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


Pairs = Sequence[tuple[pathlib.Path, pathlib.Path]]  # the files of images and of label maps


def paired(
    folders: tuple[pathlib.Path, pathlib.Path], pattern: str, endings: tuple[str, str], how: str
) -> Pairs:
    """List images and label maps, sorted by path; raise unless each image has a label map.

    Args:
      folders: the folder of the images and the folder of the label maps.
      pattern: the paths of both in their folders, without their endings.
      endings: the endings of the names of images and of label maps.
      how: how to get the data set, if there is no image.
    """
    found = [
        {
            path.relative_to(folder).as_posix().removesuffix(ending): path
            for path in folder.glob(f"{pattern}{ending}")
        }
        for folder, ending in zip(folders, endings, strict=True)
    ]
    if not found[0]:
        raise reading.Unreadable(f"{folders[0]} has no images {pattern}{endings[0]}: {how}.")
    if alone := sorted(found[0].keys() ^ found[1].keys()):
        lacking = folders[1] if alone[0] in found[0] else folders[0]
        raise reading.Unreadable(f"{lacking} has no file of {alone[0]}: {ADVICE}.")
    return [(found[0][name], found[1][name]) for name in sorted(found[0])]


def table_of(classes: Collection[int], void: Sequence[int]) -> np.ndarray:
    """Build the table `[256]` that maps the value of a pixel to its class.

    Args:
      classes: the value of each class, in the order of the classes.
      void: the values of pixels without a class, whose label is the number of classes.

    >>> table_of((7, 8), void=(0,))[[7, 8, 0, 9]]
    array([ 0,  1,  2, -1])
    """
    table = np.full(256, UNKNOWN)
    table[list(classes)] = range(len(classes))
    table[list(void)] = len(classes)
    return table


def opened_image(name: str, coded: bytes) -> Any:
    """Decode an image as RGB, as an image of Pillow."""
    with reading.guard(name, "an image", ADVICE, library=True):
        return opened(coded, most_pixels=_MOST_PIXELS).convert("RGB")


def opened_label_map(name: str, coded: bytes, table: np.ndarray) -> Any:
    """Decode the classes of all pixels, as a grey image of Pillow.

    The value of a pixel is the grey value, the index of a palette image, or the first channel
    of a color image of 16 bits, whose other channels number the objects.

    Args:
      name: the name of the file, for error messages.
      coded: a PNG file.
      table: the class of each value, see `table_of`.
    """
    from PIL import Image

    with reading.guard(name, "a label map", ADVICE, library=True):
        image = opened(coded, most_pixels=_MOST_PIXELS)
        if image.format != "PNG":
            raise ValueError("JPEG changes class numbers, and only PNG keeps them")
        if image.mode == "RGB" and image.tile and image.tile[0][3] == _UPPER:
            values = _first_of_16_bits(image)
        elif image.mode in ("L", "P"):
            values = np.asarray(image)
        else:
            raise ValueError(f"it has colors ({image.mode}), and not one class number per pixel")
        labels = table[values]
        if labels.min() == UNKNOWN:
            known = np.flatnonzero(table != UNKNOWN)
            raise reading.Unreadable(
                f"{name} has the label {values[labels == UNKNOWN].max()}; labels must be"
                f" {_ranges(known)}."
            )
        return Image.fromarray(labels.astype(np.uint8))


def check_sizes(image_name: str, image_size: tuple[int, int], label_size: tuple[int, int]) -> None:
    """Raise unless an image and its label map have the same width and height."""
    if image_size != label_size:
        raise reading.Unreadable(
            f"{image_name} has {image_size[0]} x {image_size[1]} pixels, and its label map"
            f" {label_size[0]} x {label_size[1]}: {ADVICE}."
        )


def resized(image: Any, size: Size | None, box: Box | None = None) -> np.ndarray:
    """Resize an image by averaging areas, or a label map by the nearest pixel.

    Args:
      image: an image of Pillow in colour, or a label map in grey, whose classes must not mix.
      size: the height and width; None keeps the size.
      box: the part of the image that is resized; None takes the whole.
    """
    from PIL import Image

    method = Image.Resampling.BOX if image.mode == "RGB" else Image.Resampling.NEAREST
    return np.asarray(image if size is None else image.resize(size[::-1], method, box=box))


def _first_of_16_bits(image: Any) -> np.ndarray:
    """Decode the first channel of an image of 16 bits a channel, whose values are below 256."""
    # Pillow reads big-endian values as 8 bits by their upper byte. Read as little-endian, the upper
    # byte is the lower one of the file.
    coder, extents, offset, _ = image.tile[0][:4]
    image.tile = [(coder, extents, offset, _LOWER)]
    return np.asarray(image)[..., 0]


def _ranges(values: np.ndarray) -> str:
    """Format sorted values as ranges.

    >>> _ranges(np.array([0, 1, 2, 7, 255]))
    '0 to 2, 7 or 255'
    """
    groups = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    words = [f"{g[0]} to {g[-1]}" if len(g) > 1 else str(g[0]) for g in groups]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


@dataclasses.dataclass(frozen=True)
class Scenes:
    """A source that decodes images `[height, width, 3]` uint8, label maps and their weights.

    Attributes:
      pairs: the files of all images and label maps.
      index: the numbers of the pairs in this source.
      table: the class of each value of a label map, see `table_of`.
      void: the label of pixels without a class; they have weight 0.
      size: the height and width to which whole scenes are resized; None keeps the stored size.
      crop: the height and width of a random window; None draws whole scenes.
      scales: the factors by which a random window is enlarged, equally likely.
    """

    pairs: Pairs
    index: np.ndarray
    table: np.ndarray
    void: int
    size: Size | None = None
    crop: Size | None = None
    scales: tuple[float, ...] = (1.0,)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: np.ndarray) -> Examples:
        """Read whole scenes."""
        return self._read(index, None)

    def drawn(self, index: np.ndarray, draw: Draw) -> Examples:
        """Scale and crop a random window of each scene, and mirror half of them.

        Pixels outside the scene are black and have weight 0. The draw depends on the seed, the
        epoch, the copy and the number among all scenes.
        """
        return self._read(index, draw)

    def _read(self, index: np.ndarray, draw: Draw | None) -> Examples:
        numbers = self.index[index].tolist()
        rows = [self._scene(number, draw) for number in numbers]
        for number, (image, _) in zip(numbers, rows, strict=True):
            if image.shape != rows[0][0].shape:
                raise reading.Unreadable(f"{self.pairs[number][0]} {OTHER_SIZE}")
        images, labels = (np.stack(arrays) for arrays in zip(*rows, strict=True))
        return Examples(images, labels.astype(np.int32), (labels != self.void).astype(np.float32))

    def _scene(self, number: int, draw: Draw | None) -> tuple[np.ndarray, np.ndarray]:
        names = [str(path) for path in self.pairs[number]]
        coded = [reading.content(name, "an image", ADVICE) for name in names]
        image = opened_image(names[0], coded[0])
        labels = opened_label_map(names[1], coded[1], self.table)
        check_sizes(names[0], image.size, labels.size)
        stored = image.height, image.width
        if draw is None:
            return resized(image, self.size), resized(labels, self.size)
        # The last word separates these draws from the shuffle of the epoch.
        words = [draw.seed, draw.epoch, number, 1 + draw.copy]
        return self._window(image, labels, stored, np.random.default_rng(words))

    def _window(
        self, image: Any, labels: Any, stored: Size, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scale, crop and mirror an image and its label map alike."""
        whole = self.size or stored
        crop = self.crop or whole
        factor = self.scales[random.integers(len(self.scales))]
        places, mirrored = random.random(2), random.random() < 0.5
        shown, box = window(stored, whole, crop, factor, (places[0], places[1]))
        pixels = np.zeros((*crop, 3), np.uint8)
        classes = np.full(crop, self.void, np.uint8)
        pixels[: shown[0], : shown[1]] = resized(image, shown, box)
        classes[: shown[0], : shown[1]] = resized(labels, shown, box)
        return (pixels[:, ::-1], classes[:, ::-1]) if mirrored else (pixels, classes)


def window(
    stored: Size, whole: Size, crop: Size, factor: float, places: tuple[float, float]
) -> tuple[Size, Box]:
    """Find the part of a stored scene that a window of the scaled scene shows.

    Args:
      stored: the height and width of the stored scene.
      whole: the height and width of the scene before it is scaled.
      crop: the height and width of the window.
      factor: scales the scene.
      places: where the window lies between the first and the last place, in [0, 1) for each axis.

    Returns:
      The height and width of the part of the window that the scene fills, and the box of the
      stored scene that is resized to it.

    >>> window((100, 200), (100, 200), (50, 50), 2.0, (0.5, 0.0))
    ((50, 50), (0.0, 37.5, 25.0, 62.5))
    >>> window((100, 200), (100, 200), (50, 50), 0.25, (0.5, 0.0))
    ((25, 50), (0.0, 0.0, 200.0, 100.0))
    """
    shown, edges = [], []
    for old, full, wide, place in zip(stored, whole, crop, places, strict=True):
        scaled = max(1, round(full * factor))
        length = min(wide, scaled)
        start = int(place * (scaled - length + 1))
        shown.append(length)
        edges.append((start * old / scaled, (start + length) * old / scaled))
    (top, bottom), (left, right) = edges
    return (shown[0], shown[1]), (left, top, right, bottom)


def recolored(jitter: float) -> Augment | None:
    """Return the augmentation of colors, or None without any."""
    if not jitter:
        return None
    return on_inputs(random_color(brightness=jitter, contrast=jitter, saturation=jitter))


def size_of_scenes(name: str, height: int | None, width: int | None) -> tuple[int, int] | None:
    """Return the height and width of a data set, or None if neither is given."""
    if height is None or width is None:
        if height is not width:
            raise ValueError(
                f"{name}: give both height and width, or neither; got height={height},"
                f" width={width}."
            )
        return None
    checks.whole("height", height)
    checks.whole("width", width)
    return height, width
