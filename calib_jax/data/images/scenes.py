"""Scenes: images with label maps, decoded when they are read, as a random window or as a whole.

A large set of full-size scenes does not fit into memory. The stream's threads decode, scale, crop
and mirror image and label map alike, because a device needs one shape. Colors change on the device.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from calib_jax.core.examples import Draw, Examples
from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.data.dataset import Augment
from calib_jax.data.images import label_maps
from calib_jax.data.images.augmentation import on_inputs, random_color
from calib_jax.data.images.label_maps import ADVICE, Box, Size

# Factors of Tian et al. 2021 for Cityscapes.
SCALES = (0.75, 1.0, 1.25, 1.5, 1.75, 2.0)


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Coded images and label maps, by number.

    Attributes:
      names: the names of both files, for error messages.
      read: reads the files of an image and of its label map.
    """

    names: Sequence[tuple[str, str]]
    read: Callable[[int], tuple[bytes, bytes]]


def pairs_of_files(paths: Sequence[tuple[pathlib.Path, pathlib.Path]]) -> Pairs:
    """Return the pairs of files of images and label maps."""

    def read(number: int) -> tuple[bytes, bytes]:
        image, label_map = (reading.content(p, "an image", ADVICE) for p in paths[number])
        return image, label_map

    return Pairs([(str(image), str(label_map)) for image, label_map in paths], read)


@dataclasses.dataclass(frozen=True)
class Scenes:
    """A source that decodes images `[height, width, 3]` uint8, label maps and their weights.

    Attributes:
      pairs: all coded images and label maps.
      index: the numbers of the pairs in this source.
      table: the class of each value of a label map, see `label_maps.table_of`.
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
                raise reading.Unreadable(
                    f"{self.pairs.names[number][0]} has {image.shape[1]} x {image.shape[0]} pixels,"
                    " unlike the first image: resize all by the options height and width."
                )
        images, labels = (np.stack(arrays) for arrays in zip(*rows, strict=True))
        return Examples(images, labels.astype(np.int32), (labels != self.void).astype(np.float32))

    def _scene(self, number: int, draw: Draw | None) -> tuple[np.ndarray, np.ndarray]:
        coded, names = self.pairs.read(number), self.pairs.names[number]
        image = label_maps.opened_image(names[0], coded[0])
        labels = label_maps.opened_label_map(names[1], coded[1], self.table)
        stored = label_maps.size_of(image)
        label_maps.check_sizes(names[0], stored, label_maps.size_of(labels))
        if draw is None:
            whole = label_maps.resized_image(image, self.size)
            return whole, label_maps.resized_labels(labels, self.size)
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
        pixels[: shown[0], : shown[1]] = label_maps.resized_image(image, shown, box)
        classes[: shown[0], : shown[1]] = label_maps.resized_labels(labels, shown, box)
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
    if height is None and width is None:
        return None
    if height is None or width is None:
        raise ValueError(
            f"{name}: give both height and width, or neither; got height={height}, width={width}."
        )
    checks.whole("height", height)
    checks.whole("width", width)
    return height, width
