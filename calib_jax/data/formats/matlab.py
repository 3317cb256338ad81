"""Read MATLAB version 5 files within a memory limit, whatever sizes they announce.

SciPy's reader allocates the sizes that a damaged file announces, which can kill the process.
"""

import io
import math
import pathlib
import struct
import zlib
from collections.abc import Collection
from typing import Any, BinaryIO, Literal

import numpy as np

from calib_jax.core.files import reading

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
# `_STORED` maps element types to stored dtypes; `_NUMBERS` maps array classes to result dtypes.
_STORED = {
    **{1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"},
    **{16: "u1", 17: "u2", 18: "u4"},
}
_Order = Literal["<", ">"]
_ORDERS: dict[bytes, _Order] = {b"IM": "<", b"MI": ">"}
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMBERS = {
    **{6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4"},
    **{14: "i8", 15: "u8"},
}
_ENCODINGS = {1: "utf-8", 2: "utf-8", 16: "utf-8", 4: "utf-16", 17: "utf-16", 18: "utf-32"}
_COMPLEX = 0x0800
_DEEPEST = 20


def read(
    path: pathlib.Path, names: Collection[str], advice: str, *, at_most: int = 1 << 30
) -> dict[str, Any]:
    """Read some variables of a file.

    Numbers are returned as arrays with their MATLAB shape and dtype, text as a string, a cell array
    as a list, and an array of structs as a mapping from each field to a list; lists have MATLAB's
    order of elements.

    Args:
      path: the file.
      names: the variables to read; raise if one is missing.
      advice: advice for the error message of an unreadable file.
      at_most: limit on the unpacked bytes of all variables of the file.
    """
    variables: dict[str, Any] = {}
    with reading.opened(path, "a file of MATLAB", advice) as file:
        header = file.read(_HEADER)
        order = _ORDERS.get(header[-2:])
        if len(header) < _HEADER or order is None:
            raise ValueError("it does not begin like one of version 5")
        while tag := file.read(8):
            content = _variable(file, tag, order, at_most)
            at_most -= len(content)
            variable = _Elements(content, order).header()
            if variable.name in names:
                variables[variable.name] = variable.value()
        if missing := [name for name in names if name not in variables]:
            raise ValueError(f"it has no variable {missing[0]}")
    return variables


def _variable(file: BinaryIO, tag: bytes, order: _Order, at_most: int) -> bytes:
    """Read and decompress the content that follows the tag of a variable."""
    kind, size = struct.unpack(f"{order}II", tag)
    if kind not in (_MATRIX, _COMPRESSED):
        raise ValueError(f"it has a part of the kind {kind}, which is no variable")
    content = file.read(min(size, at_most + 1))
    if len(content) < size:
        raise EOFError(f"a variable has {len(content):,} bytes of {size:,}")
    if kind == _COMPRESSED:
        stream = zlib.decompressobj()
        content = stream.decompress(content, at_most + 1)
        if not stream.eof and len(content) <= at_most:
            raise EOFError("a variable is cut short")
        _bounded(content, at_most)
        kind, size = struct.unpack(f"{order}II", content[:8])
        if kind != _MATRIX or size != len(content) - 8:
            raise ValueError(f"a variable has {len(content) - 8:,} bytes of {size:,}")
        content = content[8:]
    _bounded(content, at_most)
    return content


def _bounded(content: bytes, at_most: int) -> None:
    if len(content) > at_most:
        raise ValueError(f"unpacked it has more bytes than are read ({at_most:,} are left)")


class _Elements:
    """A reader of the elements of a variable; each has a type, a length and content."""

    def __init__(self, content: bytes, order: _Order, depth: int = 0) -> None:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deeply")
        self.order = order
        self.depth = depth
        self._content = io.BytesIO(content)

    def next(self) -> tuple[int, bytes]:
        """Read the type and content of the next element."""
        tag = self._exactly(8)
        kind, size = struct.unpack(f"{self.order}II", tag)
        if kind >> 16:  # a short element stores its content in the tag
            size = kind >> 16
            if size > 4:
                raise ValueError(f"a short part has {size} bytes")
            return kind & 0xFFFF, tag[4 : 4 + size]
        content = self._exactly(size)
        self._content.seek(-size % 8, io.SEEK_CUR)
        return kind, content

    def numbers(self) -> np.ndarray:
        """Read an element that contains numbers."""
        kind, content = self.next()
        if kind not in _STORED:
            raise ValueError(f"numbers have the unknown type {kind}")
        return np.frombuffer(content, np.dtype(_STORED[kind]).newbyteorder(self.order))

    def header(self) -> "_Array":
        """Read the header of an array: flags, shape and name."""
        flags, shape, (_, name) = self.numbers(), self.numbers(), self.next()
        if len(flags) < 1 or shape.dtype.kind != "i" or not 2 <= len(shape) <= 32:
            raise ValueError("an array has no shape")
        if min(shape) < 0:
            raise ValueError(f"an array has the shape {tuple(shape.tolist())}")
        return _Array(self, int(flags[0]), tuple(shape.tolist()), name.decode("utf-8"))

    def array(self) -> Any:
        """Read a nested array."""
        kind, content = self.next()
        if kind != _MATRIX:
            raise ValueError(f"an array has the unknown type {kind}")
        if not content:  # an empty array
            return np.empty((0, 0))
        return _Elements(content, self.order, self.depth + 1).header().value()

    def _exactly(self, size: int) -> bytes:
        content = self._content.read(size)
        if len(content) < size:
            raise EOFError(f"a part of a variable has {len(content):,} bytes of {size:,}")
        return content


class _Array:
    """The header of an array; its content is next in the elements."""

    def __init__(self, elements: _Elements, flags: int, shape: tuple[int, ...], name: str) -> None:
        self.name = name
        self._elements = elements
        self._class, self._complex = flags & 0xFF, bool(flags & _COMPLEX)
        self._shape = shape

    def value(self) -> Any:
        """Read the content."""
        count = math.prod(self._shape)
        if self._class in _NUMBERS and not self._complex:
            numbers = self._elements.numbers()
            if len(numbers) != count:
                raise ValueError(f"an array of shape {self._shape} has {len(numbers):,} numbers")
            array = numbers.astype(_NUMBERS[self._class], copy=False)
            return array.reshape(self._shape, order="F")
        if self._class == _CHAR:
            kind, content = self._elements.next()
            encoding = _ENCODINGS.get(kind, "")
            if encoding and encoding != "utf-8":
                encoding += "-le" if self._elements.order == "<" else "-be"
            return content.decode(encoding or "ascii")
        # Each element takes at least 8 bytes, so a false count reaches the end of the content.
        if self._class == _CELL:
            return [self._elements.array() for _ in range(count)]
        if self._class == _STRUCT:
            length = int(self._elements.numbers()[0])
            _, names = self._elements.next()
            if length < 1 or not names:
                raise ValueError("a struct has no fields")
            fields = [
                names[start : start + length].partition(b"\0")[0].decode("ascii")
                for start in range(0, len(names), length)
            ]
            table: dict[str, list[Any]] = {field: [] for field in fields}
            for _ in range(count):
                for field in fields:
                    table[field].append(self._elements.array())
            return table
        raise ValueError(f"{self.name or 'a part'} is neither numbers, text, cells nor structs")
