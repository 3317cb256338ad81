"""Files of named arrays, `.npz` and `.safetensors`. Reading a file never executes its content."""

import contextlib
import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import jax.numpy as jnp
import numpy as np

from calib_jax.core import machine
from calib_jax.core.files import reading, writing

Arrays: TypeAlias = dict[str, np.ndarray]

# Files are little-endian on every machine.
_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": jnp.bfloat16},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1"},
}
_DTYPES = {name: np.dtype(kind) for name, kind in _DTYPES.items()}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# The limit of the format, which prevents a damaged length from requesting too much memory.
_LONGEST_HEADER = 100_000_000
_LENGTH_BYTES = 8
_MOST_AXES = 64  # NumPy's limit
_METADATA = "__metadata__"
_KINDS = {".npz": "an .npz file of plain arrays", ".safetensors": "a .safetensors file"}
_ADVICE = "write these weights anew"


def read_weights(path: str | os.PathLike[str]) -> Arrays:
    """Read the arrays of an `.npz` or `.safetensors` file, in this machine's byte order.

    Files of `torch.save` raise an error, since reading them could execute code. Floats of more
    than 64 bits in an `.npz` file become float64.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_weights(f"{folder}/a.safetensors", {"fc.bias": np.zeros(10, np.float32)})
    ...     read_weights(f"{folder}/a.safetensors")["fc.bias"].shape
    (10,)
    """
    path = Path(path)
    if path.suffix == ".npz":
        with reading.npz(path, _KINDS[".npz"], _ADVICE) as stored:
            return {name: stored[name] for name in stored.names}
    if path.suffix == ".safetensors":
        with reading.opened(path, _KINDS[".safetensors"], _ADVICE) as file:
            return _read_safetensors(file)
    raise _wrong_suffix(path)


def write_weights(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write named arrays as `.npz` or `.safetensors`, depending on the suffix of the path.

    An existing file is replaced only after all arrays are written. Only `.safetensors` supports
    bfloat16.
    """
    path = Path(path)
    writers = {".npz": _write_npz, ".safetensors": _write_safetensors}
    if path.suffix not in writers:
        raise _wrong_suffix(path)
    host_arrays = {name: np.asarray(array) for name, array in arrays.items()}
    with writing.replacing(path) as part:
        writers[path.suffix](part, host_arrays)


def _wrong_suffix(path: Path) -> ValueError:
    if path.suffix in {".pt", ".pth"} or (path.is_file() and _is_pickled(path)):
        return ValueError(
            f"{path} is a pickle of PyTorch, and reading it could run code: in PyTorch, write"
            " numpy.savez('weights.npz', **{k: v.cpu().numpy() for k, v in"
            f" torch.load({path.name!r}, weights_only=True).items()}}), or use"
            " safetensors.torch.save_file."
        )
    return ValueError(f"{path} is neither .npz nor .safetensors by its name.")


def _is_pickled(path: Path) -> bool:
    """Check for the content of a torch.save file: a pickle, or a zip that contains one."""
    with reading.opened(path, "a file of weights", _ADVICE) as file:
        if file.read(1) == b"\x80":
            return True
        with contextlib.suppress(Exception):  # raised if the file is not a zip
            return any(name.endswith("data.pkl") for name in reading.Npz(file).names)
    return False


def _write_npz(path: Path, arrays: Arrays) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            if array.dtype.kind not in "biufc":
                advice = ": use .safetensors" if array.dtype.kind == "V" else ", and is no number"
                raise ValueError(f"{name} is {array.dtype}, which .npz has no name for{advice}.")
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _read_safetensors(file: BinaryIO) -> Arrays:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if size < _LENGTH_BYTES or not 2 <= length <= _LONGEST_HEADER:
        raise ValueError(f"its header would have {length:,} bytes of at most {_LONGEST_HEADER:,}")
    start = _LENGTH_BYTES + length
    if start > size:
        raise ValueError(f"its header would have {length:,} bytes, and the file has {size:,}")
    try:
        header = json.loads(file.read(length), object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its header cannot be read: {reading.reason(error)}") from error
    spans = _checked_spans(header, size - start)
    if size > machine.free_memory():
        raise ValueError(f"it has {size:,} bytes, and so much memory is not free")
    arrays = {}
    for name, (dtype, shape, begin, end) in spans.items():
        file.seek(start + begin)
        array = np.frombuffer(file.read(end - begin), dtype).reshape(shape)
        arrays[name] = array.astype(dtype.newbyteorder("="))
    return arrays


def _checked_spans(header: Any, size: int) -> dict[str, tuple[np.dtype, list[int], int, int]]:
    """Return dtype, shape, begin and end of each array; check that they cover all bytes."""
    if not isinstance(header, dict):
        raise ValueError("its header is no mapping")
    header.pop(_METADATA, None)
    spans = {}
    for name, entry in header.items():
        if not _is_entry(entry):
            raise ValueError(f"{name} is described as {str(entry)[:80]}")
        dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        needs = math.prod(shape) * dtype.itemsize
        if end - begin != needs or not 0 <= begin <= end <= size:
            raise ValueError(
                f"{name} of shape {tuple(shape)} and dtype {entry['dtype']} needs {needs:,} bytes,"
                f" and has {begin:,} to {end:,} of {size:,}"
            )
        spans[name] = (dtype, shape, begin, end)
    covered = 0
    for name, (_, _, begin, end) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if begin != covered:
            raise ValueError(
                f"{name} begins at byte {begin:,}, where the one before ends at {covered:,}"
            )
        covered = end
    if covered != size:
        raise ValueError(f"{size - covered:,} bytes at its end belong to no array")
    return spans


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands there twice")
    return members


def _is_entry(entry: Any) -> bool:
    # Bound the shape, since the product of a million long integers takes hours.
    def whole(numbers: Any) -> bool:
        return (
            isinstance(numbers, list)
            and len(numbers) <= _MOST_AXES
            and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)
        )

    return (
        isinstance(entry, dict)
        and isinstance(entry.get("dtype"), str)
        and entry["dtype"] in _DTYPES
        and whole(entry.get("shape"))
        and whole(entry.get("data_offsets"))
        and len(entry["data_offsets"]) == 2
    )


def _write_safetensors(path: Path, arrays: Arrays) -> None:
    header: dict[str, Any] = {}
    position = 0
    for name, array in arrays.items():
        kind = _NAMES.get(array.dtype.newbyteorder("<"))
        if kind is None or name == _METADATA:
            raise ValueError(f".safetensors has no place for {name} of dtype {array.dtype}.")
        end = position + array.nbytes
        shape = list(array.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)  # arrays begin at a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for array in arrays.values():
            file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
