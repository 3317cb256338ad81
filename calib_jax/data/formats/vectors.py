"""The folder of `experiments.embed`: vectors of texts that a frozen encoder has computed.

record.json             the texts, the encoder, the names of the classes, the parts
PART.npy                the vectors `[texts, width]`, float32, NaN where none is computed yet
PART_labels.npy         the labels `[texts]`
PART_weights.npy        the weights of the labels, if the data set has any
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, first, register, shuffled, with_label_noise
from calib_jax.data.formats import files

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


@register("vectors", About(title="Vectors of texts, by experiments.embed", licence="your own"))
def from_vectors(
    folder: str = "vectors",
    *,
    data_dir: str | None = None,
    texts: str = "",
    encoder: str = "",
    training_size: int | None = None,
    label_noise: float = 0.0,
    noisy: Sequence[str] = ("train", "validation"),
    seed: int = 0,
) -> Dataset:
    """Load the vectors of a folder that `experiments.embed` has written.

    Args:
      folder: the folder, as a path or in the folder of the data sets.
      data_dir: the folder of the data sets, see `cifar10`.
      texts: the data set whose texts the vectors must belong to; "" accepts all.
      encoder: the name of the encoder that must have computed them; "" accepts all.
      training_size: train on so many examples, drawn by the seed; None trains on all.
      label_noise: the fraction of labels that are replaced by a class drawn uniformly.
      noisy: the parts whose labels are replaced.
      seed: seed of the training examples and of the label noise.
    """
    place = files.given(folder, "vectors", data_dir)
    record = read_record(place)
    for what, wanted in (("texts", texts), ("encoder", encoder)):
        if wanted and record[what]["name"] != wanted:
            held = f"{record['texts']['name']} by the encoder {record['encoder']['name']}"
            raise ValueError(f"{place} holds vectors of {held}, and {what} asks for {wanted}.")
    checks.between("label_noise", label_noise, 0, 1)
    checks.seed(seed)
    for name in noisy:
        checks.one_of("noisy", name, PARTS)
    names = tuple(record["class_names"])
    sources: dict[str, Any] = {}
    for number, part in enumerate(PARTS):
        kinds = ["", "_labels", *["_weights"] * bool(record["parts"][part]["weights"])]
        arrays = [read_array(place, record, part, kind) for kind in kinds]
        if part == "train" and training_size is not None:
            index = first(shuffled(len(arrays[0]), seed=seed), training_size)
            arrays = [array[index] for array in arrays]
        if label_noise and part in noisy:
            generator = np.random.default_rng([seed, number + 1])
            arrays[1] = with_label_noise(arrays[1], label_noise, len(names), generator)
        sources[part] = InMemory(*arrays)
    return Dataset(
        name="vectors",
        class_names=names,
        **sources,
        description=(
            f"Vectors of {record['texts']['name']} ({record['texts']['digest'][:12]}) by"
            f" {record['encoder']['name']} ({record['encoder']['digest'][:12]}), mean over the"
            f" tokens: {len(sources['train']):,} to train, {len(sources['validation']):,} to"
            f" validate and {len(sources['test']):,} to test; {100 * label_noise:g}% of the labels"
            f" of {', '.join(noisy) or 'no part'} replaced at random."
        ),
    )
