"""Read numbers, texts and structs of MATLAB version 5 files within a memory limit.

SciPy's reader allocates the sizes that a damaged file announces, and crashes on some of them.
"""

import math
import pathlib
import struct
import zlib
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

import numpy as np

from calib_jax.core.files import reading

_HEADER, _BEGINNING_OF_TAGS = 128, b"\0\1IM"  # version 5, little-endian
_MATRIX, _COMPRESSED = 14, 15
# `_STORED` maps the types of parts to dtypes; `_NUMBERS` maps the classes of arrays to dtypes.
_STORED = {
    **{1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8"},
    **{13: "<u8", 16: "u1", 17: "<u2", 18: "<u4"},
}
_NUMBERS = {
    **{6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4"},
    **{14: "i8", 15: "u8"},
}
_ENCODINGS = {1: "utf-8", 2: "utf-8", 16: "utf-8", 4: "utf-16-le", 17: "utf-16-le", 18: "utf-32-le"}
_STRUCT, _CHAR, _COMPLEX = 2, 4, 0x0800
_DEEPEST = 20
_LONGEST_NAME = 1024  # characters of a field; MATLAB allows 63
_Part = tuple[int, memoryview]  # type and content


def read(
    path: pathlib.Path, names: Collection[str], advice: str, *, at_most: int = 1 << 30
) -> dict[str, Any]:
    """Read some variables of a file.

    Numbers are returned as arrays with their MATLAB shape and dtype, text as a string, and an array
    of structs as a mapping from each field to a list in MATLAB's order of elements.

    Args:
      path: the file.
      names: the variables to read; raise if one is missing.
      advice: advice for the error message of an unreadable file.
      at_most: limit on the unpacked bytes of all variables of the file.
    """
    variables: dict[str, Any] = {}
    with reading.opened(path, "a file of MATLAB", advice) as file:
        if file.read(_HEADER)[-4:] != _BEGINNING_OF_TAGS:
            raise ValueError("it does not begin like one of version 5")
        while tag := file.read(8):
            kind, size = struct.unpack("<II", tag)
            content = _unpacked(file, kind, size, at_most)
            at_most -= len(content)
            variables |= _array(memoryview(content), names)
        if missing := [name for name in names if name not in variables]:
            raise ValueError(f"it has no variable {missing[0]}")
    return variables


def _unpacked(file: BinaryIO, kind: int, size: int, at_most: int) -> bytes:
    """Read and decompress the content of a variable."""
    content = file.read(min(size, at_most + 1))
    if kind == _COMPRESSED and len(content) == size:
        content = zlib.decompressobj().decompress(content, at_most + 9)
        kind, size = struct.unpack("<II", content[:8])
        content = content[8:]
    if len(content) > at_most:
        raise ValueError(f"unpacked it has more bytes than are read ({at_most:,} are left)")
    if len(content) != size:
        raise EOFError(f"a variable has {len(content):,} bytes of {size:,}")
    if kind != _MATRIX:
        raise ValueError(f"it has a part of the kind {kind}, which is no variable")
    return content


def _array(
    content: memoryview, wanted: Collection[str] | None = None, depth: int = 0
) -> dict[str, Any]:
    """Read an array, by its name; skip an array that is not requested."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    first, second, third, *rest = _parts(content)
    flags, shape, name = _numbers(first), _numbers(second), str(third[1], "utf-8")
    if wanted is not None and name not in wanted:
        return {}
    kind, count = int(flags[0]), math.prod(shape.tolist())
    if kind & 0xFF in _NUMBERS and not kind & _COMPLEX:
        numbers = _numbers(rest[0])
        if len(numbers) != count or shape.min() < 0 or len(shape) > 32:
            raise ValueError(f"an array of shape {shape.tolist()} has {len(numbers):,} numbers")
        numbers = numbers.astype(_NUMBERS[kind & 0xFF], copy=False)
        return {name: numbers.reshape(shape.tolist(), order="F")}
    if kind & 0xFF == _CHAR:
        return {name: str(rest[0][1], _ENCODINGS[rest[0][0]])}
    if kind & 0xFF == _STRUCT:
        length, names, *elements = rest
        width = int(_numbers(length)[0])
        if not 1 <= width <= _LONGEST_NAME:
            raise ValueError(f"the names of a struct's fields have {width:,} characters")
        texts = np.frombuffer(names[1], f"S{width}").astype(str).tolist()
        if len(elements) != count * len(texts):
            raise ValueError(f"an array of {count:,} structs has {len(elements):,} fields")
        values = [
            next(iter(_array(part, None, depth + 1).values()), None) if part else np.empty((0, 0))
            for _, part in elements
        ]
        return {name: {text: values[k :: len(texts)] for k, text in enumerate(texts)}}
    raise ValueError(f"{name or 'a part'} is neither numbers, text nor structs")


def _parts(content: memoryview) -> Iterator[_Part]:
    """Yield the parts of an array."""
    start = 0
    while start < len(content):
        kind, size = struct.unpack_from("<II", content, start)
        start += 8
        if short := kind >> 16:  # a short part is stored in its tag
            kind, size, start = kind & 0xFFFF, short, start - 4
        part = content[start : start + size]
        if len(part) < size or short > 4:
            raise EOFError(f"a part of a variable has {len(part):,} bytes of {size:,}")
        yield kind, part
        start += size + -(start + size) % 8


def _numbers(part: _Part) -> np.ndarray:
    """Read a part that contains numbers."""
    if part[0] not in _STORED:
        raise ValueError(f"numbers have the unknown type {part[0]}")
    return np.frombuffer(part[1], _STORED[part[0]])
