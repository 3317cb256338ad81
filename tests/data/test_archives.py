"""Archives are unpacked whole or not at all, and never outside their folder."""

import errno
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile

import pytest

from calib_jax.data.formats import archives
from tests.memory import peak

CONTENT = {"cats/one.txt": b"miau" * 300, "./cats/more/two.txt": b"", "README": b"beside"}


def write_tar(path, content=None, *, members=(), mode="w:gz"):
    """Write a tar file of contents by name, and of members that are made by hand."""
    with tarfile.open(path, mode) as tar:
        for name, text in (CONTENT if content is None else content).items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        for member in members:
            tar.addfile(member)
    return path


def write_zip(path, content=None):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, text in (CONTENT if content is None else content).items():
            opened.writestr(name, text)
    return path


def write(path, content=None):
    if path.suffix == ".zip":
        return write_zip(path, content)
    return write_tar(path, content, mode="w:" + path.suffix[1:].removeprefix("tar"))


KINDS = ["pets.zip", "pets.tar", "pets.tar.gz", "pets.tar.xz"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_unpacked_beside_its_archive(tmp_path, kind):
    archive = write(tmp_path / kind)
    assert archives.unpack(archive, "cats") == tmp_path / "cats"
    result = {
        path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.txt")
    }
    assert result == {"cats/one.txt": b"miau" * 300, "cats/more/two.txt": b""}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["cats", kind])
    with pytest.raises(FileExistsError, match="already exists: to unpack"):
        archives.unpack(archive, "cats")


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_read_without_unpacking(tmp_path, kind):
    archive = write(tmp_path / kind)
    assert archives.read(archive, ["cats/one.txt"]) == {"cats/one.txt": CONTENT["cats/one.txt"]}
    with pytest.raises(
        ValueError, match=rf"{kind} does not contain cats/three\.txt: download the archive"
    ):
        archives.read(archive, ["cats/one.txt", "cats/three.txt"])
    with pytest.raises(
        ValueError, match=r"larger than this data set can be, at its member cats/one\.txt"
    ):
        archives.read(archive, ["cats/one.txt"], max_bytes=1199)


def refused(archive, message, **bounds):
    """Nothing is left behind of an archive that is refused, and the sentence names it."""
    before = sorted(archive.parent.rglob("*"))
    with pytest.raises(ValueError, match=message) as caught:
        archives.unpack(archive, "cats", **bounds)
    assert "\n" not in str(caught.value)
    assert archive.name in str(caught.value)
    assert sorted(archive.parent.rglob("*")) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["../out.txt", "/tmp/out.txt", "cats/../../out.txt", "cats\\out.txt", "C:/out.txt"]
)
def test_a_name_that_leads_out_is_refused(tmp_path, kind, name):
    (tmp_path / "in").mkdir()
    archive = write(tmp_path / "in" / kind, CONTENT | {name: b"evil"})
    refused(archive, "is not a plain file inside its folder: nothing was unpacked")
    assert not list(tmp_path.rglob("out.txt"))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(tmp_path, kind):
    member = tarfile.TarInfo("cats/strange")
    member.type, member.linkname = kind, "one.txt"
    refused(
        write_tar(tmp_path / "pets.tar.gz", members=[member]), "'cats/strange', which is not a pl"
    )


def test_a_link_in_a_zip_is_refused(tmp_path):
    link = zipfile.ZipInfo("cats/strange")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    refused(write_zip(tmp_path / "pets.zip", CONTENT | {link: "/etc/passwd"}), "'cats/strange'")


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_the_bound_is_refused(tmp_path, kind):
    archive = write(tmp_path / kind)
    refused(archive, "larger than this data set can be, at its member cats/one.txt", max_bytes=1199)
    refused(
        archive, "larger than this data set can be, at its member cats/more/two.txt", max_files=1
    )
    assert archives.unpack(archive, "cats", max_bytes=1206, max_files=3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_that_is_cut_anywhere_is_refused(tmp_path, kind):
    whole = write(tmp_path / kind).read_bytes()
    (tmp_path / "cut").mkdir()
    cut = tmp_path / "cut" / kind
    # A tar file also between two members, where tarfile itself sees no harm.
    for size in {0, 1, 512, 2048, len(whole) // 2, len(whole) - 1} & set(range(len(whole))):
        if kind.endswith(".tar") and size >= len(CONTENT) * 512 + 2048 + 1024:
            continue  # only padding is lost
        cut.write_bytes(whole[:size])
        refused(cut, "cannot be read as a whole .* archive: .*; download it again")
    compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(cut.suffix, bytes)
    cut.write_bytes(compress(b"no tar at all"))
    refused(cut, "cannot be read as a whole .* archive")


def compressed(path, content):
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else lzma.compress(content))
    return path


COMPRESSED = ["pets.tar.gz", "pets.tar.xz"]


def tar_header(name, kind=b"0", size=0):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_without_end_is_not_read_to_its_end(tmp_path, name, kind, monkeypatch):
    """The archive announces a header of 3 GB, of which only the allowed size is read."""
    seen = []
    stream = archives._Stream.read
    monkeypatch.setattr(
        archives._Stream, "read", lambda self, n: seen.append(self.position) or stream(self, n)
    )
    content = tar_header("x", kind, 3_000_000_000) + b"10 a=bcde\n" * 100_000
    refused(compressed(tmp_path / name, content), "has a header of more than 65,536 bytes")
    assert max(seen) < 100_000


@pytest.mark.parametrize("name", COMPRESSED)
def test_zeros_after_the_last_member_are_not_decompressed_without_end(tmp_path, name, monkeypatch):
    monkeypatch.setattr(archives, "_PADDING", 1 << 20)
    content = tar_header("cats/a") + bytes(3 << 20)
    refused(compressed(tmp_path / name, content), "cannot be read as a whole")


def test_an_xz_file_that_announces_gigabytes_takes_what_it_holds(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    archive = tmp_path / "pets.tar.xz"
    whole = write_tar(tmp_path / "plain.tar", mode="w").read_bytes()
    archive.write_bytes(lzma.compress(whole, filters=filters))
    before = peak(reset=True)
    assert archives.read(archive, ["README"]) == {"README": b"beside"}
    assert peak() - before < 1e8


@pytest.mark.parametrize("name", COMPRESSED)
def test_members_that_tarfile_would_expand_are_refused(tmp_path, name):
    sparse = tar_header("cats/one.txt", tarfile.GNUTYPE_SPARSE, 512) + bytes(2048)
    refused(compressed(tmp_path / name, sparse), "not a plain file inside")
    negative = b"12 size=-51\n"
    header = tar_header("x", tarfile.XHDTYPE, len(negative)) + negative.ljust(512, b"\0")
    refused(compressed(tmp_path / name, header + tar_header("cats/a") + bytes(1024)), "pets")
    large = tar_header("dogs/large", size=1 << 40) + bytes(4096)
    refused(compressed(tmp_path / name, large), "larger than .* at its member dogs/large")
    many = tar_header("dogs/none") * 2000 + bytes(1024)
    refused(compressed(tmp_path / name, many), "at its member dogs/none", max_files=1999)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["cats/" + "a/" * 900, "cats/" + "a" * 2000, "cats/\x1b[2J"])
def test_names_that_no_folder_should_get_are_refused(tmp_path, kind, name):
    refused(write(tmp_path / kind, {name: b""}), "an unusual name of .*: nothing was unpacked")


def test_a_zip_of_another_method_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w", zipfile.ZIP_LZMA) as file:
        file.writestr("cats/one.txt", "miau")
    refused(tmp_path / "pets.zip", "cats/one.txt is compressed by method 14")


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_no_fault_of_the_archive(tmp_path, kind, monkeypatch):
    archive = write(tmp_path / kind)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archives, "_put", full)
    with pytest.raises(OSError, match="No space left"):
        archives.unpack(archive, "cats")
    assert list(tmp_path.iterdir()) == [archive]


def test_another_archive_is_named(tmp_path):
    refused(
        write_tar(tmp_path / "pets.tar", {"dogs/one.txt": b"wow"}, mode="w"),
        "does not contain the folder cats: download",
    )
    refused(
        write_tar(tmp_path / "pets.tgz", {"cats": b"a file"}),
        "does not contain the folder cats: download",
    )
    (tmp_path / "pets.rar").write_bytes(b"Rar!")
    refused(
        tmp_path / "pets.rar",
        r"another format than \.zip, \.tar, \.tar\.gz, \.tgz, \.tar\.xz: unpack it",
    )


def test_a_name_that_comes_twice_is_refused(tmp_path):
    archive = tmp_path / "pets.tar"
    with tarfile.open(archive, "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("cats/one.txt"))
    refused(archive, "contains two members named 'one.txt'")


def test_the_checksum_is_that_of_md5(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert archives.md5(path) == "900150983cd24fb0d6963f7d28e17f72"  # RFC 1321
