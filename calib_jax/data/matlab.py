"""Files of MATLAB (version 5), unpacked within a bound before SciPy reads them."""

import io
import math
import pathlib
import struct
import zlib
from collections.abc import Collection
from typing import Any, BinaryIO

from calib_jax.core import reading

_HEADER = 128
_COMPRESSED = 15


def read(
    path: pathlib.Path,
    names: Collection[str],
    advice: str,
    *,
    at_most: int = 1 << 30,
    **options: Any,
) -> dict[str, Any]:
    """Read some variables of a file.

    Args:
      path: of the file.
      names: of the variables, all of which must be there.
      advice: what to do with a file that cannot be read.
      at_most: bytes of all variables of the file, unpacked.
      options: of `scipy.io.loadmat`.
    """
    import scipy.io

    kind = "a file of MATLAB"
    with reading.opened(path, kind, advice) as file:
        plain = _unpacked(file, at_most)
    with reading.guard(path, kind, advice, library=True):
        for name, shape, _ in scipy.io.whosmat(plain):
            if math.prod(shape) > plain.getbuffer().nbytes:
                raise ValueError(f"{name} would have the shape {shape}")
        plain.seek(0)
        found: dict[str, Any] = scipy.io.loadmat(plain, variable_names=names, **options)
    if missing := [name for name in names if name not in found]:
        raise reading.Unreadable(f"{path} has no variable {missing[0]}: {advice}.")
    return found


def _unpacked(file: BinaryIO, at_most: int) -> io.BytesIO:
    """Copy a file with its compressed variables unpacked, which are valid so as well."""
    plain = io.BytesIO()
    header = file.read(_HEADER)
    order = {b"IM": "<", b"MI": ">"}.get(header[-2:])
    if len(header) < _HEADER or order is None:
        raise ValueError("it does not begin like one of version 5")
    plain.write(header)
    while tag := file.read(8):
        if len(tag) < 8:
            raise EOFError("it ends within a variable")
        kind, size = struct.unpack(f"{order}II", tag)
        left = at_most - plain.tell()
        content = file.read(min(size, left))
        if len(content) < size:
            raise EOFError(f"a variable has {len(content):,} bytes of {size:,}")
        if kind == _COMPRESSED:
            stream = zlib.decompressobj()
            content = stream.decompress(content, left)
            if not stream.eof and len(content) < left:
                raise EOFError("a variable is cut short")
        else:
            plain.write(tag)
        plain.write(content)
        if plain.tell() >= at_most:
            raise ValueError(f"unpacked it has {at_most:,} bytes or more")
    plain.seek(0)
    return plain
