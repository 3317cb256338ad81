"""Tiny photographs and road scenes in the layout of the real ones: see `tiny.py`."""

import io
import json
import pathlib
import struct
import zlib

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


CITIES = {
    "train": ("aachen", "bremen", "tubingen", "ulm", "zurich"),
    "val": ("frankfurt", "munster"),
}
SIDE = (12, 24)


def png(pixels):
    """Encode an image of 8 bits as PNG."""
    coded = io.BytesIO()
    Image.fromarray(pixels).save(coded, "PNG")
    return coded.getvalue()


def png_of_16_bits(pixels):
    """Encode `[height, width, 3]` uint16 as PNG, which Pillow cannot write, row by row."""

    def chunk(kind, content):
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def cityscapes(folder, count=3):
    """Write the official folders of Cityscapes.

    Return the frames: the part, the name, the image and the published label map.
    """
    place = pathlib.Path(folder) / "cityscapes"
    generator = np.random.default_rng(5)
    values = np.array([*range(34), 255])
    frames = []
    for part, cities in CITIES.items():
        for city in cities:
            for number in range(count):
                image = generator.integers(0, 256, (*SIDE, 3), dtype=np.uint8)
                labels = generator.choice(values, SIDE).astype(np.uint8)
                frame = f"{city}_00000{number}_000019"
                frames.append((part, frame, image, labels))
                for kind, ending, pixels in (
                    ("leftImg8bit", "leftImg8bit", image),
                    ("gtFine", "gtFine_labelIds", labels),
                ):
                    put(place / kind / part / city / f"{frame}_{ending}.png", png(pixels))
    return frames


def synthia(folder, count=10):
    """Write a sequence of SYNTHIA; return the image and the class numbers of each path."""
    place = pathlib.Path(folder) / "synthia" / "SYNTHIA-SEQS-05-SUMMER"
    generator = np.random.default_rng(6)
    frames = {}
    for view in ("Omni_B", "Omni_F"):
        for number in range(count):
            image = generator.integers(0, 256, (*SIDE, 3), dtype=np.uint8)
            label_map = generator.integers(0, 16, (*SIDE, 3)).astype(np.uint16)
            label_map[..., 1] += 1000  # the number of the object
            frame = f"Stereo_Left/{view}/{number:06d}.png"
            put(place / "RGB" / frame, png(image))
            put(place / "GT/LABELS" / frame, png_of_16_bits(label_map))
            frames[frame] = image, label_map[..., 0]
    return frames


def places_lt(folder):
    """Write the lists of Places-LT and the photographs that they name; return the lines."""
    place = pathlib.Path(folder) / "places_lt"
    counts = {"train": (9, 4, 2), "val": (2, 2, 2), "test": (3, 3, 3)}
    kinds = ("a/airfield", "b/beach", "z/zoo")
    lines = {}
    for part, sizes in counts.items():
        lines[part] = []
        for label, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
            for number in range(size):
                name = f"data_256/{kind}/{part}{number:08d}.jpg"
                if part == "test":
                    name = f"val_256/Places365_val_{3 * number + label:08d}.jpg"
                put(place / name, photograph(100 * label + number))
                lines[part].append(f"{name} {label}")
        np.random.default_rng(3).shuffle(lines[part])
        put(place / f"Places_LT_{part}.txt", ("\n".join(lines[part]) + "\n").encode())
    return lines


def inaturalist2018(folder):
    """Write the lists of iNaturalist 2018 and its photographs; return the class of each."""
    place = pathlib.Path(folder) / "inaturalist2018"
    classes = {}
    for part, sizes in (("train", (7, 3, 2)), ("val", (3, 3, 3))):
        images, annotations = [], []
        for label, size in enumerate(sizes):
            for number in range(size):
                name = f"train_val2018/Aves/{label}/{part}{number}.jpg"
                identity = 10 * number + label + (1000 if part == "val" else 0)
                put(place / name, photograph(identity))
                images.append({"id": identity, "file_name": name, "width": 8, "height": 8})
                annotations.append({"id": identity, "image_id": identity, "category_id": label})
                classes[part, name] = label
        categories = [{"id": k, "name": str(k), "supercategory": "Aves"} for k in range(3)]
        text = {"images": images[::-1], "annotations": annotations, "categories": categories}
        put(place / f"{part}2018.json", json.dumps(text).encode())
    return classes
