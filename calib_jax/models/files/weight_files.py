"""Files of named arrays, `.npz` and `.safetensors`. Reading a file never executes its content."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from calib_jax.core.files import reading, writing

Arrays: TypeAlias = dict[str, np.ndarray]

# NumPy's dtype of each dtype of safetensors.
_DTYPES = {
    **{"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16},
    **{"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8},
    **{"U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_},
}
_DTYPES = {name: np.dtype(kind).newbyteorder("<") for name, kind in _DTYPES.items()}
_ADVICE = "write these weights anew"
# The kinds of dtypes that a file can hold; V is bfloat16.
_KINDS = {".npz": "biufc", ".safetensors": "biufV"}


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
        with reading.npz(path, "an .npz file of plain arrays", _ADVICE) as stored:
            return {name: stored[name] for name in stored.names}
    if path.suffix == ".safetensors":
        import safetensors

        # The package checks that the header describes all bytes of the file; its errors derive
        # from Exception alone.
        with reading.guard(path, "a .safetensors file", _ADVICE, library=True):
            stored = safetensors.deserialize(path.read_bytes())
            return {name: _array(entry) for name, entry in stored}
    raise _wrong_suffix(path)


def _array(entry: Mapping[str, Any]) -> np.ndarray:
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"it has the dtype {entry['dtype']}, which is not supported")
    dtype = _DTYPES[entry["dtype"]]
    array = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return array.astype(dtype.newbyteorder("="))


def write_weights(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write named arrays as `.npz` or `.safetensors`, depending on the suffix of the path.

    An existing file is replaced only after all arrays are written. Only `.safetensors` supports
    bfloat16.
    """
    path = Path(path)
    if path.suffix not in _KINDS:
        raise _wrong_suffix(path)
    # Contiguous copies: safetensors writes memory as it lies.
    host_arrays = {name: np.array(array, order="C") for name, array in arrays.items()}
    for name, array in host_arrays.items():
        if array.dtype.kind not in _KINDS[path.suffix]:
            raise ValueError(f"{name} is {array.dtype}, which {path.suffix} cannot hold.")
    with writing.replacing(path) as part:
        if path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            # Older releases of transformers refuse a file that names no format.
            save_file(host_arrays, part, metadata={"format": "pt"})
            return
        with zipfile.ZipFile(part, "w") as file:
            for name, array in host_arrays.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)


def _wrong_suffix(path: Path) -> ValueError:
    return ValueError(
        f"{path} is neither .npz nor .safetensors by its name. A pickle of PyTorch could run code"
        " when it is read: in PyTorch, write numpy.savez('weights.npz', **{k: v.cpu().numpy() for"
        f" k, v in torch.load({path.name!r}, weights_only=True).items()}}), or use"
        " safetensors.torch.save_file."
    )
