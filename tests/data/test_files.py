"""Folders and archives: what is found where, bounded reading, and unpacking as a whole."""

import pytest

from calib_jax import data
from calib_jax.core.files import reading
from calib_jax.data.formats import files
from tests.data import tiny

ENDINGS = (".zip", ".tar", ".tar.gz")
MEMBERS = {"cats/one.txt": b"1", "cats/in/two.txt": b"22", "dogs/three.txt": b"333"}


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_of_an_archive_are_read_within_a_limit(tmp_path, ending):
    path = tiny.packed(tmp_path / f"a{ending}", MEMBERS)
    found = dict(files.contents(path, lambda name: name.endswith(("one.txt", "two.txt"))))
    assert found == {"cats/one.txt": b"1", "cats/in/two.txt": b"22"}
    with pytest.raises(reading.Unreadable, match=r"has more bytes than are read, at dogs/three"):
        dict(files.contents(path, lambda name: True, at_most=5))
    bomb = tiny.packed(tmp_path / f"b{ending}", {"a": bytes(1 << 22)})
    with pytest.raises(reading.Unreadable, match="more bytes than are read"):
        dict(files.contents(bomb, lambda name: False, at_most=1 << 20))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(reading.Unreadable, match=r"cannot be read as a whole .*download it again"):
        dict(files.contents(path, lambda name: True))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_is_unpacked_as_a_whole_and_stays_inside(tmp_path, ending):
    path = tiny.packed(tmp_path / f"a{ending}", MEMBERS)
    assert files.unpack(path, "cats") == tmp_path / "cats"
    assert (tmp_path / "cats/in/two.txt").read_bytes() == b"22"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "cats"])
    with pytest.raises(FileExistsError, match="already exists: to unpack"):
        files.unpack(path, "cats")
    with pytest.raises(reading.Unreadable, match="does not contain the folder birds"):
        files.unpack(path, "birds")
    place = tmp_path / "inner"
    place.mkdir()
    evil = tiny.packed(place / f"b{ending}", {"../evil.txt": b"!", "cats/a": b"1"})
    try:
        files.unpack(evil, "cats")
    except reading.Unreadable:  # tarfile refuses, and zipfile leaves out the dots
        assert not (place / "cats").exists()
    assert not (tmp_path / "evil.txt").exists()


def test_the_newest_version_of_tfds_is_read(folder):
    for version, size in (("3.0.2", 20), ("3.0.10", 3)):
        parts = {"train": tiny.examples("train"), "test": tiny.examples("test", size=size)}
        tiny.cifar10(folder, parts, version=version)
    (folder / "cifar10" / "3.1.0").mkdir()  # its preparation was interrupted
    assert len(data.cifar10(data_dir=str(folder)).test) == 3
