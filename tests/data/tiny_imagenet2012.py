"""A tiny ImageNet in all the forms of the real one; see `tiny.py`.

Three classes of files with names, sizes and order of their own; `photographs` says what is in
them.
"""

import io
import pathlib

import numpy as np
import scipy.io
from PIL import Image

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


def folders(place):
    """Write the official folders of photographs, and the development kit."""
    place = pathlib.Path(place) / "imagenet"
    for name, label, content in train_files():
        put(place / "train" / CLASSES[label] / name, content)
    validated(place, {name: (label, content) for name, label, content in val_files()})
    return place


def validated(place, files):
    """Write the validation photographs, and their classes as the development kit does."""
    for name, (_, content) in files.items():
        put(place / "val" / name, content)
    devkit = place / "ILSVRC2012_devkit_t12" / "data"
    lines = [1 + IN_DEVKIT.index(CLASSES[files[name][0]]) for name in sorted(files)]
    text = "\n".join(map(str, lines)) + "\n"
    put(devkit / "ILSVRC2012_validation_ground_truth.txt", text.encode())
    table = np.zeros(4, [("ILSVRC2012_ID", object), ("WNID", object)])  # one is no leaf
    table["ILSVRC2012_ID"], table["WNID"] = [1, 2, 3, 4], [*IN_DEVKIT, "n00001740"]
    scipy.io.savemat(devkit / "meta.mat", {"synsets": table})


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def imagenet(folder):
    """Write a set whose classes are large enough for the default split."""
    place = pathlib.Path(folder) / "imagenet"
    for label, name in enumerate(CLASSES[:2]):
        for number in range(60):
            put(place / "train" / name / f"{number}.JPEG", photograph(label, 24, 18))
    files = {f"{k:02d}.JPEG": (k % 2, photograph(k % 2, 24, 18)) for k in range(10)}
    validated(place, files)
