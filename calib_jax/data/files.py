"""Where the files of a data set lie, and in which of the forms that can be read."""

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from calib_jax.core import checks, reading
from calib_jax.data import archives, tfds
from calib_jax.data.facts import About, Download
from calib_jax.data.images import Images

TFDS, OFFICIAL = "tfds", "official"
Reader = Callable[[pathlib.Path], tuple[Images, ...]]


class Found(NamedTuple):
    """A form of a data set, and the file or folder that has it."""

    form: str
    path: pathlib.Path

    def __str__(self) -> str:
        """Say what was read, without saying where on this machine."""
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
) -> tuple[tuple[Images, ...], Found]:
    """Read the parts of a data set in the form that is there; say which it was.

    Args:
      name: of the data set in the catalogue.
      about: its facts, which say what its files are called.
      data_dir: the folder of the data sets, see `tfds.root`.
      source: the form to read; None is that of TFDS, then that of its authors.
      readers: for each form, what reads a file or folder that has it.
      config: the name of a configuration in TFDS, for a data set that has many.
    """
    there = find(name, about, data_dir, source, config=config)
    for download in about.downloads:
        if download.folder and download.name == there.path.name:
            _check_published(there.path, download)
    return readers[there.form](there.path), there


def find(
    name: str, about: About, data_dir: str | None, source: str | None = None, *, config: str = ""
) -> Found:
    """Find a form of a data set, or say what was looked for, where, and how to get it."""
    if source is not None:
        checks.one_of(f"{name}: source", source, forms(about))
    missing = []
    for form in forms(about) if source is None else [source]:
        try:
            if form == TFDS:
                name_there = f"{about.tfds}/{config}".rstrip("/")
                formats = (tfds.ARRAY_RECORD,) if about.looked_up else tfds.FORMATS
                return Found(TFDS, tfds.found(name_there, data_dir, formats=formats))
            with reading.guard(tfds.root(data_dir)[0], "a folder of data sets"):
                return Found(OFFICIAL, _official(name, about, data_dir))
        except FileNotFoundError as error:
            missing.append(str(error))
    raise tfds.nowhere(missing)


def unlike(path: pathlib.Path, download: Download) -> str:
    """Say how a file differs from the one that was published; nothing if it does not."""
    size = path.stat().st_size
    if size != download.size:
        return f"{size:,} bytes and not {download.size:,}"
    found = archives.md5(path) if download.md5 else None
    return "" if found == download.md5 else f"the md5 {found} and not {download.md5}"


def _check_published(archive: pathlib.Path, download: Download) -> None:
    """Refuse an archive that is not the published one: it is not opened to find out what it is."""
    if wrong := unlike(archive, download):
        raise reading.Unreadable(
            f"{archive} is not the file that was published: it has {wrong};\ndownload it again, or"
            f" unpack it to {download.folder} beside it, which is read as it is."
        )


def forms(about: About) -> list[str]:
    """List the forms in which a data set can be read, the first choice first."""
    return [TFDS] * bool(about.tfds) + [OFFICIAL] * bool(about.official)


def places(name: str, data_dir: str | None) -> Iterator[pathlib.Path]:
    """List where files of the authors may lie: with the data sets, or in a folder of their own."""
    root, _ = tfds.root(data_dir)
    yield root / name
    yield root


def _official(name: str, about: About, data_dir: str | None) -> pathlib.Path:
    for place in places(name, data_dir):
        for file in about.official:
            if (place / file).exists():
                return place / file
    place, root = places(name, data_dir)
    _, why = tfds.root(data_dir)
    raise FileNotFoundError(
        f"neither {place} nor {root}, where {why} says to look, has"
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
