"""Refusals of the data room: missing, damaged and unfitting files, and options, each by name."""

import gzip
import os
import pickle

import jax
import jaxtyping
import numpy as np
import pytest
from PIL import Image

from calib_jax import data
from calib_jax.core.examples import InMemory
from tests.data import tiny, tiny_imagenet2012, tiny_scenes

PIXELS = np.zeros((30, 4, 5, 3), np.uint8)
LABELS = np.arange(30) % 3


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
    return tiny_scenes.png(np.asarray(pixels, np.uint8))


BATCHES, TINY = "cifar-10-batches-bin", "tiny-imagenet-200"
RECORDS = "cifar10/3.0.2/cifar10-test.array_record-00000-of-00001"
LEFT, GT = "cityscapes/leftImg8bit/train/ulm", "cityscapes/gtFine/val/munster"
KIT = "imagenet/ILSVRC2012_devkit_t12/data"
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
    ("multi30k", "multi30k/val.de.gz", zipped("a\nb\n"), r"has 2 lines and .*val\.en\.gz 5"),
    ("places_lt", "places_lt/Places_LT_val.txt", replaced(" 2\n", " 9\n"), "has the class 9, and "),
    ("own_images", "own_images/dog/1.png", cut, "dog/1.png cannot be read as an image"),
    (
        "own_texts",
        "own_texts.csv",
        b"text,label,split\na,0,train\nb,1,train\nA!,0,test\n",
        r"row 3 of .* \(test\) repeats the text of row 1 \(train\): keep each text in one",
    ),
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
    tiny_scenes.cityscapes(folder)
    (folder / LEFT / "ulm_000000_000019_leftImg8bit.png").write_bytes(b"no image")
    scenes = data.cityscapes(data_dir=str(folder), held_out=["ulm"])
    with pytest.raises(ValueError, match=r"_leftImg8bit\.png cannot be read as an image"):
        scenes.validation[np.arange(1)]
    place = tiny_imagenet2012.folders(folder)
    options = {"validation_per_class": 2, "size": 24, "resize": 28}
    test = data.imagenet(data_dir=str(folder), **options).test
    bad = next((place / "val").glob("*.JPEG"))
    bad.write_bytes(cut(bad.read_bytes()))
    with pytest.raises(ValueError, match=f"{bad.name} cannot be read as an image"):
        test[np.arange(12)]


def rows(*examples):
    return lambda: data.arrays_of(list(examples))


def of_arrays(labels=LABELS, inputs=PIXELS, **options):
    return lambda: data.from_arrays(inputs, labels, **options)


def of_csv(text):
    def load(folder):
        (tiny.own_images(folder) / "a.csv").write_text(text)
        return data.from_folder(str(folder / "own_images"), csv_file="a.csv")

    return load


def of_set(name, **options):
    def load(folder):
        WRITERS[name](folder)
        return data.named(name, data_dir=str(folder), **options)

    return load


KEY = jax.random.key(0)
GREY = Image.new("L", (3, 2))
REFUSED = [
    (lambda: data.named("digit"), "no data set is called 'digit'; did you mean 'digits'"),
    (lambda: data.split(10, validation=1.5), r"validation must lie in \[0, 1\], got 1.5"),
    (lambda: data.subset(InMemory(LABELS, LABELS), np.array([30])), "has 30 examples, got the ind"),
    (of_arrays(LABELS + 1), "the class '0' has 0 examples, .* number the labels from 0"),
    (of_arrays(inputs=np.zeros((30, 3, 8, 8), np.uint8)), "np.moveaxis.* puts the channels last"),
    (of_arrays(class_names=["a", "b"]), "the label 2 of example 2 must be one of the 2 classes"),
    (of_csv("file,label\ncat/0.png,a\ncat/0.png,b\n"), r"row 2 .*0.png again \(row 1\): list each"),
    (of_set("cifar10", source="folder"), "source must be one of 'tfds', 'official', got 'folder'"),
    (of_set("cityscapes", held_out=["ulmm"]), "held_out must be one of .*did you mean 'ulm'"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_bad_arguments_are_named(folder, monkeypatch, make, message):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for a user
    arguments = (folder,) if make.__code__.co_argcount else ()
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        make(*arguments)


def test_the_package_of_pieces_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    pieces = data.WordPiece(("[PAD]", "[UNK]", "[CLS]", "[SEP]"))
    for use in (lambda: pieces.pieces("a"), lambda: data.Subwords.of(["a"], 9)):
        with pytest.raises(ImportError, match=r"^texts in pieces need tokenizers: pip inst"):
            use()
