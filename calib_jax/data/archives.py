"""Archives that the user downloaded: read or unpacked whole, or not at all.

Nothing is believed of an archive: a name that leads out of the folder, a link or a device is
refused, so is more than a bound of bytes, of files or of headers, and one that is cut short leaves
nothing.
"""

import contextlib
import functools
import gzip
import hashlib
import os
import pathlib
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Collection, Generator, Iterator
from typing import Any

from calib_jax.core import reading

_CHUNK = 1 << 20
_BLOCK = 512  # of a tar file, which ends with two that are empty
_HEADERS = 1 << 16  # bytes of a tar file between the content of one member and the next
_PADDING = 1 << 26  # bytes behind the last member; writers fill their last record up
_DIRECTORY = 1 << 26  # bytes of the table of contents of a zip file
_DEEPEST, _LONGEST_NAME = 32, 1000
# Other methods are unpacked by the block, however much comes out of it.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ADVICE = "download it again"
_File = Any  # what has `read`, for two libraries that name it differently
_Member = tuple[str, int, _File | None]  # name, size, and what reads it unless it is a folder
_Reader = Callable[[int], bytes]  # reads on; -1 is all


def read(
    archive: pathlib.Path, names: Collection[str], max_bytes: int = 1 << 30
) -> dict[str, bytes]:
    """Read some files of an archive into memory; refuse one that lacks any of them.

    Args:
      archive: a .zip, .tar, .tar.gz or .tgz file.
      names: the files to read, with their folder in the archive.
      max_bytes: how much the whole archive may hold.
    """
    found: dict[str, bytes] = {}
    with contextlib.closing(_members(archive, max_bytes, 100_000)) as members:
        for name, read_on in members:
            if name in names and read_on is not None:
                found[name] = read_on(-1)
    if missing := [name for name in names if name not in found]:
        raise reading.Unreadable(
            f"{archive} has no {missing[0]}: it is another archive than expected."
        )
    return found


def unpack(
    archive: pathlib.Path, folder: str, *, max_bytes: int = 1 << 34, max_files: int = 500_000
) -> pathlib.Path:
    """Unpack the folder that an archive holds beside the archive, and return it.

    It appears when all of it is there: until then it has another name, and on an error that one
    is removed. Whatever else the archive holds is left where it is.

    Args:
      archive: a .zip, .tar, .tar.gz or .tgz file.
      folder: the top folder in it, which may not be there yet.
      max_bytes, max_files: how much the whole archive may hold.
    """
    target = archive.parent / folder
    if target.exists():
        raise FileExistsError(f"{target} is there already: to unpack {archive} anew, remove it.")
    # Named by chance: two processes may do so at once.
    partial = archive.parent / f"{folder}.{os.urandom(4).hex()}.partial"
    try:
        with contextlib.closing(_members(archive, max_bytes, max_files)) as members:
            for name, read_on in members:
                if name.partition("/")[0] == folder:
                    _put(archive, partial / name, read_on)
        if not (partial / folder).is_dir():
            raise reading.Unreadable(
                f"{archive} has no folder {folder}: it is another archive than that."
            )
        (partial / folder).rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def md5(path: pathlib.Path) -> str:
    """Compute the checksum that authors of data sets publish."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _put(archive: pathlib.Path, place: pathlib.Path, read_on: _Reader | None) -> None:
    """Write a file, or make a folder where there is nothing to read."""
    try:
        (place if read_on is None else place.parent).mkdir(parents=True, exist_ok=True)
        if read_on is None:
            return
        copy = open(place, "xb")  # noqa: SIM115
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise reading.Unreadable(
            f"{archive} holds two members of the name {place.name!r}; {_ADVICE}."
        ) from error
    with copy:
        while chunk := read_on(_CHUNK):
            copy.write(chunk)


def _members(
    archive: pathlib.Path, max_bytes: int, max_members: int
) -> Generator[tuple[str, _Reader | None], None, None]:
    """Yield name and reader of every member, None for a folder, as long as they keep to a bound.

    The guard is around what reads, and not around what the caller does with it: a full disk is no
    fault of the archive.
    """
    kinds = {".zip": _of_zip, ".tar": _of_tar, ".tar.gz": _of_tar, ".tgz": _of_tar}
    kind = next((end for end in kinds if archive.name.endswith(end)), None)
    if kind is None:
        raise reading.Unreadable(f"{archive} is no archive of a known kind: {', '.join(kinds)}.")
    guard = functools.partial(reading.guard, archive, f"a whole {kind} archive", _ADVICE)
    with reading.opened(archive, f"a whole {kind} archive", _ADVICE) as opened:
        # gzip looks at what follows the last member byte by byte.
        if os.fstat(opened.fileno()).st_size > max_bytes + _PADDING:
            raise ValueError(f"it is larger than the {max_bytes:,} bytes that it may hold")
        for count, (name, size, file) in enumerate(kinds[kind](archive, opened), 1):
            # What is announced is a bound of what is read: both libraries stop there.
            max_bytes -= size
            if max_bytes < 0 or count > max_members:
                raise reading.Unreadable(
                    f"{archive} is too big to be what it should: {name} exceeds the bound."
                )
            yield name, None if file is None else functools.partial(_read_on, guard, file)


def _read_on(
    guard: Callable[[], contextlib.AbstractContextManager], file: _File, size: int
) -> bytes:
    with guard():
        found: bytes = file.read(size)
    return found


def _of_zip(archive: pathlib.Path, file: _File) -> Iterator[_Member]:
    with zipfile.ZipFile(reading.Bounded(file, _DIRECTORY)) as opened:
        for member in opened.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where it was not made on Unix
            usual = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            name = _safe(archive, member.filename, usual)
            if member.compress_type not in _METHODS:
                raise ValueError(f"{name} is compressed by method {member.compress_type}")
            if member.is_dir():
                yield name, 0, None
            else:
                with opened.open(member) as content:
                    yield name, member.file_size, content


def _of_tar(archive: pathlib.Path, file: _File) -> Iterator[_Member]:
    with contextlib.ExitStack() as stack:
        if not archive.name.endswith(".tar"):
            file = stack.enter_context(gzip.GzipFile(fileobj=file, mode="rb"))
        stream = _Stream(file)
        # As a stream, which decodes nothing twice.
        opened = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))  # type: ignore[call-overload]
        while (member := opened.next()) is not None:
            opened.members.clear()  # or it keeps them all
            stream.bound = member.offset_data + member.size + _HEADERS
            usual = member.isdir() or (member.isreg() and not member.issparse())
            name = _safe(archive, member.name, usual and member.size >= 0)
            yield name, member.size, opened.extractfile(member)
        # tarfile takes a file that is cut between two members for a whole one.
        stream.bound = stream.position + _PADDING
        while stream.read(_CHUNK):
            pass
        if stream.last != bytes(2 * _BLOCK):
            raise tarfile.ReadError("its end is missing")


class _Stream:
    """A file for tarfile, which keeps headers to a bound and remembers how it ended.

    Attributes:
      position: how many bytes were read.
      bound: where the next member must have begun.
      last: the last two blocks.
    """

    def __init__(self, file: _File) -> None:
        self._file = file
        self.position = 0
        self.bound = _HEADERS
        self.last = b""

    def read(self, size: int) -> bytes:
        """Read on."""
        content = self._file.read(size)
        self.position += len(content)
        if self.position > self.bound:
            raise ValueError(f"it has a header of more than {_HEADERS:,} bytes")
        self.last = (self.last + content[-2 * _BLOCK :])[-2 * _BLOCK :]
        return content


def _safe(archive: pathlib.Path, name: str, usual: bool) -> str:
    """Refuse a member that would not stay where it is put, or is neither file nor folder."""
    parts = name.removesuffix("/").split("/")
    if not usual or name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0]:
        raise reading.Unreadable(
            f"{archive} holds {name[:_LONGEST_NAME]!r}, which is no plain file or leads out of the"
            " folder: nothing of it is unpacked."
        )
    if len(name) > _LONGEST_NAME or len(parts) > _DEEPEST or not name.isprintable():
        raise reading.Unreadable(
            f"{archive} holds {name[:40]!r}..., a name of {len(name)} characters and {len(parts)}"
            " levels that no folder here should get: nothing of it is unpacked."
        )
    return "/".join(part for part in parts if part not in ("", "."))
