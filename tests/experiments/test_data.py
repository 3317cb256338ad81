"""The list of data sets: where they are, how to get them, and whether they are as published."""

import re
import tarfile

import pytest

from calib_jax import data
from tests.data import tiny
from tests.experiments.processes import finish


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch):
    for variable in ("CALIB_JAX_DATA_DIR", "TFDS_DATA_DIR"):
        monkeypatch.delenv(variable, raising=False)


def test_the_list_tells_what_is_there_and_how_to_get_the_rest(tmp_path):
    folder = tmp_path / "my sets"
    tiny.cifar10(folder / "tfds")
    tiny.cifar10_binary(folder)
    tiny.svhn(folder)
    (folder / "tiny_imagenet").mkdir()
    (folder / "tiny_imagenet" / "tiny-imagenet-200.zip").touch()
    some = {"test": tiny.examples("test")}
    tiny.cifar10_c(folder)
    tiny.tfds_images(folder, "svhn_cropped", some, features=("image", "label"))
    output = finish("data", "--list", f"--data_dir={folder}")
    assert f"Looked for in {folder}, the folder of data_dir." in output
    lines = output.splitlines()
    url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    place = f"'{folder}/tiny_imagenet/tiny-imagenet-200.zip'"
    assert f"  curl -fL --create-dirs -o {place} {url}" in lines
    for name, where in {
        "cifar10": "tfds/cifar10/3.0.2, cifar-10-batches-bin",
        "cifar100": "missing",
        "tiny_imagenet": "downloaded, to be unpacked by --prepare",
        "digits": "needs no files",
    }.items():
        row = next(line for line in lines if line.split()[:1] == [name])
        assert re.split(r"\s{2,}", row)[1] == where


def test_a_downloaded_archive_is_prepared_if_it_is_the_published_one(tmp_path):
    made = tiny.cifar10_c(tmp_path / "made")
    archive = tmp_path / "cifar10_c" / "CIFAR-10-C.tar"
    prepare = ("data", "--prepare=cifar10_c", f"--data_dir={tmp_path}")
    archive.parent.mkdir()
    with tarfile.open(archive, "w") as tar:
        tar.add(made, "CIFAR-10-C")
    output = finish(*prepare, code=2)
    size = archive.stat().st_size
    assert f"it has {size:,} bytes and not 2,918,471,680; download it again" in output
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    output = finish(*prepare, "--unchecked")
    assert output.splitlines()[0] == f"unpacked: {archive.parent / 'CIFAR-10-C'}"
    assert len(data.named("cifar10_c", data_dir=str(tmp_path)).test) == 20
    assert "is there already: nothing to do" in finish(*prepare)
