"""Vectors of texts that a frozen encoder has computed, as a data set."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files, vectors
from calib_jax.data.splits import shuffled, with_label_noise


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
    record = vectors.read_record(place)
    for what, wanted in (("texts", texts), ("encoder", encoder)):
        if wanted and record[what]["name"] != wanted:
            held = f"{record['texts']['name']} by the encoder {record['encoder']['name']}"
            raise ValueError(f"{place} holds vectors of {held}, and {what} asks for {wanted}.")
    checks.between("label_noise", label_noise, 0, 1)
    checks.seed(seed)
    for name in noisy:
        checks.one_of("noisy", name, vectors.PARTS)
    names = tuple(record["class_names"])
    sources: dict[str, Any] = {}
    for number, part in enumerate(vectors.PARTS):
        kinds = ["", "_labels", *["_weights"] * bool(record["parts"][part]["weights"])]
        arrays = [vectors.read_array(place, record, part, kind) for kind in kinds]
        if part == "train" and training_size is not None:
            checks.between("training_size", training_size, 1, len(arrays[0]))
            index = shuffled(len(arrays[0]), seed=seed)[:training_size]
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
