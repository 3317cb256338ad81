"""Columns of Parquet files, read by pyarrow (`pip install 'calib_jax[parquet]'`)."""

import contextlib
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from calib_jax.core.files import reading
from calib_jax.core.files.reading import Unreadable


class Columns:
    """The columns of a file, each read when it is accessed by name.

    Attributes:
      names: the names of the columns.
      have_lists: whether a column holds a list in each row, such as the logits of an example.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._schema = file.schema_arrow
        self.names: list[str] = self._schema.names
        self.have_lists = any(_is_list(field.type) for field in self._schema)

    def _column(self, name: str) -> Any:
        """Read a column; one in a damaged file can have fewer values than the file has rows."""
        column, rows = self._file.read(columns=[name]).column(0), self._file.metadata.num_rows
        if len(column) != rows:
            raise ValueError(f"{name} has {len(column):,} of {rows:,} values")
        return column

    def values(self, name: str) -> list[Any]:
        """Read a column as Python values."""
        return self._column(name).to_pylist()

    def cells(self, name: str) -> list[Any] | np.ndarray:
        """Read a column as Python values, or faster as an array if all of them are floats."""
        column = self._column(name)
        if column.null_count or not _is_floating(column.type):
            return self.values(name)
        return np.asarray(column.to_numpy(), np.float64)

    def __getitem__(self, name: str) -> np.ndarray:
        """Read a column as an array: `[rows, length]` if it holds lists of one length."""
        column = self._column(name).combine_chunks()
        if column.null_count:
            raise ValueError(f"{name} has {column.null_count:,} empty cells")
        if not _is_list(column.type):
            array = np.asarray(column.to_numpy(zero_copy_only=False))
            return array.astype(str) if array.dtype == object else array
        lengths = _lengths(column)
        if np.any(lengths != lengths[:1]):
            raise ValueError(f"{name} has lists of different lengths")
        flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
        return flat.reshape(len(column), -1)


def _lengths(lists: Any) -> np.ndarray:
    import pyarrow.compute

    return np.asarray(pyarrow.compute.list_value_length(lists))


def _is_list(kind: Any) -> bool:
    import pyarrow

    types = pyarrow.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _is_floating(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_floating(kind))


@contextlib.contextmanager
def opened(path: pathlib.Path, kind: str) -> Iterator[Columns]:
    """Open a Parquet file under the guard of `reading`, which also covers reading its columns."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            f"{path} needs pyarrow: python -m pip install 'calib_jax[parquet]'"
        ) from error
    with reading.opened(path, kind) as file, reading.guard(path, kind, library=True):
        columns = parquet.ParquetFile(file, page_checksum_verification=True)
        names = columns.schema_arrow.names
        if again := next((name for name in names if names.count(name) > 1), None):
            raise Unreadable(f"{path} has two columns {again!r}: keep one of them.")
        sizes = (
            columns.metadata.row_group(k).total_byte_size for k in range(columns.num_row_groups)
        )
        if math.fsum(sizes) > reading.free_memory():
            raise MemoryError
        yield Columns(columns)
