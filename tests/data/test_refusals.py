"""Missing, damaged and unfitting files and options, each refused by name; bounded reading."""

import dataclasses
import gzip
import os
import pickle

import numpy as np
import pytest

from calib_jax import data
from calib_jax.core.files import reading
from calib_jax.data.dataset import Download
from calib_jax.data.formats import files
from tests.data import tiny, tiny_photographs


def cut(content):
    return content[: len(content) // 2]


def replaced(old, new):
    return lambda content: content.replace(old.encode(), new.encode(), 1)


def zipped(text):
    return gzip.compress(text.encode())


def pickled(path):
    """Make bytes that leave a trace when they are unpickled."""

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(path),)

    return pickle.dumps(Trap())


def png(pixels):
    return tiny_photographs.png(np.asarray(pixels, np.uint8))


BATCHES, TINY = "cifar-10-batches-bin", "tiny-imagenet-200"
RECORDS = "cifar10/3.0.2/cifar10-test.array_record-00000-of-00001"
FRAME = "ulm_000000_000019"
LEFT, LABELS = "cityscapes/leftImg8bit/train/ulm", "cityscapes/gtFine/train/ulm"
TRUTH = "imagenet/ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
WRITERS = {**tiny.WRITERS, "cifar10_binary": tiny.cifar10_binary}
# Writer, file, what becomes of it (None removes it), and what the message holds.
DAMAGED = [
    ("cifar10", RECORDS, None, "0 records in array_record, and states 20"),
    ("cifar10_binary", f"{BATCHES}/data_batch_3.bin", b"x" * 3072, "no whole records of 3,073"),
    (
        "cifar10_binary",
        f"{BATCHES}/test_batch.bin",
        b"\x0a" * 3073,
        r"example 0 of .*test_batch.bin .* has the label 10; labels must lie in \[0, 9\]",
    ),
    ("svhn", "svhn/train_32x32.mat", cut, "train_32x32.mat cannot be read as a MATLAB .* download"),
    ("cifar10_c", "CIFAR-10-C/labels.npy", pickled, "labels.npy cannot be read as an array"),
    ("tiny_imagenet", f"{TINY}/val/images/val_2.JPEG", cut, "val_2.JPEG cannot be read as an ima"),
    ("newsgroups", "newsgroups/20news-bydate.tar.gz", cut, "cannot be read as a whole .* archive"),
    ("sst", "sst/dev.txt.gz", zipped("(4 (2 a) (4 b))\n(4 (2 a) (4 b)\n"), "line 2: 1 bracket is"),
    ("multi30k", "multi30k/val.de.gz", zipped("a\nb\n"), r"gz 5:\nline 3 of .*val\.en\.gz has no"),
    ("multi30k", "multi30k/val.en.gz", zipped("a\nb\n"), r"gz 2:\nline 3 of .*val\.de\.gz has no"),
    ("cityscapes", f"{LEFT}/{FRAME}_leftImg8bit.png", None, f"leftImg8bit/train has no .*/{FRAME}"),
    ("cityscapes", f"{LABELS}/{FRAME}_gtFine_labelIds.png", None, "gtFine/train has no file of "),
    ("places_lt", "places_lt/Places_LT_val.txt", replaced(" 2\n", " 9\n"), "has the class 9, and "),
    ("places_lt", "places_lt/Places_LT_test.txt", replaced("\n", "\nx.jpg\n"), "line 2, must be"),
    ("imagenet", TRUTH, replaced("\n", "\n99"), "line 2 of .* has the class '99"),
    ("own_images", "own_images/dog/1.png", cut, "dog/1.png cannot be read as an image"),
    (
        "own_texts",
        "own_texts.csv",
        b"text,label,split\na,0,train\nb,1,train\nA!,0,test\n",
        r"row 3 of .* \(test\) repeats the text of row 1 \(train\): keep each text in one",
    ),
    ("own_texts", "own_texts.csv", b"text,label,Label\na,0,0\n", "just one must be label; save it"),
    ("vectors", "vectors/test_labels.npy", cut, "test_labels.npy cannot be read"),
]


@pytest.mark.parametrize(("writer", "file", "damage", "message"), DAMAGED)
def test_damaged_files_are_named(folder, writer, file, damage, message):
    WRITERS[writer](folder)
    path, trap = folder / file, folder / "sprung"
    if damage is None:
        path.rename(folder / "moved")
    elif damage is pickled:
        path.write_bytes(pickled(trap))
    else:
        path.write_bytes(damage(path.read_bytes()) if callable(damage) else damage)
    name = {"cifar10_binary": "cifar10"}.get(writer, writer)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        data.named(name, data_dir=str(folder))
    assert str(caught.value).count(". ") < 2
    assert not trap.exists()  # nothing is ever unpickled


@pytest.mark.parametrize("name", [name for name in data.catalogue() if data.about(name).has_files])
def test_a_missing_data_set_says_how_to_get_it_and_where_to_put_it(folder, name):
    with pytest.raises(FileNotFoundError, match=rf"{name} is not in {folder}") as caught:
        data.named(name, data_dir=str(folder))
    message = str(caught.value)
    assert "CALIB_JAX_DATA_DIR" in message
    assert "To get it: " in message
    assert len(message.replace(str(folder), "").split()) < 75


def test_a_damaged_image_of_a_stream_is_named(folder):
    tiny_photographs.cityscapes(folder)
    number = png(np.full(tiny_photographs.SIDE, 34))
    (folder / LABELS / f"{FRAME}_gtFine_labelIds.png").write_bytes(number)
    scenes = data.cityscapes(data_dir=str(folder), held_out=["ulm"])
    with pytest.raises(ValueError, match=r"has the label 34; labels must be 0 to 33 or 255"):
        scenes.validation[np.arange(1)]
    (folder / LEFT / f"{FRAME}_leftImg8bit.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"_leftImg8bit\.png cannot be read as an image"):
        scenes.validation[np.arange(1)]
    place = tiny_photographs.folders(folder)
    options = {"validation_per_class": 2, "size": 24, "resize": 28}
    test = data.imagenet(data_dir=str(folder), **options).test
    bad = next((place / "val").glob("*.JPEG"))
    bad.write_bytes(cut(bad.read_bytes()))
    with pytest.raises(ValueError, match=f"{bad.name} cannot be read as an image"):
        test[np.arange(12)]


def test_the_package_of_pieces_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    pieces = data.WordPiece(("[PAD]", "[UNK]", "[CLS]", "[SEP]"))
    for use in (lambda: pieces.pieces("a"), lambda: data.Subwords.of(["a"], 9)):
        with pytest.raises(ImportError, match=r"^texts in pieces need tokenizers: pip inst"):
            use()


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
    text = tmp_path / "text.gz"
    text.write_bytes(gzip.compress(bytes(99)))
    assert files.content(text, "a text", "get it", at_most=99) == bytes(99)
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


def test_a_file_is_compared_with_the_published_one(tmp_path):
    (path := tmp_path / "a").write_bytes(b"abc")
    md5 = "900150983cd24fb0d6963f7d28e17f72"  # RFC 1321
    published = Download(url="https://host/a", size=3, md5=md5)
    assert files.unlike(path, published) == ""
    assert files.unlike(path, dataclasses.replace(published, md5=None)) == ""
    assert "3 bytes and not 4" in files.unlike(path, dataclasses.replace(published, size=4))
    assert "and not 9" in files.unlike(path, dataclasses.replace(published, md5="9"))


def test_the_newest_version_of_tfds_is_read(folder):
    for version, size in (("3.0.2", 20), ("3.0.10", 3)):
        parts = {"train": tiny.examples("train"), "test": tiny.examples("test", size=size)}
        tiny.cifar10(folder, parts, version=version)
    (folder / "cifar10" / "3.1.0").mkdir()  # its preparation was interrupted
    assert len(data.cifar10(data_dir=str(folder)).test) == 3
