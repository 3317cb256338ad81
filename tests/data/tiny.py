"""Tiny data sets in the layout of the real ones, for tests that need files.

`write(folder)` makes one of every data set of the catalogue that is read from files; a new one
adds its writer to WRITERS.
"""

import io
import json
import pathlib

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from tests.data import tiny_imagenet2012

SIZES = {"train": 40, "test": 20}


def examples(part, *, size=None, classes=10, side=32, seed=0):
    """Images and labels as their authors publish them: random, every class as often."""
    size = SIZES[part] if size is None else size
    generator = np.random.default_rng([seed, len(part)])
    images = generator.integers(0, 256, (size, side, side, 3), dtype=np.uint8)
    return images, generator.permutation(np.arange(size) % classes).astype(np.int32)


def cifar10(folder, parts=None, *, version="3.0.2", numbered=True, **about):
    """Write images and labels as TFDS does: as PNG in array_record, shuffled, with numbered ids."""
    parts = {part: examples(part) for part in SIZES} if parts is None else parts
    place = pathlib.Path(folder) / "cifar10" / version
    place.mkdir(parents=True)
    features = tfds.features.FeaturesDict(
        {
            "id": tfds.features.Text(),
            "image": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
    )
    features.save_config(place)
    for part, (images, labels) in parts.items():
        path = place / f"cifar10-{part}.array_record-00000-of-00001"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for number in np.random.default_rng(7).permutation(len(labels)):
            name = f"{part}_{number:05d}" if numbered else "an image"
            writer.write(_record(name, images[number], labels[number]))
        writer.close()
    text = {
        "name": "cifar10",
        "version": version,
        "fileFormat": "array_record",
        "splits": [
            {
                "name": part,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(labels))],
                "numBytes": "1",
            }
            for part, (_, labels) in parts.items()
        ],
    }
    (place / "dataset_info.json").write_text(json.dumps(text | about), encoding="utf-8")
    return place


def _record(name, image, label):
    coded = io.BytesIO()
    Image.fromarray(image).save(coded, "PNG")
    example = tf_example_pb2.Example()
    example.features.feature["id"].bytes_list.value.append(name.encode())
    example.features.feature["image"].bytes_list.value.append(coded.getvalue())
    example.features.feature["label"].int64_list.value.append(int(label))
    return example.SerializeToString()


WRITERS = {"cifar10": cifar10, "imagenet": tiny_imagenet2012.imagenet}


def write(folder):
    """Write a tiny one of every data set that has files."""
    for writer in WRITERS.values():
        writer(folder)
