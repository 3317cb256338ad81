"""Image files of any origin, opened with Pillow after checks, and their conversion to bytes."""

import io
from typing import Any

import numpy as np


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
