"""Tiny files of intents in the layout of the real ones, and a folder of vectors."""

import csv
import gzip
import json
import pathlib

import numpy as np


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
