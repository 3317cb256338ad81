"""Find the files of a data set, and read them from folders and archives within byte limits."""

import gzip
import hashlib
import io
import os
import pathlib
import shutil
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Download

TFDS, OFFICIAL = "tfds", "official"
VARIABLE = "CALIB_JAX_DATA_DIR"
_AGAIN = "download it again"
_MOST_BYTES = 1 << 31  # limit on the bytes of all files of a folder or an archive


class Located(NamedTuple):
    """A form of a data set, and the file or folder in that form."""

    form: str
    path: pathlib.Path

    def __str__(self) -> str:
        """Describe the form without local paths."""
        if self.form == TFDS:
            return f"read as prepared by TFDS, version {self.path.name}"
        return f"read from its authors' {self.path.name}"


def root(data_dir: str | None) -> tuple[pathlib.Path, str]:
    """Return the folder of all data sets, and the name of the setting that chose it.

    Args:
      data_dir: the folder of the data sets of TFDS, or the folder that contains it as `tfds`. None
        uses the environment variable CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then
        ~/tensorflow_datasets.
    """
    settings = {
        "data_dir": data_dir,
        f"the variable {VARIABLE}": os.environ.get(VARIABLE),
        "the variable TFDS_DATA_DIR": os.environ.get("TFDS_DATA_DIR"),
        "the default of TFDS": "~/tensorflow_datasets",
    }
    why, folder = next((why, folder) for why, folder in settings.items() if folder)
    return pathlib.Path(folder).expanduser().absolute(), why


def places(name: str, data_dir: str | None) -> Iterator[pathlib.Path]:
    """Yield the folders searched for the authors' files: `<root>/<name>`, then `<root>`."""
    folder, _ = root(data_dir)
    yield folder / name
    yield folder


def given(path: str | os.PathLike[str], name: str, data_dir: str | None) -> pathlib.Path:
    """Find a file or folder that an option names: as a path, or in the folder of the data sets.

    Args:
      path: the file or folder.
      name: the data set, whose own folder is searched too; "" for none.
      data_dir: the folder of the data sets, see `root`.
    """
    # Neither Python nor a config expands the ~ of folder="~/photos".
    searched = [
        pathlib.Path(os.path.expanduser(path)),
        *(place / path for place in places(name, data_dir)),
    ]
    return next((place for place in searched if place.exists()), searched[0])


def forms(about: About) -> list[str]:
    """List the forms in which a data set can be read, in order of preference."""
    return [TFDS] * bool(about.tfds) + [OFFICIAL] * bool(about.official)


def find(name: str, about: About, data_dir: str | None, source: str | None = None) -> Located:
    """Find a form of a data set; the error tells how to get the data set, and where to put it."""
    if source is not None:
        checks.one_of(f"{name}: source", source, forms(about))
    folder, why = root(data_dir)
    with reading.guard(folder, "a folder of data sets"):
        for form in forms(about) if source is None else [source]:
            if form == TFDS:
                for place in (folder / about.tfds, folder / "tfds" / about.tfds):
                    if versions := sorted(place.glob("*.*.*/dataset_info.json"), key=_version):
                        return Located(TFDS, versions[-1].parent)
            else:
                for place in places(name, data_dir):
                    for file in about.official:
                        if (place / file).exists():
                            return Located(OFFICIAL, place / file)
    ways = []
    if about.official and source != TFDS:
        urls = " and ".join(download.url for download in about.downloads)
        ways.append(f"{about.by_hand or f'download {urls}'} into {folder / name}")
    if about.tfds and source != OFFICIAL:
        build = f"tfds build {about.tfds} --data_dir={folder} --file_format=array_record"
        ways.append(f"`{build}`, which needs TensorFlow")
    raise FileNotFoundError(
        f"the data set {name} is not in {folder} (from {why}; --data_dir=DIR or {VARIABLE} choose"
        f" another folder).\nTo get it: {', or '.join(ways)}."
    )


def _version(path: pathlib.Path) -> tuple[int, ...]:
    return tuple(int(part) for part in path.parent.name.split(".") if part.isdecimal())


def content(path: pathlib.Path, kind: str, advice: str, *, at_most: int) -> bytes:
    """Read a whole file, unpacked if its name ends in .gz; the arguments are as in `reading`."""
    with reading.guard(path, kind, advice):
        whole = reading.content(path, kind, advice, at_most=at_most)
        if path.suffix == ".gz":
            whole = gzip.GzipFile(fileobj=io.BytesIO(whole)).read(at_most + 1)
        if len(whole) > at_most:
            raise ValueError(f"it unpacks to more than {at_most:,} bytes")
        return whole


def contents(
    path: pathlib.Path, wanted: Callable[[str], bool], *, at_most: int = _MOST_BYTES
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of the wanted files of a folder or an archive.

    Args:
      path: a folder, a .zip file, or a .tar file, which may be compressed.
      wanted: tells from a name, with its folders, whether the file is read.
      at_most: limit on the bytes of the wanted files, and of all files of an archive.
    """
    with reading.guard(path, "a whole folder or archive", _AGAIN):
        for name, size, read in _members(path):
            at_most -= size if wanted(name) or not path.is_dir() else 0
            if at_most < 0:
                raise ValueError(f"it has more bytes than are read, at {name[:80]}")
            if wanted(name):
                yield name, read()


def _members(path: pathlib.Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """Yield the name, the size and the reader of each file of a folder or an archive."""
    if path.is_dir():
        for file in path.rglob("*"):
            if file.is_file():
                name = f"{path.name}/{file.relative_to(path).as_posix()}"
                yield name, file.stat().st_size, file.read_bytes
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield entry.filename, entry.file_size, lambda e=entry: archive.read(e)  # type: ignore[misc]
    else:
        with tarfile.open(path) as tar:
            for member in tar:
                if member.isreg():
                    stream = tar.extractfile(member)
                    assert stream is not None
                    yield member.name, member.size, stream.read
            # `tarfile` does not notice a file that ends between two members.
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ValueError("its end is missing")


def read_table(path: pathlib.Path, kind: str, columns: Sequence[str]) -> Any:
    """Read a CSV file in UTF-8 as a pandas table of texts; names of columns become lower case.

    Args:
      path: the file, which may be compressed by gzip.
      kind: the expected kind of file, for messages.
      columns: the columns that it must have.
    """
    import pandas

    # Pandas raises errors and warnings of its own, which name the line.
    with warnings.catch_warnings(), reading.guard(path, kind, "save it as CSV UTF-8", library=True):
        warnings.simplefilter("error")
        table = pandas.read_csv(
            path, dtype=str, keep_default_na=False, index_col=False, encoding="utf-8-sig"
        ).fillna("")  # where a row has fewer values
        table.columns = [str(name).strip().lower() for name in table.columns]
        names = list(table.columns)
        if wrong := [name for name in (*columns, *names) if names.count(name) != 1]:
            raise ValueError(f"its columns are {', '.join(names)}: just one must be {wrong[0]}")
    return table


def unpack(archive: pathlib.Path, folder: str) -> pathlib.Path:
    """Unpack an archive beside itself, keep its top-level folder `folder`, and return its path.

    The folder appears when all its files are complete. Members outside the archive's folder, and
    links and devices, are refused or made harmless by `zipfile` and by the filter of `tarfile`.
    """
    target = archive.parent / folder
    if target.exists():
        raise FileExistsError(f"{target} already exists: to unpack {archive} again, remove it.")
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=f"{folder}.partial.") as partial:
        with reading.guard(archive, "a whole archive", _AGAIN):
            is_zip = archive.suffix == ".zip"
            shutil.unpack_archive(archive, partial, filter=None if is_zip else "data")
            if not pathlib.Path(partial, folder).is_dir():
                raise ValueError(f"it does not contain the folder {folder}")
        pathlib.Path(partial, folder).rename(target)
    return target


def unlike(path: pathlib.Path, download: Download) -> str:
    """Describe how a file differs from the published one; empty if it does not."""
    size = path.stat().st_size
    if size != download.size:
        return f"{size:,} bytes and not {download.size:,}"
    if not download.md5:
        return ""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return "" if digest == download.md5 else f"the md5 {digest} and not {download.md5}"
