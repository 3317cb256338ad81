"""Readers of untrusted files, with one guard for their errors and bounds on their memory.

Every file is validated before use: the header is read before the data, and the sizes in the header
are compared with the file and with the free memory. Nothing is ever unpickled. A file that cannot
be read raises `Unreadable` with one sentence that names the file, whatever the library raised.
"""

import contextlib
import json
import lzma
import math
import os
import stat
import struct
import sys
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from calib_jax.core import machine

PathLike = str | os.PathLike[str]

ANEW = "get this file anew"
_MEGABYTE = 1 << 20
_LONGEST = 200  # characters of a library's error message
_HEADER = 1 << 16  # bytes of the header of an array; NumPy itself accepts 10,000
# Other methods decompress whole blocks of unbounded size; NumPy does not write them.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# OverflowError is an ArithmeticError, KeyError a LookupError; NotImplementedError (an unknown
# compression) and RecursionError (nested brackets) are RuntimeErrors, as is an encrypted member.
_DAMAGE = (
    *(OSError, ValueError, EOFError, ArithmeticError, LookupError, MemoryError, RuntimeError),
    *(zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, struct.error),
)


class Unreadable(ValueError):
    """A file is damaged or of the wrong kind; the message is one sentence that names the file."""


@contextlib.contextmanager
def guard(
    path: PathLike, kind: str, advice: str = ANEW, *, library: bool = False
) -> Iterator[None]:
    """Convert the exceptions of a reader of a damaged or unsuitable file to `Unreadable`.

    The guard converts OSError, ValueError, EOFError, ArithmeticError, LookupError, MemoryError and
    RuntimeError with their subclasses, and the errors of zlib, lzma, zipfile, tarfile and struct.
    The original exception becomes the cause. TypeError, AttributeError, AssertionError and others
    indicate bugs and pass unchanged, as do `Unreadable` and ImportError. A missing file raises
    FileNotFoundError.

    Args:
      path: the path of the file, for the message.
      kind: the expected kind of file, with its article: "a file of weights".
      advice: what the user should do.
      library: convert every Exception. Use it only around calls of a library (Pillow, TFDS) whose
        parsers raise almost anything, and around as little other code as possible.

    >>> with guard("a.json", "a configuration", "write it anew"):
    ...     json.loads("{")
    Traceback (most recent call last):
    calib_jax.core.files.reading.Unreadable: a.json cannot be read as a configuration: Expecting ...
    """
    taken = (Exception,) if library else _DAMAGE
    try:
        yield
    except (Unreadable, ImportError):
        raise
    except FileNotFoundError as error:
        if error.errno is None:  # raised by this library, with its own message
            raise
        raise FileNotFoundError(f"there is no file {path}.") from error
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"{path} cannot be read as {kind}: it is not in UTF-8; save the file in this encoding."
        ) from error
    except taken as error:
        raise Unreadable(f"{path} cannot be read as {kind}: {reason(error)}; {advice}.") from error


def reason(error: BaseException) -> str:
    """Summarise an exception in a few words, for the middle of a sentence."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    if "allow_pickle" in text:  # omit the library's advice to allow pickle
        return "it is damaged, or holds pickled objects, which are never read"
    # The text may quote the file, whose control characters must not reach a terminal.
    text = "".join(c if c.isprintable() else "?" for c in " ".join(text.split())).rstrip(".:; ")
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "..."
    return text or f"the reader raised {type(error).__name__}"


@contextlib.contextmanager
def opened(path: PathLike, kind: str, advice: str = ANEW) -> Iterator[BinaryIO]:
    """Open a regular file under the guard; raise an error for a folder, a pipe or a device."""
    with guard(path, kind, advice):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("it is a folder" if stat.S_ISDIR(mode) else "it is no plain file")
        with open(path, "rb") as file:
            yield file


def content(path: PathLike, kind: str, advice: str = ANEW, *, at_most: int = 1 << 30) -> bytes:
    """Read a whole file of at most `at_most` bytes."""
    with opened(path, kind, advice) as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most:
            raise ValueError(f"it has {size:,} bytes, and at most {at_most:,} are read")
        return file.read(size)


def text(path: PathLike, kind: str, advice: str = ANEW, *, at_most: int = 1 << 26) -> str:
    """Read a UTF-8 text file of at most `at_most` bytes."""
    with guard(path, kind, advice):
        return content(path, kind, advice, at_most=at_most).decode("utf-8-sig")


def json_value(path: PathLike, kind: str, advice: str = ANEW, *, at_most: int = 1 << 24) -> Any:
    """Read a JSON file of at most `at_most` bytes; the caller validates the value."""
    with guard(path, kind, advice):
        return json.loads(text(path, kind, advice, at_most=at_most))


def json_mapping(
    path: PathLike, kind: str, advice: str = ANEW, *, at_most: int = 1 << 24
) -> dict[str, Any]:
    """Read a JSON file that holds a mapping."""
    with guard(path, kind, advice):
        value = json_value(path, kind, advice, at_most=at_most)
        if not isinstance(value, dict):
            raise ValueError(f"it holds no mapping, but {str(value)[:40]!r}")
        return value


class Npz:
    """The arrays of an `.npz` file, each read only when it is accessed by name.

    Before decompression, an array's header is compared with the size of its member and with the
    byte limit. Numbers are converted to native byte order, and longdouble to float64.

    Attributes:
      names: the names of the arrays.
    """

    def __init__(self, file: BinaryIO, at_most: float | None = None) -> None:
        self._archive = zipfile.ZipFile(Bounded(file, 16 * _MEGABYTE))
        self._left = _bound(at_most)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in self._archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                raise ValueError(f"it has two arrays {name!r}")
            self._members[name] = member

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays."""
        return tuple(self._members)

    def __getitem__(self, name: str) -> np.ndarray:
        """Read an array."""
        if name not in self._members:
            raise ValueError(f"it has no array {name!r}; it has {', '.join(self.names) or 'none'}")
        member = self._members[name]
        if member.compress_type not in METHODS:
            raise ValueError(f"{name} is compressed by method {member.compress_type}, not deflate")
        with self._archive.open(member) as file:
            array = _Described(name, file).read(member.file_size, self._left)
            if file.read(1):  # this read also makes zipfile verify the checksum
                raise ValueError(f"{name} is followed by bytes that belong to no array")
        self._left -= array.nbytes
        return array


@contextlib.contextmanager
def npz(
    path: PathLike, kind: str, advice: str = ANEW, *, at_most: float | None = None
) -> Iterator[Npz]:
    """Open an `.npz` file under the guard, which also covers reading its arrays.

    Args:
      path, kind, advice: see `guard`.
      at_most: bytes of all arrays together; None is the free memory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", big_endian=np.arange(3, dtype=">i4"))
    ...     with npz(f"{folder}/a.npz", "a file of arrays") as arrays:
    ...         arrays.names, arrays["big_endian"]
    (('big_endian',), array([0, 1, 2], dtype=int32))
    """
    with opened(path, kind, advice) as file:
        yield Npz(file, at_most)


def npy(
    path: PathLike, kind: str, advice: str = ANEW, *, at_most: float | None = None
) -> np.ndarray:
    """Read an `.npy` file, memory-mapped if its dtype needs no conversion.

    Args:
      path, kind, advice: see `guard`.
      at_most: bytes of an array that cannot be mapped; None is the free memory.
    """
    with opened(path, kind, advice) as file:
        described = _Described("the array", file)
        start, size = file.tell(), os.fstat(file.fileno()).st_size
        described.check(size, math.inf)
        if not described.size:
            return np.empty(described.shape, described.dtype)
        order = "F" if described.fortran else "C"
        mapped = np.memmap(file, described.dtype, "r", start, described.shape, order)  # type: ignore[call-overload]
        if _usual_dtype(described.dtype) != described.dtype:
            described.check(size, _bound(at_most))
        return _usual(mapped)


class Bounded:
    """A file wrapper that limits the bytes per read, for libraries that trust the file's header.

    Args:
      file: the file to read.
      at_most: bytes per call of `read`.
    """

    def __init__(self, file: Any, at_most: int) -> None:
        self._file = file
        self._at_most = at_most

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, or raise an error if they exceed the limit."""
        value: bytes = self._file.read(
            self._at_most + 1 if size < 0 else size * (size <= self._at_most)
        )
        if max(size, len(value)) > self._at_most:
            raise ValueError(f"a header would have more than {self._at_most:,} bytes")
        return value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Described:
    """The parsed header of an array; the file is then positioned at the data."""

    def __init__(self, name: str, file: Any) -> None:
        self.name = name
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        self._file = file
        head = Bounded(file, _HEADER)
        try:
            # NumPy parses Python literals here, which may warn and raise almost anything.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                version = np.lib.format.read_magic(head)
                if version not in readers:
                    raise ValueError(f"its version is {version}")
                self.shape, self.fortran, self.dtype = readers[version](head)
        except Exception as error:
            raise ValueError(f"{name} is no whole array: {reason(error)}") from error
        self.start = file.tell()

    @property
    def size(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check(self, in_file: int, at_most: float) -> None:
        """Validate that the dtype is numbers or text and that the size fits file and limit."""
        what = f"{self.name} of shape {self.shape} and dtype {self.dtype}"
        if self.dtype.hasobject:
            raise ValueError(
                f"{self.name} holds pickled objects, which are never read: save numbers by"
                " .astype(float), text by .astype(str)"
            )
        if self.dtype.kind not in "biufcSU" or not self.dtype.itemsize:
            raise ValueError(f"{what} is neither numbers nor text")
        if min(self.shape, default=0) < 0 or self.start + self.size != in_file:
            raise ValueError(f"{what} needs {self.size:,} bytes, and has {in_file - self.start:,}")
        if self.size > at_most:
            raise ValueError(f"{what} needs {self.size:,} bytes, and {at_most:,.0f} may be read")

    def read(self, in_file: int, at_most: float) -> np.ndarray:
        """Validate the header and read the array."""
        self.check(in_file, at_most)
        array = np.empty(math.prod(self.shape), self.dtype)
        raw = array.view(np.uint8)
        for start in range(0, self.size, _MEGABYTE):
            part = self._file.read(min(_MEGABYTE, self.size - start))
            raw[start : start + len(part)] = np.frombuffer(part, np.uint8)
            if start + len(part) < min(start + _MEGABYTE, self.size):
                raise EOFError(f"{self.name} ends too early")
        return _usual(array.reshape(self.shape, order="F" if self.fortran else "C"))


def _bound(at_most: float | None) -> float:
    return machine.free_memory() if at_most is None else at_most


def _usual_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in native byte order, with floats reduced to at most 64 bits."""
    widest = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(dtype.kind)
    if widest is not None and dtype.itemsize > widest.itemsize:
        return widest
    return dtype.newbyteorder("=")


def _usual(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "U" and array.size:
        points = np.ascontiguousarray(array).reshape(-1).view(f"{array.dtype.str[0]}u4")
        if points.max() > sys.maxunicode:
            raise ValueError("its text has characters that do not exist")
    with np.errstate(over="ignore"):  # values beyond float64 become infinite
        return array.astype(_usual_dtype(array.dtype), copy=False)
