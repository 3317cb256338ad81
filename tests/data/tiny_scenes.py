"""Tiny road scenes and long-tailed photographs in the layout of the real ones; see `tiny.py`."""

import io
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image

from tests.data.tiny_imagenet2012 import photograph

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


def street_frames(count=3):
    """The frames of Cityscapes: the part, the name, the image and the published label map."""
    generator = np.random.default_rng(5)
    values = np.array([*range(34), 255])
    frames = []
    for part, cities in CITIES.items():
        for city in cities:
            for number in range(count):
                image = generator.integers(0, 256, (*SIDE, 3), dtype=np.uint8)
                labels = generator.choice(values, SIDE).astype(np.uint8)
                frames.append((part, f"{city}_00000{number}_000019", image, labels))
    return frames


def cityscapes(folder):
    """Write the official folders of Cityscapes; return the frames."""
    place = pathlib.Path(folder) / "cityscapes"
    frames = street_frames()
    for part, frame, image, labels in frames:
        city = frame.partition("_")[0]
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


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
