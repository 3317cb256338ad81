"""Find and read the files of a data set in one of the supported forms."""

import functools
import gzip
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.data.dataset import About, Download
from calib_jax.data.formats import archives, tfds
from calib_jax.data.images.image_sets import Images

TFDS, OFFICIAL = "tfds", "official"
Reader = Callable[[pathlib.Path], tuple[Images, ...]]


class Located(NamedTuple):
    """A form of a data set, and the file or folder in that form."""

    form: str
    path: pathlib.Path

    def __str__(self) -> str:
        """Describe the form without local paths."""
        if self.form == TFDS:
            return f"read as prepared by TFDS, version {self.path.name}"
        return f"read from its authors' {self.path.name}"


def read(
    name: str,
    about: About,
    data_dir: str | None,
    source: str | None,
    readers: Mapping[str, Reader],
    *,
    config: str = "",
) -> tuple[tuple[Images, ...], Located]:
    """Read the parts of a data set; return them and the form that was found.

    Args:
      name: the name of the data set in the catalogue.
      about: the metadata of the data set, which contains the file names.
      data_dir: the folder of the data sets, see `tfds.root`.
      source: the form to read; None tries TFDS first, then the authors' files.
      readers: for each form, the function that reads a file or folder in it.
      config: the TFDS configuration, for a data set that has several.
    """
    located = find(name, about, data_dir, source, config=config)
    for download in about.downloads:
        if download.folder and download.name == located.path.name:
            _check_published(located.path, download)
    return readers[located.form](located.path), located


def find(
    name: str, about: About, data_dir: str | None, source: str | None = None, *, config: str = ""
) -> Located:
    """Find a form of a data set; the error lists the searched places and how to get the files."""
    if source is not None:
        checks.one_of(f"{name}: source", source, forms(about))
    missing = []
    for form in forms(about) if source is None else [source]:
        try:
            if form == TFDS:
                name_there = f"{about.tfds}/{config}".rstrip("/")
                formats = (tfds.ARRAY_RECORD,) if about.looked_up else tfds.FORMATS
                return Located(TFDS, tfds.find_version(name_there, data_dir, formats=formats))
            with reading.guard(tfds.root(data_dir)[0], "a folder of data sets"):
                return Located(OFFICIAL, _official(name, about, data_dir))
        except FileNotFoundError as error:
            missing.append(str(error))
    raise tfds.nowhere(missing)


def readers(
    official: Reader, num_classes: int, parts: tuple[str, ...] = ("train", "test")
) -> dict[str, Reader]:
    """Return the readers of images of 32 x 32 pixels, for TFDS and for the authors' files."""
    prepared = functools.partial(
        tfds.images, parts=parts, shape=(32, 32, 3), num_classes=num_classes
    )
    return {TFDS: prepared, OFFICIAL: official}


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
    path: pathlib.Path, kind: str, *, max_bytes: int, max_files: int
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield the name of each file of an archive or of the folders in a folder, and its reader."""
    if not path.is_dir():
        yield from archives.contents(path, max_bytes=max_bytes, max_files=max_files)
        return
    for file in path.glob("*/*"):
        if file.is_file():
            yield file.as_posix(), functools.partial(reading.content, file, kind)


def unlike(path: pathlib.Path, download: Download) -> str:
    """Describe how a file differs from the published one; empty if it does not."""
    size = path.stat().st_size
    if size != download.size:
        return f"{size:,} bytes and not {download.size:,}"
    checksum = archives.md5(path) if download.md5 else None
    return "" if checksum == download.md5 else f"the md5 {checksum} and not {download.md5}"


def _check_published(archive: pathlib.Path, download: Download) -> None:
    """Raise if an archive is not the published one, without opening it."""
    if wrong := unlike(archive, download):
        raise reading.Unreadable(
            f"{archive} is not the file that was published: it has {wrong};\ndownload it again, or"
            f" unpack it to {download.folder} beside it, which is read as it is."
        )


def forms(about: About) -> list[str]:
    """List the forms in which a data set can be read, in order of preference."""
    return [TFDS] * bool(about.tfds) + [OFFICIAL] * bool(about.official)


def places(name: str, data_dir: str | None) -> Iterator[pathlib.Path]:
    """Yield the folders searched for the authors' files: `<root>/<name>`, then `<root>`."""
    root, _ = tfds.root(data_dir)
    yield root / name
    yield root


def given(path: str | os.PathLike[str], name: str, data_dir: str | None) -> pathlib.Path:
    """Find a file or folder that an option names: as a path, or in the folder of the data sets.

    A config with a path in the folder of the data sets works on every machine.

    Args:
      path: the file or folder.
      name: the data set, whose own folder is searched too; "" for none.
      data_dir: the folder of the data sets, see `tfds.root`.
    """
    searched = [pathlib.Path(path), *(place / path for place in places(name, data_dir))]
    return next((place for place in searched if place.exists()), searched[0])


def _official(name: str, about: About, data_dir: str | None) -> pathlib.Path:
    for place in places(name, data_dir):
        for file in about.official:
            if (place / file).exists():
                return place / file
    place, root = places(name, data_dir)
    _, why = tfds.root(data_dir)
    raise FileNotFoundError(
        f"neither {place} nor {root} (from {why}) has"
        f" {' or '.join(about.official)} of the authors of {name}.\n"
        f"  To get it: {_how(name, about, place)}."
    )


def _how(name: str, about: About, place: pathlib.Path) -> str:
    if about.by_hand:
        return f"to fill {place}, {about.by_hand}"
    urls = " and ".join(download.url for download in about.downloads)
    if about.read_as_downloaded:
        return f"download {urls} to {place}"
    prepare = f"`python -m experiments.data --prepare={name}`"
    return f"download {urls} to {place}, and unpack it by {prepare}"
