"""Read or unpack archives that the user downloaded, completely or not at all.

Archives are untrusted. A name that leads out of the folder, a link or a device raises an error, and
so does exceeding a limit on bytes, files or headers. A truncated archive leaves no files behind.
"""

import functools
import gzip
import hashlib
import lzma
import os
import pathlib
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from typing import Any

from calib_jax.core.files import reading

_CHUNK = 1 << 20
_BLOCK = 512  # bytes of a tar block; a tar file ends with two empty blocks
_HEADERS = 1 << 16  # bytes of a tar file between the content of one member and the next
_PADDING = 1 << 26  # bytes after the last member; writers pad their last record
_DIRECTORY = 1 << 26  # bytes of the table of contents of a zip file
_DEEPEST, _LONGEST_NAME = 32, 1000
_TARS: dict[str, Callable[[Any], Any]] = {
    **{".tar": lambda file: file, ".tar.gz": gzip.open, ".tgz": gzip.open, ".tar.xz": lzma.open}
}
_ADVICE = "download it again"
_File = Any  # an object with `read`; zipfile and tarfile have no common type for it
_Member = tuple[str, bool, int, _File | None]  # name, is it usual, size, content (not of a folder)
_Reader = Callable[..., bytes]  # reads the next bytes; without a number the rest


def read(
    archive: pathlib.Path, names: Collection[str], max_bytes: int = 1 << 30
) -> dict[str, bytes]:
    """Read some files of an archive into memory; raise if any of them is missing.

    Args:
      archive: a .zip, .tar, .tar.gz, .tgz or .tar.xz file.
      names: the files to read, with their folder in the archive.
      max_bytes: limit on the unpacked size of the whole archive.
    """
    files = contents(archive, max_bytes=max_bytes)
    found = {name: content() for name, content in files if name in names}
    if missing := [name for name in names if name not in found]:
        raise reading.Unreadable(
            f"{archive} does not contain {missing[0]}: download the archive of this data set."
        )
    return found


def contents(
    archive: pathlib.Path, *, max_bytes: int = 1 << 30, max_files: int = 100_000
) -> Iterator[tuple[str, _Reader]]:
    """Yield the name of each file of an archive, and a function that reads it at once.

    Args:
      archive: a .zip, .tar, .tar.gz, .tgz or .tar.xz file.
      max_bytes, max_files: limits on the unpacked size and file count of the whole archive.
    """
    for name, read_on in _members(archive, max_bytes, max_files):
        if read_on is not None:
            yield name, read_on


def unpack(
    archive: pathlib.Path, folder: str, *, max_bytes: int = 1 << 34, max_files: int = 500_000
) -> pathlib.Path:
    """Unpack one folder of an archive beside the archive, and return its path.

    The folder has a temporary name until it is complete; on an error it is removed. Other members
    of the archive are not unpacked.

    Args:
      archive: a .zip, .tar, .tar.gz, .tgz or .tar.xz file.
      folder: a top-level folder of the archive; must not exist on disk yet.
      max_bytes, max_files: limits on the unpacked size and file count of the whole archive.
    """
    target = archive.parent / folder
    if target.exists():
        raise FileExistsError(f"{target} already exists: to unpack {archive} again, remove it.")
    # A random name, because two processes may unpack at the same time.
    partial = archive.parent / f"{folder}.{os.urandom(4).hex()}.partial"
    try:
        for name, read_on in _members(archive, max_bytes, max_files):
            if name.partition("/")[0] == folder:
                _put(archive, partial / name, read_on)
        if not (partial / folder).is_dir():
            raise reading.Unreadable(
                f"{archive} does not contain the folder {folder}: download the archive of this data"
                " set."
            )
        (partial / folder).rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def md5(path: pathlib.Path) -> str:
    """Compute the MD5 checksum of a file, which authors of data sets publish."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _put(archive: pathlib.Path, place: pathlib.Path, read_on: _Reader | None) -> None:
    """Write a file, or create a folder if there is no reader."""
    try:
        (place if read_on is None else place.parent).mkdir(parents=True, exist_ok=True)
        if read_on is not None:
            with open(place, "xb") as copy:
                while chunk := read_on(_CHUNK):
                    copy.write(chunk)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise reading.Unreadable(
            f"{archive} contains two members named {place.name!r}: {_ADVICE}."
        ) from error


def _members(
    archive: pathlib.Path, max_bytes: int, max_members: int
) -> Iterator[tuple[str, _Reader | None]]:
    """Yield the name and reader (None for a folder) of every member; raise beyond the limits.

    The guard covers reading but not the caller's writing: a full disk must not be reported as a
    damaged archive.
    """
    kinds = (".zip", *_TARS)
    kind = next((end for end in kinds if archive.name.endswith(end)), None)
    if kind is None:
        raise reading.Unreadable(
            f"{archive} has another format than {', '.join(kinds)}: unpack it by hand."
        )
    what = f"a whole {kind} archive"

    def read_on(file: _File, size: int = -1) -> bytes:
        with reading.guard(archive, what, _ADVICE):
            content: bytes = file.read(size)
        return content

    with reading.opened(archive, what, _ADVICE) as opened:
        # gzip and lzma read the bytes after the last member, too.
        if os.fstat(opened.fileno()).st_size > max_bytes + _PADDING:
            raise ValueError(f"it is larger than the {max_bytes:,} bytes that it may hold")
        members = _of_zip(opened) if kind == ".zip" else _of_tar(_TARS[kind](opened))
        for count, (name, usual, size, file) in enumerate(members, 1):
            name = _safe(archive, name, usual)
            max_bytes -= size  # both libraries stop reading at the announced size
            if max_bytes < 0 or count > max_members:
                raise reading.Unreadable(
                    f"{archive} is larger than this data set can be, at its member {name}: download"
                    " it again."
                )
            yield name, None if file is None else functools.partial(read_on, file)


def _of_zip(file: _File) -> Iterator[_Member]:
    with zipfile.ZipFile(reading.Bounded(file, _DIRECTORY)) as opened:
        for member in opened.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 if not created on Unix
            usual = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            if member.compress_type not in reading.METHODS:
                method = member.compress_type
                raise ValueError(f"{member.filename} is compressed by method {method}")
            content = None if member.is_dir() else opened.open(member)
            yield member.filename, usual, 0 if content is None else member.file_size, content


def _of_tar(file: _File) -> Iterator[_Member]:
    stream = _Stream(file)
    # Stream mode decompresses every byte only once.
    with tarfile.open(fileobj=stream, mode="r|") as opened:  # type: ignore[call-overload]
        while (member := opened.next()) is not None:
            opened.members.clear()  # tarfile would keep every member in memory
            stream.bound = member.offset_data + member.size + _HEADERS
            plain = member.isreg() and not member.issparse() and member.size >= 0
            content = opened.extractfile(member) if plain else None
            yield member.name, plain or member.isdir(), member.size, content
        # tarfile does not detect a file truncated between two members.
        stream.bound = stream.position + _PADDING
        while stream.read(_CHUNK):
            pass
        if stream.last != bytes(2 * _BLOCK):
            raise tarfile.ReadError("its end is missing")


class _Stream:
    """A file object for tarfile that limits the size of headers and records the last blocks.

    Attributes:
      position: number of bytes read.
      bound: position by which the next member must begin.
      last: the last two blocks read.
    """

    def __init__(self, file: _File) -> None:
        self._file = file
        self.position = 0
        self.bound = _HEADERS
        self.last = b""

    def read(self, size: int) -> bytes:
        """Read the next bytes."""
        content = self._file.read(size)
        self.position += len(content)
        if self.position > self.bound:
            raise ValueError(f"it has a header of more than {_HEADERS:,} bytes")
        self.last = (self.last + content[-2 * _BLOCK :])[-2 * _BLOCK :]
        return content


def _safe(archive: pathlib.Path, name: str, usual: bool) -> str:
    """Raise if a member leads out of the folder or is neither a file nor a folder."""
    parts = name.removesuffix("/").split("/")
    if not usual or name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0]:
        raise reading.Unreadable(
            f"{archive} contains {name[:_LONGEST_NAME]!r}, which is not a plain file inside its"
            " folder: nothing was unpacked."
        )
    if len(name) > _LONGEST_NAME or len(parts) > _DEEPEST or not name.isprintable():
        raise reading.Unreadable(
            f"{archive} contains {name[:40]!r}..., an unusual name of {len(name)} characters and"
            f" {len(parts)} levels: nothing was unpacked."
        )
    return "/".join(part for part in parts if part not in ("", "."))
