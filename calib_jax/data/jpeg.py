"""Photographs that stay coded until they are looked at: by a random window, or by their centre.

They are decoded, cut and resized on the host, in the threads of the stream, since they have sizes
of their own and a device wants one shape. What comes out are bytes, normalised on the device.
"""

import dataclasses
import io
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from calib_jax.core import reading
from calib_jax.core.examples import Draw, Examples

# Of random crops, as in Szegedy et al. 2015 and ever since.
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_TRIES = 10
_MOST_PIXELS = 100_000_000

Box = tuple[int, int, int, int]


@runtime_checkable
class Coded(Protocol):
    """Coded photographs and their labels, by their numbers."""

    @property
    def labels(self) -> np.ndarray:
        """The classes of all of them."""
        ...

    def read(self, number: int) -> bytes:
        """Read the file of one of them."""
        ...

    def name(self, number: int) -> str:
        """Say which file that is, for people."""
        ...


@dataclasses.dataclass(frozen=True)
class Photographs:
    """A source of some coded photographs, as `[size, size, 3]` bytes.

    Attributes:
      coded: where they come from.
      index: which of them; `source[numbers]` and `drawn` count in these.
      size: of the image that comes out, in pixels.
      resize: to which the shorter side is brought before the centre is cut out, for evaluation.
    """

    coded: Coded
    index: np.ndarray
    size: int = 224
    resize: int = 256

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: np.ndarray) -> Examples:
        return self._read(index, lambda coded, number: centre(coded, self.size, self.resize))

    def drawn(self, index: np.ndarray, draw: Draw) -> Examples:
        """Cut a random window out of each, and mirror half of them.

        What is drawn depends on seed, epoch and the number among all coded photographs, so that a
        smaller part of the same photographs has the same views.
        """

        def view(coded: bytes, number: int) -> np.ndarray:
            # The last word keeps the stream of number 0 from being that of (seed, epoch), which
            # shuffles the epoch: NumPy fills short seeds up with zeros.
            words = [draw.seed, draw.epoch, number, 1]
            return random_window(coded, self.size, np.random.default_rng(words))

        return self._read(index, view)

    def _read(self, index: np.ndarray, view: Callable[[bytes, int], np.ndarray]) -> Examples:
        numbers = self.index[index]
        images = np.empty((len(numbers), self.size, self.size, 3), np.uint8)
        for row, number in enumerate(numbers.tolist()):
            with reading.guard(self.coded.name(number), "an image", library=True):
                images[row] = view(self.coded.read(number), number)
        return Examples(images, self.coded.labels[numbers])


def random_window(coded: bytes, size: int, random: np.random.Generator) -> np.ndarray:
    """Cut a random window out of a photograph, resize it to `[size, size, 3]`, mirror it or not.

    The law of the window is that of `window`. A window that is at least twice as long as `size` on
    both sides is decoded at a half, a quarter or an eighth of its resolution, which a JPEG allows
    in less time; the rest of the way is resampled by triangles as wide as the step (bilinear,
    antialiased). Pixels then differ a little from those of a full decoding; the window does not.
    """
    from PIL import ImageOps

    with _opened(coded) as image:
        width, height = image.size
        left, top, wide, tall = window(width, height, random)
        mirrored = random.random() < 0.5
        fits = min(wide // size, tall // size)
        shrunk = next(factor for factor in (8, 4, 2, 1) if fits >= factor or factor == 1)
        image.draft(None, (width // shrunk, height // shrunk))
        if image.width == width:  # not every format can
            shrunk = 1
        box = [edge / shrunk for edge in (left, top, left + wide, top + tall)]
        seen = _resized(image, (size, size), box)
    # Pillow mirrors seven times as fast as NumPy copies backwards.
    return np.asarray(ImageOps.mirror(seen) if mirrored else seen)


def window(width: int, height: int, random: np.random.Generator) -> Box:
    """Draw a window of an image: the left edge, the top, the width and the height.

    Its area is uniform in [.08, 1] of the image's and its ratio of width to height log-uniform in
    [3/4, 4/3]; one that does not fit is drawn again. After ten of these it is the largest window
    in the middle of the image with a ratio that is allowed.

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


def centre(coded: bytes, size: int, resize: int) -> np.ndarray:
    """Bring the shorter side of a photograph to `resize`, and cut the middle `[size, size, 3]` out.

    Always from all pixels, resampled by triangles as wide as the step (bilinear, antialiased).
    """
    with _opened(coded) as image:
        shorter = min(image.size)
        width, height = (side * resize // shorter for side in image.size)
        pixels = np.asarray(_resized(image, (width, height), None))
    # Half pixels go to the even neighbour, as in the crop with which others publish their errors.
    top, left = round((height - size) / 2), round((width - size) / 2)
    return pixels[top : top + size, left : left + size]


def _opened(coded: bytes) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(coded), formats=("JPEG", "PNG"))
    except UnidentifiedImageError as error:  # it would name the address of what is read
        raise ValueError("no JPEG or PNG") from error
    # Opened, but not decoded yet: a few bytes can stand for gigabytes.
    if image.width * image.height > _MOST_PIXELS:
        raise ValueError(f"it would have {image.width:,} x {image.height:,} pixels")
    return image


def _resized(image: Any, size: tuple[int, int], box: list[float] | None) -> Any:
    from PIL import Image

    # A few of ImageNet's files are grey, or CMYK.
    coloured = image if image.mode == "RGB" else image.convert("RGB")
    return coloured.resize(size, Image.Resampling.BILINEAR, box=box)
