"""Metadata of data sets: licence, sizes and the authors' downloads."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Download:
    """A file that the authors of a data set publish.

    Attributes:
      url: its address.
      size: its size in bytes.
      md5: its checksum; None if it is not known.
      folder: the folder in an archive; empty for a file that is read without unpacking.

    >>> Download(url="http://example.org/cats.tar.gz", size=9, folder="cats").name
    'cats.tar.gz'
    """

    url: str
    size: int
    md5: str | None = None
    folder: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """The metadata of a data set, defined beside its loader.

    Attributes:
      title: a short description.
      licence: its licence, or a remark that none is stated.
      counts: the number of examples of each class, or of all classes, in the published `train` part
        (of which some may be held out for validation) and `test` part.
      tfds: its name in TFDS; empty if TFDS does not have it.
      looked_up: True if records are read one by one by index instead of all at once; of TFDS's
        formats only array_record supports this.
      official: names of the authors' files or folders, any one of which is enough to read it.
      downloads: the files that the authors publish.
      by_hand: short instructions if it cannot be downloaded by a command; requires `size`.
      size: download size in bytes; computed from `downloads` if there are any.
      variants: for a name that covers many data sets, maps each TFDS configuration to the options
        that select it.
    """

    title: str
    licence: str
    counts: Mapping[str, tuple[int, ...] | int] = dataclasses.field(default_factory=dict)
    tfds: str = ""
    looked_up: bool = False
    official: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    size: int = 0
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.downloads:
            object.__setattr__(self, "size", sum(download.size for download in self.downloads))

    @property
    def has_files(self) -> bool:
        """Whether it is read from files that are not shipped with the library."""
        return bool(self.tfds or self.official)

    @property
    def read_as_downloaded(self) -> bool:
        """Whether the authors' files are read without unpacking."""
        return any(download.name in self.official for download in self.downloads)
