"""Image files of any origin, decoded with Pillow after checks of format and size."""

import concurrent.futures
import io
from collections.abc import Callable
from typing import Any

import numpy as np

_CHUNK = 200  # images that a thread decodes at a time
_THREADS = 4  # Pillow holds the lock of the interpreter half of the time, so more do not help


def opened(
    coded: bytes, formats: tuple[str, ...] = ("JPEG", "PNG"), *, most_pixels: int = 100_000_000
) -> Any:
    """Open an image file as an image of Pillow, which is decoded when its pixels are read.

    Pillow decides by the contents, not by the name of a file, and it starts Ghostscript for a file
    of PostScript. So only the formats that a data set needs are opened.

    Args:
      coded: the contents of the file.
      formats: the formats by Pillow's names.
      most_pixels: the limit on width x height; a file of a few bytes can decode to gigabytes.

    Raises:
      ValueError: it has another format or too many pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(coded), formats=formats)
    except UnidentifiedImageError as error:  # its message contains a memory address
        raise ValueError(f"no {', '.join(formats[:-1])} or {formats[-1]}") from error
    if image.width * image.height > most_pixels:
        raise ValueError(f"it would have {image.width:,} x {image.height:,} pixels")
    return image


def pixels(coded: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Decode a PNG or JPEG file of a given shape; repeat a grey image over the channels."""
    from PIL import Image

    if coded[:2] == b"\xff\xd8" and shape[-1] == 3:
        # The decoder alone takes a third of the time of a whole JPEG file of 32 x 32 pixels, and
        # raises ValueError for another size.
        return np.asarray(Image.frombytes("RGB", (shape[1], shape[0]), coded, "jpeg", "RGB", ""))
    with opened(coded) as image:
        grey = image.mode == "L" and shape[-1] == 3
        decoded = np.asarray(image.convert("RGB") if grey else image)
    if decoded.shape != shape or decoded.dtype != np.uint8:
        raise ValueError(f"an image is {decoded.shape} {decoded.dtype}, and not {shape} uint8")
    return decoded


def decode_all(
    count: int, shape: tuple[int, ...], decode: Callable[[int], np.ndarray], name: str
) -> np.ndarray:
    """Decode the images of a data set with several threads: `[count, *shape]`, uint8.

    Args:
      count: the number of images.
      shape: the shape of each.
      decode: decodes the image with a number.
      name: the data set, for the progress bar on a terminal.
    """
    from tqdm import tqdm

    result = np.empty((count, *shape), np.uint8)

    def decode_some(start: int) -> int:
        stop = min(start + _CHUNK, count)
        for number in range(start, stop):
            result[number] = decode(number)
        return stop - start

    # disable=None disables the bar unless the output is a terminal.
    with (
        tqdm(total=count, desc=f"decoding {name}", leave=False, disable=None) as bar,
        concurrent.futures.ThreadPoolExecutor(_THREADS) as pool,
    ):
        for done in pool.map(decode_some, range(0, count, _CHUNK)):
            bar.update(done)
    return result


def eight_bits(image: Any, mode: str) -> Any:
    """Convert an image of Pillow to mode "L" or "RGB", whose pixels are bytes.

    Grey values of 16 bits are divided by 257; Pillow itself makes all above 255 white.
    """
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers: save it with 8 or 16 bits a pixel")
    if image.mode.startswith("I"):
        from PIL import Image

        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its pixels have more than 16 bits: save it with 8 or 16 bits a pixel")
        image = Image.fromarray(np.round(values / 257).astype(np.uint8))
    return image.convert(mode)
