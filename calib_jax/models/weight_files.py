"""Files of named arrays: NumPy's `.npz`, and `.safetensors`. Nothing in them is ever executed."""

import json
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

__all__ = ["read_weights", "write_weights"]

Arrays: TypeAlias = dict[str, np.ndarray]

# Bytes are little-endian in the file, whatever the machine.
_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": jnp.bfloat16},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1"},
}
_DTYPES = {name: np.dtype(kind) for name, kind in _DTYPES.items()}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# The format's own limit, so that a damaged length asks for no memory.
_LONGEST_HEADER = 100_000_000
_LENGTH_BYTES = 8
_METADATA = "__metadata__"


def read_weights(path: str | os.PathLike[str]) -> Arrays:
    """Read the arrays of an `.npz` or `.safetensors` file.

    A file of `torch.save` is refused, since reading it would run code that is in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_weights(f"{folder}/a.safetensors", {"fc.bias": np.zeros(10, np.float32)})
    ...     read_weights(f"{folder}/a.safetensors")["fc.bias"].shape
    (10,)
    """
    path = Path(path)
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    raise _wrong_suffix(path)


def write_weights(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays by their names, as `.npz` or `.safetensors`, whichever the path ends with.

    What stood there is replaced only when all is written. bfloat16 is for `.safetensors` alone.
    """
    path = Path(path)
    writers = {".npz": _write_npz, ".safetensors": _write_safetensors}
    if path.suffix not in writers:
        raise _wrong_suffix(path)
    found = {name: np.asarray(array) for name, array in arrays.items()}
    part = path.with_name(path.name + ".part")
    try:
        writers[path.suffix](part, found)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


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
    """Tell what torch.save wrote, which may have any name: a pickle, alone or in a zip."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            return any(name.endswith("data.pkl") for name in file.namelist())
    with path.open("rb") as file:
        return file.read(1) == b"\x80"


def _read_npz(path: Path) -> Arrays:
    try:
        # Opened here, since np.load leaves a damaged file open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            return dict(file)
    except FileNotFoundError:
        raise
    # What NumPy and zipfile raise for other bytes is of many kinds.
    except (ValueError, OSError, EOFError, TypeError, KeyError, zipfile.BadZipFile) as error:
        # NumPy's advice about pickles is not to be passed on.
        why = "it is damaged, or holds pickles" if "pickle" in str(error) else error
        raise ValueError(f"{path} is no .npz file of plain arrays: {why}.") from None


def _write_npz(path: Path, arrays: Arrays) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            if array.dtype.kind not in "biufc":
                raise ValueError(
                    f"{name} is {array.dtype}, which .npz has no name for: use .safetensors."
                )
            with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _read_safetensors(path: Path) -> Arrays:
    data = path.read_bytes()

    def refuse(what: str) -> Any:
        raise ValueError(f"{path} is no .safetensors file: {what}.")

    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or not 2 <= length <= _LONGEST_HEADER:
        refuse(f"its header would have {length:,} bytes of at most {_LONGEST_HEADER:,}")
    start = _LENGTH_BYTES + length
    if start > len(data):
        refuse(f"its header would have {length:,} bytes, and the file has {len(data):,}")
    try:
        header = json.loads(data[_LENGTH_BYTES:start], object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        refuse(f"its header cannot be read: {error}")
    if not isinstance(header, dict):
        refuse("its header is no mapping")
    header.pop(_METADATA, None)
    arrays = {}
    spans = {}
    for name, entry in header.items():
        if not _is_entry(entry):
            refuse(f"{name} is described as {str(entry)[:80]}")
        dtype, shape, (begin, end) = _DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        size = math.prod(shape) * dtype.itemsize
        if end - begin != size or not 0 <= begin <= end <= len(data) - start:
            refuse(
                f"{name} of shape {tuple(shape)} and dtype {entry['dtype']} needs {size:,} bytes,"
                f" and has {begin:,} to {end:,} of {len(data) - start:,}"
            )
        count = math.prod(shape)
        array = np.frombuffer(data, dtype, count, start + begin).reshape(shape)
        arrays[name] = array.astype(dtype.newbyteorder("="))
        spans[name] = (begin, end)
    covered = 0
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin != covered:
            refuse(f"{name} begins at byte {begin:,}, where the one before ends at {covered:,}")
        covered = end
    if covered != len(data) - start:
        refuse(f"{len(data) - start - covered:,} bytes at its end belong to no array")
    return arrays


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _is_entry(entry: Any) -> bool:
    def whole(numbers: Any) -> bool:
        return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)

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
