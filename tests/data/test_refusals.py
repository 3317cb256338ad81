"""Refusals of the data room: missing, damaged and unfitting files, and options, each by name."""

import contextlib
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
from calib_jax.data.splits import some_of_each
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
    ("cifar10", RECORDS, cut, "test in .*3.0.2 cannot be read"),
    ("cifar10", "cifar10/3.0.2/dataset_info.json", cut, "dataset_info.json cannot be read"),
    ("cifar10_binary", f"{BATCHES}/data_batch_3.bin", b"x" * 3072, "no whole records of 3,073"),
    (
        "cifar10_binary",
        f"{BATCHES}/test_batch.bin",
        b"\x0a" * 3073,
        r"example 0 of .*test_batch.bin .* has the label 10; labels must lie in \[0, 9\]",
    ),
    ("svhn", "svhn/test_32x32.mat", None, "has no test_32x32.mat: download http"),
    ("svhn", "svhn/train_32x32.mat", cut, "train_32x32.mat cannot be read as a MATLAB .* download"),
    ("cifar10_c", "CIFAR-10-C/labels.npy", pickled, "labels.npy cannot be read as an array"),
    ("tiny_imagenet", f"{TINY}/wnids.txt", b"n09\n", "names no classes"),
    ("tiny_imagenet", f"{TINY}/val/images/val_2.JPEG", cut, "val_2.JPEG cannot be read as an ima"),
    ("tiny_imagenet", f"{TINY}/val/val_annotations.txt", b"a\tn09\n", "line 1 of .* in place of"),
    ("imagenet", f"{KIT}/ILSVRC2012_validation_ground_truth.txt", cut, "lines for the 10 ima"),
    ("imagenet", f"{KIT}/meta.mat", cut, "meta.mat cannot be read as the classes"),
    ("imagenet", f"{KIT}/ILSVRC2012_validation_ground_truth.txt", None, "unpack ILSVRC2012_d"),
    ("camvid", "camvid/valannot/frame_9.png", None, "has no frame_9 in valannot: get"),
    ("camvid", "camvid/trainannot/frame_9.png", png(np.full((12, 16), 12)), "the label 12; labels"),
    ("camvid", "camvid/train/frame_9.png", png(np.zeros((9, 9, 3))), "9 x 9 pixels, and its label"),
    (
        "cityscapes",
        f"{GT}/munster_000000_000019_gtFine_labelIds.png",
        None,
        "no file of munster/mun",
    ),
    ("newsgroups", "newsgroups/20news-bydate.tar.gz", cut, "cannot be read as a whole .* archive"),
    ("sst", "sst/dev.txt.gz", zipped("(4 (2 a) (4 b))\n(4 (2 a) (4 b)\n"), "line 2: 1 bracket is"),
    ("sst", "sst/dev.txt.gz", zipped("(3 (2 a) (2 b) (2 c))"), "line 1: a node must hold one word"),
    ("sst", "sst/dev.txt.gz", zipped("(5 a)"), "line 1: the label '5' is none of 0 to 4"),
    ("sst", "sst/dev.txt.gz", zipped("\n \n"), "holds no tree: download"),
    ("banking77", "banking77/train.csv", replaced("category", "label"), "text, label, without cat"),
    ("banking77", "banking77/test.csv", replaced("intent_00", "?"), "query 0 of the test .*'?', w"),
    ("clinc150", "clinc150/data_full.json.gz", zipped('{"train": [["a", 3]]}'), "is no .query, in"),
    ("multi30k", "multi30k/val.de.gz", zipped("a\nb\n"), r"has 2 lines and .*val\.en\.gz 5"),
    ("places_lt", "places_lt/Places_LT_val.txt", b"a.jpg x\n", "line 1, must be a photograph and"),
    ("places_lt", "places_lt/Places_LT_val.txt", b"../a.jpg 0\n", "does not have it: unpack the"),
    ("places_lt", "places_lt/Places_LT_val.txt", replaced(" 2\n", " 9\n"), "has the class 9, and "),
    ("inaturalist2018", "inaturalist2018/val2018.json", replaced('"images"', '"i"'), "no list im"),
    (
        "inaturalist2018",
        "inaturalist2018/train2018.json",
        replaced('"category_id": 2', '"category_id": 7'),
        r"category_id must lie in \[0, 2\]",
    ),
    ("own_images", "own_images/dog/1.png", cut, "dog/1.png cannot be read as an image"),
    ("own_texts", "own_texts.csv", b"text,class\na,b\n", "are text, class, without label"),
    ("own_texts", "own_texts.csv", b"text,label\na,b,c\n", "own_texts.csv cannot be read .*Length"),
    ("own_texts", "own_texts.csv", b"text,label\na,b\n ,c\n", "row 2 of .* has the text ''"),
    ("own_texts", "own_texts.csv", b"text,label,split\na,b,held\n", "row 1 .* the split 'held'"),
    ("own_texts", "own_texts.csv", b"text,label\na,b\nc,d\n", "'b' has 1 examples, and needs 3"),
    ("own_texts", "own_texts.csv", "text,label\né,b".encode("latin-1"), "is not in UTF-8"),
    (
        "own_texts",
        "own_texts.csv",
        b"text,label,split\na,0,train\nb,1,train\nA!,0,test\n",
        r"row 3 of .* \(test\) repeats the text of row 1 \(train\): keep each text in one",
    ),
    ("vectors", "vectors/record.json", cut, "record.json cannot be read"),
    ("vectors", "vectors/test_labels.npy", cut, "test_labels.npy cannot be read"),
    ("wmt14", "wmt14_translate/de-en/1.0.0/dataset_info.json", cut, "dataset_info.json cannot be"),
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


def of_folder(**options):
    return lambda folder: data.from_folder(
        str(tiny.own_images(folder)), height=4, width=4, **options
    )


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
    (lambda: data.digits(training_size=1700), "1797 .*training_size=1700, validation_size=297"),
    (lambda: data.digits(label_noise=15), r"label_noise must lie in \[0, 1\], got 15"),
    (lambda: data.gaussians(means="pair", num_classes=3), "2 classes in 2 dimensions, got num_cl"),
    (lambda: data.gaussians().posterior(np.zeros((4, 3))), r"2 dimensions, got \(4, 3\)"),
    (lambda: data.random_crop(padding=-1), "padding must be at least 0, got -1"),
    (lambda: data.random_flip(probability=2), r"probability must lie in \[0, 1\], got 2"),
    (lambda: data.mixup(0), "alpha must be greater than 0, got 0"),
    (lambda: data.random_flip()(KEY, np.ones((2, 3, 3, 1))), "random_flip: .* give one image, and"),
    (lambda: data.random_zoom()(KEY, {"image": np.ones((3, 3))}), "random_zoom: .*, got dict"),
    (lambda: data.split(10, validation=1.5), r"validation must lie in \[0, 1\], got 1.5"),
    (lambda: data.subset(InMemory(LABELS, LABELS), np.array([30])), "has 30 examples, got the ind"),
    (lambda: some_of_each(np.array([0, 0, 1]), "ab", 1, name="pets"), "nothing of the class b"),
    (lambda: data.long_tailed(LABELS, 3, factor=20), "a factor of 20 leaves no example of class 2"),
    (lambda: data.gaussian_noise(InMemory(PIXELS, LABELS), severity=6), r"lie in \[1, 5\], got 6"),
    (lambda: data.gaussian_noise(InMemory(LABELS, LABELS)), "must be images"),
    (lambda: data.Vocabulary(("a",)).numbers("a b", 3), "numbers takes words, got the text 'a b'"),
    (lambda: data.Vocabulary.of(["a b"], 3), "of takes the words of each text, got the text 'a b'"),
    (lambda: data.Subwords.of("a b", 20), "of takes sentences, got the text 'a b'"),
    (lambda: data.Subwords.of(["abc"], 7), "size must be at least 8, because the sent.*, got 7"),
    (lambda: data.WordPiece(("[PAD]", "[UNK]", "[CLS]")), r"must have the piece \[SEP\]; get"),
    (of_arrays(LABELS + 1), "the class '0' has 0 examples, .* number the labels from 0"),
    (of_arrays(LABELS - 1), "the label -1 of example 0 must be one of the 2 classes, 0 to 1"),
    (of_arrays(LABELS[:29]), r"one entry for each example, got inputs .*\(30, 4, 5, 3\)"),
    (of_arrays(np.zeros(30, int)), "class names must be two or more"),
    (of_arrays(inputs=np.zeros((30, 3, 8, 8), np.uint8)), "np.moveaxis.* puts the channels last"),
    (of_arrays(validation=0.0), "validation must be above 0|validation must be greater than 0"),
    (of_arrays(validation=0.6, test=0.5), "must leave examples to train on, .* sum to 1.1"),
    (of_arrays(validation=(PIXELS / 1, LABELS)), "validation: inputs must be uint8 .*got float64"),
    (of_arrays(test="half"), "test must be a fraction or a pair .*got str 'half'"),
    (of_arrays(class_names=["a", "b"]), "the label 2 of example 2 must be one of the 2 classes"),
    (rows((GREY, 0), (Image.new("L", (4, 2)), 1)), "one shape, got .*; size=.height, width. res"),
    (lambda: data.arrays_of({"train": []}), "got a dict: give one entry of a mapping"),
    (lambda: data.arrays_of([(GREY, 0)], channels_first=True), "leave out channels_first"),
    (of_folder(augment="turn"), "augment must be one of 'none', .* got 'turn'"),
    (of_folder(channels=4), "channels must be 3 for colour or 1 for grey, got 4"),
    (of_csv("file,label\ncat/0.png,a\ncat/0.png,b\n"), r"row 2 .*0.png again \(row 1\): list each"),
    (of_csv("file,label\ncat/77.png,a\n"), "row 1 .*77.png, which does not exist; paths start in"),
    (of_set("cifar10", validation=1.0), "no example is left for training: validation=1.0"),
    (of_set("cifar10", source="folder"), "source must be one of 'tfds', 'official', got 'folder'"),
    (of_set("cifar10_c", corruption="fogg"), "did you mean 'fog'"),
    (of_set("cifar10_c", severity=0), r"severity must lie in \[1, 5\], got 0"),
    (of_set("tiny_imagenet", validation_per_class=60), r"must lie in \[1, 59\], .* got 60"),
    (of_set("imagenet", size=300), "resize must be at least 300, got 256"),
    (of_set("camvid", height=4), "give both height and width, or neither; got height=4"),
    (of_set("cityscapes", held_out=["ulmm"]), "held_out must be one of .*did you mean 'ulm'"),
    (of_set("cityscapes", scales=[]), "scales must be factors above 0"),
    (of_set("newsgroups", strip=("header",)), "strip must be one of .*got 'header'"),
    (of_set("newsgroups", vectors="a", pieces="b"), "give pieces or vectors, not both"),
    (of_set("sst", leaves=5), "leaves must be at least .*, got 5"),
    (of_set("multi30k", words=9), "words must be at least .*, because .*, got 9"),
    (of_set("vectors", encoder="other"), "by the encoder tiny, and encoder asks for"),
    (of_set("own_texts", classes=("good", "bad")), "has the label 'mixed', which is none of the"),
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


@contextlib.contextmanager
def content(path, text):
    path.write_bytes(text)
    yield path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a 1 2\nb 1\n", "line 2 holds 1 numbers and not 2"),
        (b"a 1 2\nb 1 x\n", "line 2 holds '1' ..., which are no numbers"),
        (b"a 1 nan\n", "line 1 holds a number that is not finite"),
        (b"", "is empty"),
    ],
)
def test_damaged_word_vectors_are_refused_by_line(tmp_path, text, message):
    with content(tmp_path / "v.txt", text) as path, pytest.raises(ValueError, match=message):
        data.read_vectors(path, ["a", "b"])
