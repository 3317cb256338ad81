"""Compressed photographs, decoded on access as a random window or a centre crop.

The stream's threads decode, crop and resize them on the host, because their sizes differ and a
device needs one shape. The result is uint8, which the device normalises.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import Draw, Examples
from calib_jax.core.files import reading
from calib_jax.core.texts import one_line
from calib_jax.data.dataset import About, Augment, Dataset, sizes
from calib_jax.data.images.image_files import opened
from calib_jax.data.images.image_sets import IMAGENET, normalized

# Ranges of random crops, from Szegedy et al. 2015.
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_TRIES = 10

_LONGEST = 1 << 26  # limit on the bytes of a photograph
_ADVICE = "unpack the photographs anew"

Box = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Listed:
    """Compressed photographs of one part of a data set, sorted by class and name.

    Attributes:
      place: the folder of the files.
      names: their paths in the folder, as bytes.
      labels: their classes.
    """

    place: pathlib.Path
    names: np.ndarray
    labels: np.ndarray

    def path(self, number: int) -> pathlib.Path:
        """Return the path of a photograph."""
        return self.place / self.names[number].decode()


def listed(
    path: pathlib.Path, place: pathlib.Path, names: Sequence[str], labels: Sequence[int]
) -> Listed:
    """Return the photographs of a published list; raise an error for the first one that is absent.

    Args:
      path: the list, for error messages.
      place: the folder that contains the photographs.
      names: their paths in this folder.
      labels: their classes.
    """
    if not names:
        raise reading.Unreadable(f"{path} names no photographs: get it anew.")
    folders: dict[str, set[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if folder not in folders:  # list each folder once, for hundreds of thousands of files
            inside = ".." not in folder.split("/") and (place / folder).is_dir()
            folders[folder] = {*os.listdir(place / folder)} if inside else set()
        if file not in folders[folder]:
            raise reading.Unreadable(
                f"{path} names {one_line(name[:80])}, and {place} does not have it: {_ADVICE}."
            )
    coded, classes = np.array([name.encode() for name in names]), np.array(labels, np.int32)
    order = np.lexsort((coded, classes))
    return Listed(place, coded[order], classes[order])


@dataclasses.dataclass(frozen=True)
class Photographs:
    """A source that decodes some of the coded photographs to `[size, size, 3]` uint8.

    Attributes:
      coded: all photographs.
      index: numbers of the photographs in this source; `source[i]` and `drawn` index into it.
      size: side of the returned images, in pixels.
      resize: length of the shorter side before the centre crop of evaluation.
    """

    coded: Listed
    index: np.ndarray
    size: int
    resize: int

    @property
    def labels(self) -> np.ndarray:
        """The labels of the photographs."""
        return self.coded.labels[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: np.ndarray) -> Examples:
        return self._read(index, lambda coded, number: center(coded, self.size, self.resize))

    def drawn(self, index: np.ndarray, draw: Draw) -> Examples:
        """Crop a random window of each photograph, and mirror half of them.

        The draw depends on the seed, the epoch, the copy and the number among all coded
        photographs, so a subset of the photographs has the same views.
        """

        def view(coded: bytes, number: int) -> np.ndarray:
            # NumPy pads short seeds with zeros. Without the last word, number 0 would share the
            # random stream of (seed, epoch), which shuffles the epoch.
            words = [draw.seed, draw.epoch, number, 1 + draw.copy]
            return random_window(coded, self.size, np.random.default_rng(words))

        return self._read(index, view)

    def _read(self, index: np.ndarray, view: Callable[[bytes, int], np.ndarray]) -> Examples:
        numbers = self.index[index]
        images = np.empty((len(numbers), self.size, self.size, 3), np.uint8)
        for row, number in enumerate(numbers.tolist()):
            path = self.coded.path(number)
            with reading.guard(path, "an image", _ADVICE, library=True):
                coded = reading.content(path, "an image", _ADVICE, at_most=_LONGEST)
                images[row] = view(coded, number)
        return Examples(images, self.coded.labels[numbers])


def photographs(
    name: str,
    about: About,
    class_names: tuple[str, ...],
    parts: Mapping[str, tuple[Listed, np.ndarray]],
    sides: tuple[int, int],
    rule: str,
    augment: Augment | None = None,
) -> Dataset:
    """Build a data set of photographs, normalised by ImageNet's statistics.

    Args:
      name, class_names, augment: as for `Dataset`.
      about: the facts of the data set.
      parts: the photographs of each part, and the numbers of those in the part.
      sides: size and resize, as for `Photographs`.
      rule: how it is split and whose it is, for the description.
    """
    sources: dict[str, Any] = {part: Photographs(*some, *sides) for part, some in parts.items()}
    return Dataset(
        name=name,
        class_names=class_names,
        **sources,
        description=(
            f"{about.title}, {sides[0]} x {sides[0]}, {len(class_names)} classes:"
            f" {sizes(*sources.values())}; {rule}. Licence: {about.licence}."
        ),
        prepare=normalized(IMAGENET),
        brightest=255,
        augment=augment,
    )


def check_sizes(size: int, resize: int) -> None:
    """Validate the sizes of `Photographs`."""
    checks.whole("size", size)
    checks.whole("resize", resize, size)


def random_window(coded: bytes, size: int, random: np.random.Generator) -> np.ndarray:
    """Crop a random window of a photograph, resize it to `[size, size, 3]`, and randomly mirror it.

    The window is drawn by `window`. If both sides of the window are at least twice `size`, the JPEG
    is decoded at 1/2, 1/4 or 1/8 of its resolution, which is faster. The result is then resized by
    a bilinear antialiased filter. Pixels differ slightly from a full decoding; the window
    is the same.
    """
    from PIL import ImageOps

    with opened(coded) as image:
        width, height = image.size
        left, top, wide, tall = window(width, height, random)
        mirrored = random.random() < 0.5
        fits = min(wide // size, tall // size)
        shrunk = next(factor for factor in (8, 4, 2, 1) if fits >= factor or factor == 1)
        image.draft(None, (width // shrunk, height // shrunk))
        if image.width == width:  # not every format supports reduced decoding
            shrunk = 1
        box = [edge / shrunk for edge in (left, top, left + wide, top + tall)]
        resized = _resized(image, (size, size), box)
    # Pillow mirrors seven times as fast as NumPy's reversed copy.
    return np.asarray(ImageOps.mirror(resized) if mirrored else resized)


def window(width: int, height: int, random: np.random.Generator) -> Box:
    """Draw a random window of an image; return left edge, top edge, width and height.

    Its area is uniform in [.08, 1] of the image's area and its ratio of width to height log-uniform
    in [3/4, 4/3]. A window that does not fit is drawn again; after ten failures the largest centred
    window with an allowed ratio is returned.

    References:
      Szegedy et al. 2015, Going Deeper with Convolutions, section 6.

    >>> window(500, 375, np.random.default_rng(0))
    (65, 166, 129, 171)
    """
    low, high = map(math.log, RATIO)
    for _ in range(_TRIES):
        area = width * height * random.uniform(*AREA)
        ratio = math.exp(random.uniform(low, high))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            left, top = random.integers(width - wide + 1), random.integers(height - tall + 1)
            return int(left), int(top), wide, tall
    wide = min(width, round(height * RATIO[1]))
    tall = min(height, round(width / RATIO[0]))
    return (width - wide) // 2, (height - tall) // 2, wide, tall


def center(coded: bytes, size: int, resize: int) -> np.ndarray:
    """Resize the shorter side of a photograph to `resize`, and crop the centre `[size, size, 3]`.

    The photograph is decoded at full resolution and resized by a bilinear antialiased filter.
    """
    with opened(coded) as image:
        shorter = min(image.size)
        width, height = (side * resize // shorter for side in image.size)
        pixels = np.asarray(_resized(image, (width, height), None))
    # Round half pixels to even, as in the centre crop behind published errors.
    top, left = round((height - size) / 2), round((width - size) / 2)
    return pixels[top : top + size, left : left + size]


def _resized(image: Any, size: tuple[int, int], box: list[float] | None) -> Any:
    from PIL import Image

    # A few of ImageNet's files are grey, or CMYK.
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    return rgb.resize(size, Image.Resampling.BILINEAR, box=box)
