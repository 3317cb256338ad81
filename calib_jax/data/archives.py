"""Archives that the user downloaded: read or unpacked whole, or not at all.

Nothing is believed of an archive: a name that leads out of the folder, a link or a device is
refused, so is more than a bound of bytes or files, and one that is cut short leaves nothing.
"""

import contextlib
import gzip
import hashlib
import lzma
import os
import pathlib
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from typing import Any

_CHUNK = 1 << 20
_BLOCK = 512  # of a tar file, which ends with two that are empty
_File = Any  # what has `read`, for two libraries that name it differently
_Member = tuple[str, _File | None]
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def read(
    archive: pathlib.Path, names: Collection[str], max_bytes: int = 1 << 30
) -> dict[str, bytes]:
    """Read some files of an archive into memory; refuse one that lacks any of them.

    Args:
      archive: a .zip, .tar, .tar.gz or .tgz file.
      names: the files to read, with their folder in the archive.
      max_bytes: how much may be read.
    """
    found: dict[str, bytes] = {}
    with _members(archive) as members:
        for name, file in members:
            if name in names and file is not None:
                content = file.read(max_bytes + 1)
                max_bytes -= len(content)
                if max_bytes < 0:
                    raise ValueError(f"{archive} is too big: {name} exceeds the bound.")
                found[name] = content
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{archive} has no {missing[0]}: it is another archive than expected.")
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
      max_bytes, max_files: how much may be unpacked.
    """
    target = archive.parent / folder
    if target.exists():
        raise FileExistsError(f"{target} is there already: to unpack {archive} anew, remove it.")
    # Named by chance: two processes may do so at once.
    partial = archive.parent / f"{folder}.{os.urandom(4).hex()}.partial"
    count = 0
    try:
        with _members(archive) as members:
            for name, file in members:
                if name.partition("/")[0] != folder:
                    continue
                count += 1
                place = partial / name
                if file is None:
                    place.mkdir(parents=True, exist_ok=True)
                else:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    max_bytes -= _copied(file, place, max_bytes)
                if count > max_files or max_bytes < 0:
                    raise ValueError(
                        f"{archive} is too big to be what it should: {name} exceeds the bound."
                    )
        if not (partial / folder).is_dir():
            raise ValueError(f"{archive} has no folder {folder}: it is another archive than that.")
        (partial / folder).rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def md5(path: pathlib.Path) -> str:
    """Compute the checksum that authors of data sets publish."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _copied(file: _File, place: pathlib.Path, max_bytes: int) -> int:
    """Copy a file, but not much more than a bound; return its size."""
    size = 0
    with open(place, "xb") as copy:  # x: a name that comes twice
        while size <= max_bytes and (chunk := file.read(_CHUNK)):
            size += copy.write(chunk)
    return size


@contextlib.contextmanager
def _members(archive: pathlib.Path) -> Iterator[Iterator[_Member]]:
    """Yield names and files of an archive, None for a folder; say in one sentence what is wrong."""
    kinds = {".zip": _of_zip, ".tar": _of_tar, ".tar.gz": _of_tar, ".tgz": _of_tar}
    kind = next((end for end in kinds if archive.name.endswith(end)), None)
    if kind is None:
        raise ValueError(f"{archive} is no archive of a known kind: {', '.join(kinds)}.")
    try:
        yield kinds[kind](archive)
    except (*_DAMAGE, EOFError, RuntimeError, NotImplementedError, FileExistsError) as error:
        raise ValueError(
            f"{archive} is no whole {kind} archive: {' '.join(str(error).split())}; download it"
            " again."
        ) from error


def _of_zip(archive: pathlib.Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where it was not made on Unix
            usual = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            name = _safe(archive, member.filename, usual)
            if member.is_dir():
                yield name, None
            else:
                with opened.open(member) as file:
                    yield name, file


def _of_tar(archive: pathlib.Path) -> Iterator[_Member]:
    unzipped = open if archive.name.endswith(".tar") else gzip.open
    with contextlib.ExitStack() as stack:
        stream = _Ended(stack.enter_context(unzipped(archive, "rb")))
        # As a stream, which decodes nothing twice.
        opened = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))  # type: ignore[call-overload]
        for member in opened:
            name = _safe(archive, member.name, member.isreg() or member.isdir())
            yield name, opened.extractfile(member)
        # tarfile takes a file that is cut between two members for a whole one.
        while stream.read(_CHUNK):
            pass
        if stream.last != bytes(2 * _BLOCK):
            raise tarfile.ReadError("its end is missing")


class _Ended:
    """A file for tarfile, which remembers how it ended."""

    def __init__(self, file: _File) -> None:
        self._file = file
        self.last = b""

    def read(self, size: int) -> bytes:
        """Read on."""
        content = self._file.read(size)
        self.last = (self.last + content[-2 * _BLOCK :])[-2 * _BLOCK :]
        return content


def _safe(archive: pathlib.Path, name: str, usual: bool) -> str:
    """Refuse a member that would not stay where it is put, or is neither file nor folder."""
    parts = name.removesuffix("/").split("/")
    if not usual or name.startswith("/") or ".." in parts or "\\" in name or ":" in parts[0]:
        raise ValueError(
            f"{archive} holds {name!r}, which is no plain file or leads out of the folder:"
            " nothing of it is unpacked."
        )
    return "/".join(part for part in parts if part not in ("", "."))
