"""Archives are unpacked whole or not at all, and never outside their folder."""

import gzip
import io
import stat
import tarfile
import zipfile

import pytest

from calib_jax.data import archives

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
    return write_tar(path, content, mode="w" if path.suffix == ".tar" else "w:gz")


KINDS = ["pets.zip", "pets.tar", "pets.tar.gz"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_unpacked_beside_its_archive(tmp_path, kind):
    archive = write(tmp_path / kind)
    assert archives.unpack(archive, "cats") == tmp_path / "cats"
    found = {
        path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.txt")
    }
    assert found == {"cats/one.txt": b"miau" * 300, "cats/more/two.txt": b""}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["cats", kind])
    with pytest.raises(FileExistsError, match="is there already"):
        archives.unpack(archive, "cats")


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_read_without_unpacking(tmp_path, kind):
    archive = write(tmp_path / kind)
    assert archives.read(archive, ["cats/one.txt"]) == {"cats/one.txt": CONTENT["cats/one.txt"]}
    with pytest.raises(ValueError, match=rf"{kind} has no cats/three\.txt: it is another archive"):
        archives.read(archive, ["cats/one.txt", "cats/three.txt"])
    with pytest.raises(ValueError, match=r"cats/one\.txt exceeds the bound"):
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
    refused(archive, "is no plain file or leads out of the folder: nothing of it")
    assert not list(tmp_path.rglob("out.txt"))


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(tmp_path, kind):
    member = tarfile.TarInfo("cats/strange")
    member.type, member.linkname = kind, "one.txt"
    refused(write_tar(tmp_path / "pets.tar.gz", members=[member]), "'cats/strange', which is no pl")


def test_a_link_in_a_zip_is_refused(tmp_path):
    link = zipfile.ZipInfo("cats/strange")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    refused(write_zip(tmp_path / "pets.zip", CONTENT | {link: "/etc/passwd"}), "'cats/strange'")


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_the_bound_is_refused(tmp_path, kind):
    archive = write(tmp_path / kind)
    refused(archive, "too big to be what it should: cats/one.txt", max_bytes=1199)
    refused(archive, "too big to be what it should: cats/more/two.txt", max_files=1)
    assert archives.unpack(archive, "cats", max_bytes=1200, max_files=2)


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
        refused(cut, "is no whole .* archive: .*; download it again")
    flipped = bytearray(gzip.compress(b"no tar at all") if kind != "pets.zip" else b"PK no zip")
    cut.write_bytes(flipped)
    refused(cut, "is no whole .* archive")


def test_another_archive_is_named(tmp_path):
    refused(write_tar(tmp_path / "pets.tar", {"dogs/one.txt": b"wow"}, mode="w"), "no folder cats")
    refused(write_tar(tmp_path / "pets.tgz", {"cats": b"a file"}), "no folder cats")
    (tmp_path / "pets.rar").write_bytes(b"Rar!")
    refused(tmp_path / "pets.rar", r"no archive of a known kind: \.zip, \.tar, \.tar\.gz, \.tgz")


def test_a_name_that_comes_twice_is_refused(tmp_path):
    archive = tmp_path / "pets.tar"
    with tarfile.open(archive, "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("cats/one.txt"))
    refused(archive, "is no whole .tar archive: .*exists")


def test_the_checksum_is_that_of_md5(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert archives.md5(path) == "900150983cd24fb0d6963f7d28e17f72"  # RFC 1321
