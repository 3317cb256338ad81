"""Tiny data sets in the layout of the real ones, for tests that need files.

`write(folder)` makes one of every data set of the catalogue that is read from files; a new one
adds its writer to WRITERS.
"""

import csv
import functools
import gzip
import io
import json
import pathlib
import tarfile
import zipfile

import numpy as np
import scipy.io
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from calib_jax.data.sets.newsgroups import GROUPS
from tests.data import tiny_photographs


def banking77(folder):
    """Write two questions to train and one to test of each of the 77 intents."""
    place = pathlib.Path(folder) / "banking77"
    place.mkdir(exist_ok=True)
    for part, count in (("train", 2), ("test", 1)):
        with (place / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "category"])
            for intent in range(77):
                for k in range(count):
                    rows.writerow([f'My "card {intent}",\nword {k}?', f"intent_{intent:02d}"])
    return place


def clinc150(folder, parts=None):
    """Write queries of 150 intents, and out-of-scope queries, in one gzipped JSON file."""
    place = pathlib.Path(folder) / "clinc150"
    place.mkdir(exist_ok=True)
    stored = {}
    for part, count in (("train", 2), ("val", 1), ("test", 1)):
        stored[part] = [
            [f"{part} word {intent} {k}", f"intent_{intent:03d}"]
            for intent in range(150)
            for k in range(count)
        ]
        stored[f"oos_{part}"] = [[f"space {part} {k}", "oos"] for k in range(3)]
    path = place / "data_full.json.gz"
    path.write_bytes(gzip.compress(json.dumps(stored if parts is None else parts).encode()))
    return path


def vectors(folder, name="vectors", *, classes=3, texts="banking77", encoder="tiny"):
    """Write a folder of experiments.embed, with vectors around the mean of their class."""
    place = pathlib.Path(folder) / name
    place.mkdir()
    generator = np.random.default_rng(0)
    parts = {}
    for part, count in (("train", 30), ("validation", 12), ("test", 20)):
        labels = np.arange(count, dtype=np.int32) % classes
        noise = 0.3 * generator.standard_normal((count, 4))
        np.save(place / f"{part}.npy", (np.eye(4)[labels] + noise).astype(np.float32))
        np.save(place / f"{part}_labels.npy", labels)
        parts[part] = {"count": count, "width": 4, "weights": False}
    record = {
        "texts": {"name": texts, "options": "", "digest": "1" * 64},
        "encoder": {"name": encoder, "digest": "2" * 64},
        "class_names": [f"intent {k}" for k in range(classes)],
        "parts": parts,
    }
    (place / "record.json").write_text(json.dumps(record))
    return place


SIZES = {"train": 40, "test": 20}


def examples(part, *, size=None, classes=10):
    """Images and labels as their authors publish them: random, every class as often."""
    size = SIZES[part] if size is None else size
    generator = np.random.default_rng([0, len(part)])
    images = generator.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
    return images, generator.permutation(np.arange(size) % classes).astype(np.int32)


def tfds_images(
    folder,
    name="cifar10",
    parts=None,
    *,
    version="3.0.2",
    features=("id", "image", "label"),
    numbered=True,
):
    """Write images and labels as TFDS does: as PNG, in records, shuffled, with numbered ids."""
    parts = {part: examples(part) for part in SIZES} if parts is None else parts
    place = pathlib.Path(folder) / name / version
    place.mkdir(parents=True)
    known = {
        "id": tfds.features.Text(),
        "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
        "label": tfds.features.ClassLabel(num_classes=100),
        "coarse_label": tfds.features.ClassLabel(num_classes=20),
    }
    tfds.features.FeaturesDict({feature: known[feature] for feature in features}).save_config(place)
    for part, (images, labels) in parts.items():
        path = place / f"{name}-{part}.array_record-00000-of-00001"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for number in np.random.default_rng(7).permutation(len(labels)):
            record = {
                "id": f"{part}_{number:05d}" if numbered else "an image",
                "image": coded(images[number], "PNG"),
                "label": int(labels[number]),
                "coarse_label": int(labels[number]) // 5,
            }
            writer.write(_serialised({feature: record[feature] for feature in features}))
        writer.close()
    sizes = {part: len(labels) for part, (_, labels) in parts.items()}
    tfds_about(place, name, sizes, version=version)
    return place


def tfds_about(place, name, sizes, *, version="1.0.0"):
    """Write what TFDS writes about a data set: the name, the form and the sizes of its parts."""
    text = {
        "name": name,
        "version": version,
        "fileFormat": "array_record",
        "splits": [
            {
                "name": part,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(size)],
                "numBytes": "1",
            }
            for part, size in sizes.items()
        ],
    }
    (place / "dataset_info.json").write_text(json.dumps(text), encoding="utf-8")


def cifar10(folder, parts=None, **options):
    """Write CIFAR-10 as TFDS does."""
    return tfds_images(folder, "cifar10", parts, **options)


def coded(image, form):
    """Encode one image."""
    return _coded(image.tobytes(), image.shape, form)


@functools.lru_cache(maxsize=1)  # for many that are the same
def _coded(pixels, shape, form):
    stream = io.BytesIO()
    Image.fromarray(np.frombuffer(pixels, np.uint8).reshape(shape)).save(stream, form)
    return stream.getvalue()


def _serialised(record):
    example = tf_example_pb2.Example()
    for name, value in record.items():
        feature = example.features.feature[name]
        if isinstance(value, int):
            feature.int64_list.value.append(value)
        else:
            feature.bytes_list.value.append(value.encode() if isinstance(value, str) else value)
    return example.SerializeToString()


def records(images, labels, coarse=None):
    """Make the bytes of CIFAR's binary form: labels, then all of red, of green, and of blue."""
    content = b""
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        before = [] if coarse is None else [coarse[number]]
        planes = [image[:, :, channel].tobytes() for channel in range(3)]
        content += bytes([*before, label]) + b"".join(planes)
    return content


def cifar10_binary(folder, parts=None):
    """Write CIFAR-10 as its authors do, in five files and one."""
    parts = {part: examples(part) for part in SIZES} if parts is None else parts
    place = pathlib.Path(folder) / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    images, labels = parts["train"]
    batches = zip(np.array_split(images, 5), np.array_split(labels, 5), strict=True)
    for number, batch in enumerate(batches, 1):
        (place / f"data_batch_{number}.bin").write_bytes(records(*batch))
    (place / "test_batch.bin").write_bytes(records(*parts["test"]))
    return place


def cifar100(folder):
    """Write CIFAR-100 as its authors do."""
    place = pathlib.Path(folder) / "cifar-100-binary"
    place.mkdir(parents=True)
    for part in SIZES:
        images, labels = examples(part, classes=100)
        content = records(images, labels, coarse=99 - labels)
        (place / f"{part}.bin").write_bytes(content)
    return place


def svhn(folder):
    """Write SVHN as its authors do: in MATLAB's form, where 0 has the label 10."""
    place = pathlib.Path(folder) / "svhn"
    place.mkdir(parents=True)
    for part in SIZES:
        images, labels = examples(part)
        pixels, digits = np.moveaxis(images, 0, -1), np.where(labels, labels, 10)[:, None]
        content = {"X": pixels, "y": digits.astype(np.uint8)}
        scipy.io.savemat(place / f"{part}_32x32.mat", content, do_compression=True)
    return place


def cifar10_c(folder):
    """Write CIFAR-10-C as its authors do: five severities one after the other in each file."""
    place = pathlib.Path(folder) / "CIFAR-10-C"
    place.mkdir(parents=True)
    images, labels = examples("test")
    np.save(place / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    for name in ("gaussian_noise", "fog"):
        np.save(place / f"{name}.npy", corrupted(images, name))
    return place


def corrupted(images, name):
    """Corrupt images five times, the more severely the later."""
    steps = 1 if name == "fog" else 20
    return np.concatenate([images // 2 + steps * severity for severity in range(1, 6)])


WNIDS = ("n01641577", "n01443537", "n01629819")  # in no order, as in the real file


def tiny_imagenet(folder):
    """Write Tiny-ImageNet as its authors do; return what was written, by the name of its file."""
    place = pathlib.Path(folder) / "tiny-imagenet-200"
    place.mkdir(parents=True)
    (place / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (place / "words.txt").write_text(
        "n01443537\tgoldfish, Carassius\nn01629819\tsalamander\nn01641577\tbullfrog\n"
    )
    generator = np.random.default_rng(3)
    written = {}

    def image(name, grey=False):
        side = (64, 64) if grey else (64, 64, 3)
        content = coded(generator.integers(0, 256, side, dtype=np.uint8), "JPEG")
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
        with Image.open(io.BytesIO(content)) as opened:
            written[name] = np.asarray(opened.convert("RGB"))

    for wnid in WNIDS:
        for number in range(60):
            image(f"train/{wnid}/images/{wnid}_{number}.JPEG", grey=number == 7)
    lines = []
    for number, wnid in enumerate(WNIDS * 2):
        image(f"val/images/val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    (place / "val" / "val_annotations.txt").write_text("".join(lines))
    return written


def word_pieces(folder):
    """Write a vocabulary of BERT: letters, and some words of the tiny messages."""
    letters = [chr(number) for number in range(ord("a"), ord("z") + 1)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), "word", "space", "yes"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return folder


def message(group, number):
    """Write a message of 1993: headers, words that tell the group, a quote and a signature."""
    words = " ".join(f"word{number % 7} {group.rpartition('.')[2]}" for _ in range(3 + number % 5))
    text = f"From: a@b\nSubject: {number}\n\nC writes:\n> Caf\xe9?\n{words}, yes.\n--\nA. B.\n"
    return text.encode("latin-1")


def newsgroups(folder, changes=None):
    """Write the messages of each group as the packed by-date version; `changes` replaces some."""
    messages = {
        f"20news-bydate-{part}/{group}/{9 + number}": message(group, number)
        for part, size in {"train": 6, "test": 2}.items()
        for group in GROUPS
        for number in range(size)
    }
    kept = {name: text for name, text in (messages | (changes or {})).items() if text is not None}
    return packed(pathlib.Path(folder) / "newsgroups" / "20news-bydate.tar.gz", kept)


def newsgroups_19997(folder):
    """Write messages in the layout of the original version, which has one part."""
    messages = {
        f"packed/20_newsgroups/{group}/{9 + number}": message(group, number)
        for group in GROUPS
        for number in range(8)
    }
    packed(pathlib.Path(folder) / "newsgroups_19997" / "20news-19997.tar.gz", messages)


def packed(path, members):
    """Write a .zip, .tar, .tar.gz or .tar.xz of files with these contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return path
    with tarfile.open(path, "w:" + path.suffix.strip(".").replace("tar", "")) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def tree(drawn, size):
    """Draw a tree of some words in brackets."""
    label = drawn.integers(5)
    if size == 1:
        return f"({label} {drawn.choice(['good', 'bad', 'a', 'film', 'very'])})"
    left = int(drawn.integers(1, size))
    return f"({label} {tree(drawn, left)} {tree(drawn, size - left)})"


def sst(folder):
    """Write the three files of trees."""
    place = pathlib.Path(folder) / "sst"
    place.mkdir(parents=True)
    for seed, (name, size) in enumerate({"train": 60, "dev": 20, "test": 20}.items()):
        drawn = np.random.default_rng(seed)
        lines = [tree(drawn, int(drawn.integers(1, 12))) for _ in range(size)]
        (place / f"{name}.txt.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return place


def camvid(folder, side=(12, 16)):
    """Write a few road scenes as the folders of CamVid; return the pairs by part and name."""
    generator = np.random.default_rng(4)
    pairs = {}
    for part, count in {"train": 6, "val": 3, "test": 4}.items():
        for number in range(count):
            image = generator.integers(0, 256, (*side, 3), dtype=np.uint8)
            label_map = generator.integers(0, 12, side, dtype=np.uint8)
            for kind, pixels in (("", image), ("annot", label_map)):
                place = pathlib.Path(folder) / "camvid" / f"{part}{kind}"
                place.mkdir(parents=True, exist_ok=True)
                (place / f"frame_{9 + number}.png").write_bytes(coded(pixels, "PNG"))
            pairs[part, f"frame_{9 + number}"] = image, label_map
    return pairs


GERMAN = {
    **{"a": "ein", "dog": "Hund", "cat": "Kater", "man": "Mann", "bush": "Busch"},
    **{"runs": "rennt", "sees": "sieht", "eats": "isst", "and": "und", "green": "gr\u00fcner"},
}


def sentences(count, seed=0):
    """Draw sentences in German and in English, word by word."""
    drawn = np.random.default_rng(seed)
    words = [drawn.choice(list(GERMAN), size=drawn.integers(2, 8)).tolist() for _ in range(count)]
    german = [" ".join(GERMAN[word] for word in line) + "." for line in words]
    return german, [" ".join(line) + "." for line in words]


def multi30k(folder):
    """Write the six files of Multi30k."""
    place = pathlib.Path(folder) / "multi30k"
    place.mkdir(parents=True)
    for seed, (name, count) in enumerate({"train": 30, "val": 5, "test_2016_flickr": 7}.items()):
        for language, lines in zip(("de", "en"), sentences(count, seed), strict=True):
            content = ("\n".join(lines) + "\n").encode()
            (place / f"{name}.{language}.gz").write_bytes(gzip.compress(content))
    return place


def wmt14(folder):
    """Write WMT 2014 as TFDS does, with an empty line in the training part."""
    place = pathlib.Path(folder) / "wmt14_translate" / "de-en" / "1.0.0"
    place.mkdir(parents=True)
    tfds.features.Translation(languages=("de", "en")).save_config(place)
    sizes = {"train": 30, "validation": 5, "test": 7}
    for seed, (part, count) in enumerate(sizes.items()):
        german, english = sentences(count, seed)
        if part == "train":
            german[3] = ""
        path = place / f"wmt14_translate-{part}.array_record-00000-of-00001"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for pair in zip(german, english, strict=True):
            writer.write(_serialised(dict(zip(("de", "en"), pair, strict=True))))
        writer.close()
    tfds_about(place, "wmt14_translate", sizes)
    return place


def own_images(folder, counts=None):
    """Write images of several sizes, in a folder for each class."""
    place = pathlib.Path(folder) / "own_images"
    generator = np.random.default_rng(0)
    for number, (name, count) in enumerate((counts or {"cat": 6, "dog": 5, "newt": 4}).items()):
        (place / name).mkdir(parents=True)
        for k in range(count):
            level = 60 * number + generator.integers(0, 60, (9 + k, 12, 3), dtype=np.uint8)
            Image.fromarray(level).save(place / name / f"{k}.png")
    return place


def own_texts(folder, count=60):
    """Write texts of three classes in a CSV file, each with the name of its class and a number."""
    names = ("good", "bad", "mixed")
    lines = [f'"It was {names[k % 3]}, order {k}",{names[k % 3]}' for k in range(count)]
    path = pathlib.Path(folder) / "own_texts.csv"
    path.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    return path


WRITERS = {
    "banking77": banking77,
    "camvid": camvid,
    "cifar10": cifar10,
    "cifar10_c": cifar10_c,
    "cifar100": cifar100,
    "cityscapes": tiny_photographs.cityscapes,
    "clinc150": clinc150,
    "imagenet": tiny_photographs.imagenet,
    "inaturalist2018": tiny_photographs.inaturalist2018,
    "multi30k": multi30k,
    "newsgroups": newsgroups,
    "newsgroups_19997": newsgroups_19997,
    "own_images": own_images,
    "own_texts": own_texts,
    "places_lt": tiny_photographs.places_lt,
    "sst": sst,
    "svhn": svhn,
    "synthia": tiny_photographs.synthia,
    "tiny_imagenet": tiny_imagenet,
    "vectors": vectors,
    "wmt14": wmt14,
}


def write(folder):
    """Write a tiny one of every data set that has files."""
    folder.mkdir(parents=True, exist_ok=True)
    for writer in WRITERS.values():
        writer(folder)
