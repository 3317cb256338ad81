"""Cache decoded images beside the files that they were decoded from."""

import contextlib
import hashlib
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from calib_jax.core.files import reading, writing
from calib_jax.data.images.image_files import opened

NAME = "calib_jax_decoded.npz"
_KEY = "made_from"


def pixels(coded: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Decode a PNG or JPEG file; repeat a grey image over the channels."""
    with opened(coded) as image:
        if (image.height, image.width) != shape[:2]:
            raise ValueError(
                f"an image is {image.height} x {image.width}, and not {shape[0]} x {shape[1]}"
            )
        grey = image.mode == "L" and shape[-1] == 3
        pixels = np.asarray(image.convert("RGB") if grey else image)
    if pixels.shape != shape or pixels.dtype != np.uint8:
        raise ValueError(f"an image is {pixels.shape} {pixels.dtype}, and not {shape} uint8")
    return pixels


def fingerprint(folder: pathlib.Path, names: Iterable[str]) -> str:
    """Compute a digest of the names, sizes and modification times of files, in their order.

    The digest is part of the key of `cached`, so that a cache of other files is not used.

    Args:
      folder: the folder of the files.
      names: their paths in the folder.
    """
    digest = hashlib.sha256()
    for name in names:
        try:
            about = os.stat(os.path.join(folder, name))
        except (OSError, ValueError) as error:  # a name with a NUL raises ValueError
            raise reading.Unreadable(f"{folder} has no {name}: get the data set anew.") from error
        digest.update(os.fsencode(f"{name} {about.st_size} {about.st_mtime_ns}\n"))
    return digest.hexdigest()


def name(*shape: int) -> str:
    """Name the cache of arrays of a shape: each shape has its own cache, which runs share."""
    chosen = "x".join(map(str, shape))
    return f"{NAME.removesuffix('.npz')}_{chosen}.npz" if chosen else NAME


def cached(
    path: pathlib.Path, key: str, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Load arrays from a cache file with the same key; otherwise compute and save them.

    A truncated or corrupt file is replaced: an .npz stores a checksum of every array, and all are
    verified before use. If the file cannot be written, a warning is issued and the arrays are
    computed on every call.
    """
    arrays = _read(path, key)
    if arrays is None:
        arrays = make()
        try:
            _write(path, arrays | {_KEY: np.array(key)})
        except OSError as error:
            warnings.warn(
                f"{path} cannot be written ({error.strerror or error}), so every start decodes"
                " the data set again.",
                stacklevel=2,
            )
    return arrays


def _read(path: pathlib.Path, key: str) -> dict[str, np.ndarray] | None:
    try:
        with reading.npz(path, "decoded images") as stored:
            if str(stored[_KEY]) != key:
                return None
            return {name: stored[name] for name in stored.names if name != _KEY}
    except (reading.Unreadable, FileNotFoundError):  # any unusable cache is computed again
        return None


def _write(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a file atomically, even if two processes write it at the same time."""
    with writing.replacing(path) as partial, open(partial, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def progress(total: int, name: str) -> Iterator[Callable[[int], object]]:
    """Show a progress bar on a terminal; yield the function that advances it."""
    from tqdm import tqdm

    # disable=None disables the bar unless the output is a terminal.
    with tqdm(total=total, desc=f"decoding {name}", leave=False, disable=None) as bar:
        yield bar.update
