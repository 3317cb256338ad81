"""NumPy files: only the arrays that are named are read, and only as many bytes as they declare.

The header of an array says its shape and dtype. It is read first, so that an array that would
not fit, a pickled object or a damaged file is refused before anything is decompressed.
"""

import io
import math
import os
import pathlib
import zipfile
from collections.abc import Collection, Sequence
from typing import IO, NamedTuple

import numpy as np

HEADER_BYTES = 1 << 16  # of plain arrays they have 118
CHUNK_BYTES = 1 << 20
SMALL_BYTES = 1 << 28  # fits everywhere
KINDS = "fiubUS"  # numbers and text


class Unreadable(ValueError):
    """A file that is not what it should be; the message is one sentence."""


# Other spellings of what a file of predictions holds.
SPELLINGS = {
    "label": "labels",
    "weight": "weights",
    "group": "groups",
    "logit": "logits",
    "probability": "probabilities",
}


def roles_of(names: Sequence[str], wanted: Collection[str], where: str) -> dict[str, int]:
    """Find the columns or arrays that are wanted, in singular or plural, capital or not."""
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        role = SPELLINGS.get(name.strip().lower(), name.strip().lower())
        if role not in wanted:
            continue
        if role in found:
            both = f"{names[found[role]]!r} and {name!r}"
            raise Unreadable(f"{where} has {both}, which mean the same: keep one of them.")
        found[role] = place
    return found


def listed(names: Sequence[str], most: int = 20) -> str:
    """List names from a file, but not a million of them."""
    more = [f"... ({len(names):,} in all)"] if len(names) > most else []
    return ", ".join([*map(shown, names[:most]), *more])


def shown(text: str, most: int = 40) -> str:
    """Show a text from a file, but no control characters and not all of a long one."""
    text = text if len(text) <= most else f"{text[:most]}..."
    return text if text.isprintable() else repr(text)[1:-1]


class Header(NamedTuple):
    """What an array declares of itself, and where its first element lies."""

    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype
    offset: int

    @property
    def num_bytes(self) -> int:
        """Compute the size of all elements, as a Python integer that cannot overflow."""
        return math.prod(self.shape) * self.dtype.itemsize


class Archive:
    """The arrays of an .npz file, each read when it is asked for.

    Attributes:
      names: of the arrays, as they stand in the file.
    """

    def __init__(self, file: IO[bytes], path: pathlib.Path) -> None:
        self._zip = zipfile.ZipFile(file)
        self._path = path
        self.names = [name.removesuffix(".npy") for name in self._zip.namelist()]

    def read(self, name: str) -> np.ndarray:
        """Read one array."""
        where = f"array {name!r} of {self._path}"
        member = self._zip.getinfo(f"{name}.npy")
        with self._zip.open(member) as stream:
            start = stream.read(HEADER_BYTES)
            header = _header(start, where)
            if header.offset + header.num_bytes != member.file_size:
                raise Unreadable(
                    f"{where} is damaged: its shape {header.shape} takes {header.num_bytes:,}"
                    f" bytes, and it has {member.file_size - header.offset:,}."
                )
            _refuse_too_large(header, where)
            elements = np.empty(header.num_bytes, np.uint8)
            begin = start[header.offset :]
            elements[: len(begin)] = np.frombuffer(begin, np.uint8)
            done = len(begin)
            # At the end of the stream zipfile compares the checksum.
            while chunk := stream.read(CHUNK_BYTES):
                elements[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
                done += len(chunk)
        order = "F" if header.fortran_order else "C"
        return native(elements.view(header.dtype).reshape(header.shape, order=order))


def read_array(path: pathlib.Path) -> np.ndarray:
    """Read an .npy file, memory-mapped."""
    with path.open("rb") as file:
        header = _header(file.read(HEADER_BYTES), str(path))
        present = os.fstat(file.fileno()).st_size - header.offset
    if header.num_bytes != present:
        raise Unreadable(
            f"{path} is damaged: its shape {header.shape} takes {header.num_bytes:,} bytes, and it"
            f" has {present:,}."
        )
    if header.num_bytes == 0:
        return np.empty(header.shape, header.dtype)
    order = "F" if header.fortran_order else "C"
    mapped = np.memmap(
        path, header.dtype, mode="r", offset=header.offset, shape=header.shape, order=order
    )
    return native(mapped)


def native(array: np.ndarray) -> np.ndarray:
    """Convert numbers to this machine's byte order, and long doubles to double precision."""
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _header(start: bytes, where: str) -> Header:
    """Parse the header that an array begins with."""
    stream = io.BytesIO(start)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):  # version 3 is for structured arrays
            read = np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read(stream)
    except Exception as error:  # the parser lets through whatever its own libraries raise
        raise Unreadable(f"{where} cannot be read: it is damaged, or no NumPy file.") from error
    if dtype.hasobject:
        raise Unreadable(f"{where} holds pickled objects, which are not read: save plain arrays.")
    if dtype.kind not in KINDS or dtype.itemsize == 0:
        raise Unreadable(f"{where} has dtype {dtype}: save numbers, or text for groups.")
    if any(length < 0 for length in shape):
        raise Unreadable(f"{where} is damaged: its shape is {shape}.")
    return Header(tuple(map(int, shape)), fortran_order, dtype, stream.tell())


def _refuse_too_large(header: Header, where: str) -> None:
    """Refuse an array for which the memory of this machine does not suffice."""
    if header.num_bytes <= SMALL_BYTES:
        return
    from calib_jax.train import memory  # imports JAX

    free = memory.of_host()
    if header.num_bytes > free:
        raise Unreadable(
            f"{where} has shape {header.shape} and takes {header.num_bytes / 1e9:,.1f} GB, but"
            f" only {free / 1e9:,.1f} GB of memory are free."
        )
