"""Readers of files of others, with one guard for their errors and bounds on their memory.

Nothing is ever unpickled. A file that cannot be read raises `Unreadable` with one sentence that
names the file, whatever the library raised.
"""

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from calib_jax.core.arrays import as_array

PathLike = str | os.PathLike[str]

ANEW = "get this file anew"
# An archive of more bytes than this may expand so many times; zeros expand 1,000 times.
_EXPANDED, _MOST_TIMES = 1 << 30, 200
_BUGS = (TypeError, AttributeError, AssertionError, NameError, ImportError)  # no file causes them


class Unreadable(ValueError):
    """A file is damaged or of the wrong kind; the message is one sentence that names the file."""


@contextlib.contextmanager
def guard(
    path: PathLike, kind: str, advice: str = ANEW, *, library: bool = False
) -> Iterator[None]:
    """Convert the exceptions of a reader of a damaged or unsuitable file to `Unreadable`.

    TypeError, AttributeError, AssertionError and NameError indicate bugs and pass unchanged, as do
    `Unreadable` and ImportError. A missing file raises FileNotFoundError.

    Args:
      path: the path of the file, for the message.
      kind: the expected kind of file, with its article: "a file of weights".
      advice: what the user should do.
      library: convert these errors, too. Use it only around calls of a library (Pillow, TFDS) whose
        parsers raise almost anything, and around as little other code as possible.

    >>> with guard("a.json", "a configuration", "write it anew"):
    ...     json.loads("{")
    Traceback (most recent call last):
    calib_jax.core.files.reading.Unreadable: a.json cannot be read as a configuration: Expecting ...
    """
    try:
        yield
    except FileNotFoundError as error:
        if error.errno is None:  # raised by this library, with its own message
            raise
        raise FileNotFoundError(f"there is no file {path}.") from error
    except Exception as error:
        if isinstance(error, (Unreadable, ImportError) if library else (Unreadable, *_BUGS)):
            raise
        raise Unreadable(f"{path} cannot be read as {kind}: {_reason(error)}; {advice}.") from error


def _reason(error: BaseException) -> str:
    """Summarise an exception in a few words, for the middle of a sentence."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not in UTF-8"
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    if "allow_pickle" in text or "Python objects" in text:
        return "it is damaged, or holds pickled objects, which are never read"
    # The text may quote the file, whose control characters must not reach a terminal.
    text = "".join(c if c.isprintable() else "?" for c in " ".join(text.split())).rstrip(".:; ")
    return text[:200] + "..." * (len(text) > 200) or f"the reader raised {type(error).__name__}"


@contextlib.contextmanager
def opened(path: PathLike, kind: str, advice: str = ANEW) -> Iterator[BinaryIO]:
    """Open a regular file under the guard; raise an error for a folder, a pipe or a device."""
    with guard(path, kind, advice):
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError("it is a folder" if os.path.isdir(path) else "it is no plain file")
        with open(path, "rb") as file:
            yield file


def content(path: PathLike, kind: str, advice: str = ANEW, *, at_most: float = 1 << 30) -> bytes:
    """Read a whole file of at most `at_most` bytes."""
    with opened(path, kind, advice) as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most:
            raise ValueError(f"it has {size:,} bytes, and at most {at_most:,} are read")
        return file.read(size)


def text(path: PathLike, kind: str, advice: str = ANEW, *, at_most: float = 1 << 26) -> str:
    """Read a UTF-8 text file of at most `at_most` bytes."""
    with guard(path, kind, advice):
        return content(path, kind, advice, at_most=at_most).decode("utf-8-sig")


def json_mapping(
    path: PathLike, kind: str, advice: str = ANEW, *, at_most: int = 1 << 24
) -> dict[str, Any]:
    """Read a JSON file of at most `at_most` bytes that holds a mapping."""
    with guard(path, kind, advice):
        value = json.loads(text(path, kind, advice, at_most=at_most))
        if not isinstance(value, dict):
            raise ValueError(f"it holds no mapping, but {str(value)[:40]!r}")
        return value


class Npz:
    """The arrays of an `.npz` file, each read when it is accessed by name.

    Attributes:
      names: the names of the arrays.
    """

    def __init__(self, file: BinaryIO) -> None:
        archive(file)
        self._stored = np.lib.npyio.NpzFile(file, allow_pickle=False)
        self.names = tuple(self._stored.files)

    def __getitem__(self, name: str) -> np.ndarray:
        """Read an array."""
        if name not in self.names:
            raise ValueError(f"it has no array {name!r}; it has {', '.join(self.names) or 'none'}")
        array = self._stored[name]
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is no array")
        return np.asarray(as_array(array))


def archive(file: BinaryIO) -> zipfile.ZipFile:
    """Open a zip archive; raise an error for one that would fill the memory, or was made to."""
    opened_archive = zipfile.ZipFile(file)
    size = sum(member.file_size for member in opened_archive.infolist())
    stored = sum(member.compress_size for member in opened_archive.infolist())
    if size > min(free_memory(), max(_EXPANDED, _MOST_TIMES * stored)):
        raise ValueError(f"its {stored:,} bytes expand to {size:,}, more than are read")
    return opened_archive


def free_memory() -> float:
    """Return the bytes of memory of this machine; infinite if they are unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return float("inf")


@contextlib.contextmanager
def npz(path: PathLike, kind: str, advice: str = ANEW) -> Iterator[Npz]:
    """Open an `.npz` file under the guard, which also covers reading its arrays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", big_endian=np.arange(3, dtype=">i4"))
    ...     with npz(f"{folder}/a.npz", "a file of arrays") as arrays:
    ...         arrays.names, arrays["big_endian"]
    (('big_endian',), array([0, 1, 2], dtype=int32))
    """
    with opened(path, kind, advice) as file:
        yield Npz(file)


def npy(path: PathLike, kind: str, advice: str = ANEW) -> np.ndarray:
    """Read an `.npy` file, memory-mapped if its dtype needs no conversion."""
    with opened(path, kind, advice):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it holds several arrays")
        return np.asarray(as_array(array))
