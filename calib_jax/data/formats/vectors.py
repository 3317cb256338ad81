"""The folder of `experiments.embed`: vectors of texts that a frozen encoder has computed.

record.json             the texts, the encoder, the names of the classes, the parts
PART.npy                the vectors `[texts, width]`, float32, NaN where none is computed yet
PART_labels.npy         the labels `[texts]`
PART_weights.npy        the weights of the labels, if the data set has any
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from calib_jax.core.files import reading

PARTS = ("train", "validation", "test")
RECORD = "record.json"
KINDS = {"": np.float32, "_labels": np.int32, "_weights": np.float32}  # endings of the arrays
KIND, ADVICE = "vectors of texts", "experiments.embed computes them anew in a new folder"


def read_record(folder: pathlib.Path) -> dict[str, Any]:
    """Read the record of a folder of vectors, and validate its entries."""
    path = folder / RECORD
    if not path.exists():
        raise FileNotFoundError(
            f"{folder} has no {RECORD}: python -m experiments.embed --out={folder} writes vectors."
        )
    record = reading.json_mapping(path, KIND, ADVICE)
    # The JSON may have any form: the guard turns a missing or wrong entry into one sentence.
    with reading.guard(path, KIND, ADVICE, library=True):
        texts = [record[what][key] for what in ("texts", "encoder") for key in ("name", "digest")]
        sizes = [record["parts"][part][key] for part in PARTS for key in ("count", "width")]
        if {*map(type, [*texts, *record["class_names"]])} | {*map(type, sizes)} != {str, int}:
            raise ValueError("it holds other things than texts and numbers")
    return record


def read_array(folder: pathlib.Path, record: Mapping[str, Any], part: str, kind: str) -> np.ndarray:
    """Read the vectors, labels or weights of a part; `kind` is one of `KINDS`."""
    path = folder / f"{part}{kind}.npy"
    about = record["parts"][part]
    with reading.guard(path, KIND, ADVICE):
        array = np.array(reading.npy(path, KIND, ADVICE))
        shape = (about["count"], about["width"]) if not kind else (about["count"],)
        if array.shape != shape or array.dtype != KINDS[kind]:
            raise ValueError(
                f"it is {array.dtype} {array.shape} and not {np.dtype(KINDS[kind])} {shape}"
            )
        largest = len(record["class_names"]) - 1
        if kind == "_labels" and array.size and not 0 <= array.min() <= array.max() <= largest:
            raise ValueError(f"its labels lie outside [0, {largest}]")
    if not kind and (missing := int(np.isnan(array).any(axis=1).sum())):
        raise ValueError(
            f"{path} lacks {missing:,} of {len(array):,} vectors: python -m experiments.embed"
            f" --out={folder}, with the options it was begun with, computes them."
        )
    return array
