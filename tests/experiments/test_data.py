"""What there is, where it lies, how to get the rest, and whether it is what was published."""

import re
import tarfile

import numpy as np
import pytest

from calib_jax import data
from experiments.running import data_files
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
    rows = {name: next(line for line in lines if line.split()[:1] == [name]) for name in _names()}
    for name, parts in {
        "cifar10": ("tfds/cifar10/3.0.2, cifar-10-batches-bin ", " 170 MB "),
        "cifar10_c": ("CIFAR-10-C ", " 2,918 MB  CC BY 4.0"),
        "cifar100": (" missing ", " 169 MB "),
        "svhn": ("svhn_cropped/3.0.2, svhn/train_32x32.mat ", " 246 MB "),
        "tiny_imagenet": ("  downloaded, to be unpacked by --prepare  ", "  248 MB  that of "),
        "digits": (" needs no files ", " CC BY 4.0"),
    }.items():
        row = "  ".join(re.split(r"\s{2,}", rows[name]))
        assert all(part in f" {row} " for part in parts), row
    place = f"'{folder}/tiny_imagenet/tiny-imagenet-200.zip'"
    url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    for line in (
        f"  curl -fL --create-dirs -o {place} {url}",
        f"  python -m experiments.data --prepare=tiny_imagenet --data_dir='{folder}'",
        f"  or tfds build svhn_cropped --data_dir='{folder}' --file_format=array_record"
        "  # needs TensorFlow",
    ):
        assert line in lines


def _names():
    return [name for name in data.catalogue() if data.about(name)]


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


def test_what_was_published_is_told_from_what_was_not(tmp_path):
    # Numbers and labels of the real one; the images do not count, and files of zeros take no room.
    place, labels = tmp_path / "CIFAR-10-C", np.arange(10_000) % 10
    place.mkdir()
    shape = (50_000, 32, 32, 3)
    np.lib.format.open_memmap(place / "gaussian_noise.npy", "w+", np.uint8, shape).flush()
    np.save(place / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    check = ("data", "--check=cifar10_c", f"--data_dir={tmp_path}")
    assert "  test: 10,000 images of 10 classes, of each as many as published" in finish(*check)
    labels[0] = 9
    np.save(place / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    output = finish(*check, code=1)
    assert "test: 10,000 images of 10 classes, but 999 and not 1,000 of class 0" in output
    assert output.splitlines()[-1] == "error: cifar10_c is not as it was published."


def test_texts_are_not_called_images(tmp_path):
    tiny.newsgroups(tmp_path)
    tiny.multi30k(tmp_path)
    lines = [line for line, _ in data_files.check("newsgroups", str(tmp_path))]
    assert any("texts of 20 classes" in line for line in lines), lines
    lines = [line for line, _ in data_files.check("multi30k", str(tmp_path))]
    assert any(line.startswith("  test: 7 pairs of sentences, and not 1,000") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give one of --list, --prepare=NAME, --check=NAME, --show=NAME and --word_vectors="),
        (("--check=cifar_100",), "did you mean 'cifar100'?"),
        (("--prepare=tiny_imagenet",), "tiny-imagenet-200.zip http://cs231n.stanford.edu/tiny-im"),
        (("--check=imagenet",), "\nTo get it: register at https://image-net.org"),
    ],
)
def test_a_mistake_is_a_sentence_or_lines_of_how_to_get_a_data_set(tmp_path, arguments, message):
    output = finish("data", f"--data_dir={tmp_path}", *arguments, code=2)
    assert output.count("\n") == (2 if arguments == ("--check=imagenet",) else 1)
    assert message in output
