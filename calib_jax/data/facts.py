"""What is known of a data set before it is read: licence, sizes, where its authors publish it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["About", "Download"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Download:
    """A file that the authors of a data set publish.

    Attributes:
      url: where.
      size: in bytes.
      md5: its checksum; None where it is not known.
      folder: what an archive holds; empty for a file that is read as it is.

    >>> Download(url="http://example.org/cats.tar.gz", size=9, folder="cats").name
    'cats.tar.gz'
    """

    url: str
    size: int
    md5: str | None = None
    folder: str = ""

    @property
    def name(self) -> str:
        """What the file is called."""
        return self.url.rpartition("/")[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """The facts of a data set, which stand beside its loader.

    Attributes:
      title: what it is, in a few words.
      licence: under which it is published, or that none is stated.
      counts: the number of examples of each class, or of all, in what is published to train with
        (of which a part may validate) and to test with: `train` and `test`.
      tfds: its name in TFDS; empty where TFDS does not have it.
      looked_up: whether its records are read one by one, by their numbers, and not all at once:
        of TFDS's formats array_record alone can do that.
      official: names of the authors' own files or folders, of which one is enough to read it.
      downloads: the files that the authors publish.
      by_hand: how to get it, in a few words, where no command can; with `size`.
      size: in bytes, of what is fetched; that of the downloads if they can be.
      variants: where one name stands for many data sets: for each name of a configuration in
        TFDS the options that choose it.
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
            object.__setattr__(self, "size", sum(one.size for one in self.downloads))

    @property
    def has_files(self) -> bool:
        """Whether it is read from files that do not come with the library."""
        return bool(self.tfds or self.official)

    @property
    def read_as_downloaded(self) -> bool:
        """Whether what the authors publish need not be unpacked."""
        return any(download.name in self.official for download in self.downloads)
