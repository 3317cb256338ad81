"""A tiny ImageNet in all the forms of the real one; see `tiny.py`.

Three classes of files with names, sizes and order of their own; `photographs` says what is in
them.
"""

import io
import json
import pathlib

import numpy as np
import scipy.io
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

CLASSES = ("n01440764", "n01443537", "n02084071")
IN_DEVKIT = (CLASSES[1], CLASSES[2], CLASSES[0])  # whose order is not alphabetic
TRAIN, VAL = 8, 4  # of each class


def photograph(number, width=None, height=None):
    """A JPEG file of a wavy picture, in colours that depend on the number."""
    random = np.random.default_rng(number)
    width = int(random.integers(40, 90)) if width is None else width
    height = int(random.integers(40, 90)) if height is None else height
    y, x = np.mgrid[:height, :width] / 10.0
    waves = [np.sin(a * x + b * y + c) for a, b, c in random.uniform(-2, 2, (3, 3))]
    coded = io.BytesIO()
    Image.fromarray((127 + 120 * np.stack(waves, -1)).astype(np.uint8)).save(coded, "JPEG")
    return coded.getvalue()


def train_files():
    """The name of each training file, its class, and its content, in the order of the library."""
    return [
        (f"{name}_{10 * k + 2}.JPEG", label, photograph(100 * label + k))
        for label, name in enumerate(CLASSES)
        # By name: _12 comes before _2.
        for k in sorted(range(TRAIN), key=lambda k, name=name: f"{name}_{10 * k + 2}.JPEG")
    ]


def val_files():
    """The same of the validation files, whose names do not tell the class."""
    files = []
    for number in range(VAL * len(CLASSES)):
        label = (5 * number + 1) % len(CLASSES)
        files.append((f"ILSVRC2012_val_{number + 1:08d}.JPEG", label, photograph(1000 + number)))
    return sorted(files, key=lambda file: file[1])


def folders(place, *, truth=None):
    """Write the official folders; `truth` is None for val/<class>/, or "devkit", or "kaggle"."""
    place = pathlib.Path(place) / "imagenet"
    for name, label, content in train_files():
        put(place / "train" / CLASSES[label] / name, content)
    files = val_files()
    for name, label, content in files:
        folder = place / "val" if truth else place / "val" / CLASSES[label]
        put(folder / name, content)
    if truth == "kaggle":
        rows = [f"{name[:-5]},{CLASSES[label]} 1 2 3 4 " for name, label, _ in files]
        put(place / "LOC_val_solution.csv", "\n".join(["ImageId,PredictionString", *rows]).encode())
    if truth == "devkit":
        devkit = place / "ILSVRC2012_devkit_t12" / "data"
        lines = [1 + IN_DEVKIT.index(CLASSES[label]) for _, label, _ in sorted(files)]
        text = "\n".join(map(str, lines)) + "\n"
        put(devkit / "ILSVRC2012_validation_ground_truth.txt", text.encode())
        table = np.zeros(4, [("ILSVRC2012_ID", object), ("WNID", object)])  # one is no leaf
        table["ILSVRC2012_ID"], table["WNID"] = [1, 2, 3, 4], [*IN_DEVKIT, "n00001740"]
        scipy.io.savemat(devkit / "meta.mat", {"synsets": table})
    return place


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def records(place, *, version="5.1.0", classes=CLASSES):
    """Write records as TFDS does: shuffled, in several files."""
    place = pathlib.Path(place) / "imagenet2012" / version
    place.mkdir(parents=True)
    features = tfds.features.FeaturesDict(
        {
            "file_name": tfds.features.Text(),
            "image": tfds.features.Image(encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(names=list(classes)),
        }
    )
    features.save_config(place)
    splits = []
    for part, files in (("train", train_files()), ("validation", val_files())):
        order = np.random.default_rng(3).permutation(len(files))
        shards = np.array_split(order, 2)
        for number, rows in enumerate(shards):
            path = place / f"imagenet2012-{part}.array_record-{number:05d}-of-00002"
            writer = ArrayRecordWriter(str(path), "group_size:1")
            for row in rows:
                writer.write(_record(*files[row]))
            writer.close()
        splits.append(
            {
                "name": part,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(rows)) for rows in shards],
                "numBytes": "1",
            }
        )
    about = {
        "name": "imagenet2012",
        "version": version,
        "fileFormat": "array_record",
        "splits": splits,
    }
    (place / "dataset_info.json").write_text(json.dumps(about), encoding="utf-8")
    return place


def _record(name, label, content):
    example = tf_example_pb2.Example()
    example.features.feature["file_name"].bytes_list.value.append(name.encode())
    example.features.feature["image"].bytes_list.value.append(content)
    example.features.feature["label"].int64_list.value.append(label)
    return example.SerializeToString()


def imagenet(folder):
    """Write what the tests of all data sets read: classes large enough for the default split."""
    for label, name in enumerate(CLASSES[:2]):
        content = photograph(label, 24, 18)
        for number in range(60):
            put(pathlib.Path(folder) / "imagenet" / "train" / name / f"{number}.JPEG", content)
        for number in range(5):
            put(pathlib.Path(folder) / "imagenet" / "val" / name / f"{number}.JPEG", content)
