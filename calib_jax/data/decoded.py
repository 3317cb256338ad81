"""Keep what took long to decode, beside what it was decoded from."""

import contextlib
import io
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from calib_jax.core import reading

NAME = "calib_jax_decoded.npz"
_KEY = "made_from"


def pixels(coded: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Decode a PNG or JPEG file; of one that is grey every channel is the same."""
    from PIL import Image

    with Image.open(io.BytesIO(coded), formats=("PNG", "JPEG")) as image:
        # Before it is decoded, which for a few bytes can take gigabytes.
        if (image.height, image.width) != shape[:2]:
            raise ValueError(
                f"an image is {image.height} x {image.width}, and not {shape[0]} x {shape[1]}"
            )
        grey = image.mode == "L" and shape[-1] == 3
        found = np.asarray(image.convert("RGB") if grey else image)
    if found.shape != shape or found.dtype != np.uint8:
        raise ValueError(f"an image is {found.shape} {found.dtype}, and not {shape} uint8")
    return found


def kept(
    path: pathlib.Path, key: str, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Read arrays from a file that was made with the same key; otherwise make and write them.

    A file that is cut short or has a wrong bit anywhere is made anew: an .npz holds a checksum of
    every array, and all are compared before anything is believed. Where the file cannot be
    written, a warning says so, and the arrays are made every time.
    """
    found = _read(path, key)
    if found is None:
        found = make()
        try:
            _write(path, found | {_KEY: np.array(key)})
        except OSError as error:
            warnings.warn(
                f"{path} cannot be written ({error.strerror or error}), so that every start"
                " decodes the data set anew.",
                stacklevel=2,
            )
    return found


def _read(path: pathlib.Path, key: str) -> dict[str, np.ndarray] | None:
    try:
        with reading.npz(path, "decoded images") as stored:
            if str(stored[_KEY]) != key:
                return None
            return {name: stored[name] for name in stored.names if name != _KEY}
    except (reading.Unreadable, FileNotFoundError):  # whatever is wrong, it can be made anew
        return None


def _write(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a file whole or not at all, also when two processes do so at once."""
    # Named by chance: processes in two containers may have the same number.
    partial = path.with_name(f"{path.name}.{os.urandom(4).hex()}.partial")
    try:
        with open(partial, "xb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def progress(total: int, name: str) -> Iterator[Callable[[int], object]]:
    """Show a bar while something is decoded, on a terminal only; yield what moves it."""
    from tqdm import tqdm

    # disable=None: not where the output is a file.
    with tqdm(total=total, desc=f"decoding {name}", leave=False, disable=None) as bar:
        yield bar.update
