"""Images and label maps from coded files: decoded, checked and resized alike."""

from typing import Any, NamedTuple

import numpy as np

from calib_jax.core.files import reading
from calib_jax.data.images.image_files import opened

ADVICE = "get the data set anew"
UNKNOWN = -1  # in a table of values: no class has this value, and void has another
_MOST_PIXELS = 10_000_000
# The only mode of 6 bytes a pixel, of which Pillow keeps the upper byte of each channel.
_UPPER, _LOWER = "RGB;16B", "RGB;16L"

Size = tuple[int, int]  # height and width
Box = tuple[float, float, float, float]  # left, upper, right and lower edge, in pixels


class Decoded(NamedTuple):
    """A resized image or label map, with its name and its size before."""

    name: str
    size: Size
    pixels: np.ndarray


def table_of(classes: dict[int, int], void: tuple[int, ...], void_class: int) -> np.ndarray:
    """Build the table `[256]` that maps the value of a pixel to its class.

    Args:
      classes: the class of each value.
      void: the values of pixels without a class.
      void_class: the label of these pixels, usually the number of classes.

    >>> table_of({7: 0, 8: 1}, void=(0,), void_class=2)[[7, 8, 0, 9]]
    array([ 0,  1,  2, -1])
    """
    table = np.full(256, UNKNOWN)
    table[list(classes)] = list(classes.values())
    table[list(void)] = void_class
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


def check_sizes(image_name: str, image_size: Size, label_size: Size) -> None:
    """Raise unless an image and its label map have the same height and width."""
    if image_size != label_size:
        raise reading.Unreadable(
            f"{image_name} has {image_size[1]} x {image_size[0]} pixels, and its label map"
            f" {label_size[1]} x {label_size[0]}: {ADVICE}."
        )


def resized_image(image: Any, size: Size | None, box: Box | None = None) -> np.ndarray:
    """Resize an image by averaging areas: `[height, width, 3]`; None keeps its size."""
    from PIL import Image

    return np.asarray(_resized(image, size, box, Image.Resampling.BOX))


def resized_labels(image: Any, size: Size | None, box: Box | None = None) -> np.ndarray:
    """Resize a label map by the nearest pixel, so that classes do not mix."""
    from PIL import Image

    return np.asarray(_resized(image, size, box, Image.Resampling.NEAREST))


def _resized(image: Any, size: Size | None, box: Box | None, method: Any) -> Any:
    return image if size is None else image.resize(size[::-1], method, box=box)


def size_of(image: Any) -> Size:
    """Return the height and width of an image of Pillow."""
    return image.height, image.width


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
