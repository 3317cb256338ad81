"""Folders of vectors of texts: what is read, drawn, replaced and refused."""

import pathlib
import tempfile
import types

import numpy as np
import pytest
from hypothesis import strategies as st

from calib_jax import data
from calib_jax.core.examples import InMemory
from calib_jax.data.formats import vectors
from experiments import embed

from .cases import few_and_many
from .test_statistics import SEEDS

ENCODER = types.SimpleNamespace(
    folder=pathlib.Path("tiny"), digest="2" * 64, width=3, places=9, batches=None
)


def dataset_of(random, counts, *, weighted):
    """Draw tokens, labels and weights of each part, as `embed` reads them."""
    sources = {}
    for part, count in zip(vectors.PARTS, counts, strict=True):
        tokens = random.integers(0, 50, (count, 4), dtype=np.int32)
        labels = random.integers(0, 3, count, dtype=np.int32)
        weights = random.integers(0, 2, count).astype(np.float32) if weighted else None
        sources[part] = InMemory({"tokens": tokens}, labels, weights)
    return types.SimpleNamespace(class_names=("a", "b", "<b>"), **sources)


def written(folder, dataset, random):
    """Prepare a folder, and fill in the vectors, which are returned."""
    place = pathlib.Path(folder, "v")
    embed.prepare(place, embed.identity("texts:scope=in", dataset, ENCODER), dataset)
    filled = {}
    for part in vectors.PARTS:
        count = len(getattr(dataset, part))
        filled[part] = random.standard_normal((count, 3)).astype(np.float32)
        np.save(place / f"{part}.npy", filled[part])
    return place, filled


CASE = {"seed": SEEDS, "weighted": st.booleans(), "noise": st.sampled_from((0.0, 0.3, 1.0))}


@few_and_many(CASE, CASE, share=0.5)
def TestVectorsComeBack(seed: int, weighted: bool, noise: float) -> None:
    """Vectors, labels and weights are those that were written; options change only what they name.

    `training_size` draws different rows of the training part; `label_noise` replaces labels of the
    parts in `noisy`.
    """
    random = np.random.default_rng(seed)
    counts = random.integers(1, 12, 3)
    dataset = dataset_of(random, counts, weighted=weighted)
    size = int(random.integers(1, counts[0] + 1))
    with tempfile.TemporaryDirectory() as folder:
        place, filled = written(folder, dataset, random)
        whole = data.from_vectors(str(place))
        options = {"training_size": size, "label_noise": noise, "noisy": ("train",), "seed": 7}
        some = data.from_vectors(str(place), **options)
        again = data.from_vectors(str(place), **options)
    for part in vectors.PARTS:
        found, given = getattr(whole, part), getattr(dataset, part)
        np.testing.assert_array_equal(found.inputs, filled[part])
        np.testing.assert_array_equal(found.labels, given.labels)
        assert (found.weights is None) == (not weighted)
        if weighted:
            np.testing.assert_array_equal(found.weights, given.weights)
        np.testing.assert_array_equal(getattr(again, part).labels, getattr(some, part).labels)
        if part != "train":
            np.testing.assert_array_equal(getattr(some, part).labels, given.labels)
    rows = [np.flatnonzero((filled["train"] == row).all(1)).item() for row in some.train.inputs]
    assert len(rows) == len(set(rows)) == size
    changed = some.train.labels != dataset.train.labels[rows]
    assert noise or not changed.any()
    assert np.all((some.train.labels >= 0) & (some.train.labels < 3))


@few_and_many(
    {"seed": SEEDS, "what": st.sampled_from(("token", "label", "order", "encoder"))},
    {"seed": SEEDS, "what": st.sampled_from(("token", "label", "order", "encoder"))},
    share=0.5,
)
def TestOtherTextsAreRefused(seed: int, what: str) -> None:
    """A folder accepts the texts and the encoder that it was made for, and no others."""
    random = np.random.default_rng(seed)
    dataset = dataset_of(random, (4, 2, 3), weighted=False)
    part = getattr(dataset, str(random.choice(vectors.PARTS)))
    with tempfile.TemporaryDirectory() as folder:
        place, _ = written(folder, dataset, random)
        embed.prepare(place, embed.identity("texts:scope=in", dataset, ENCODER), dataset)
        other = ENCODER
        row = random.integers(len(part))
        if what == "token":
            part.inputs["tokens"][row, random.integers(4)] += 1
        elif what == "label":
            part.labels[row] = (part.labels[row] + 1) % 3
        elif what == "order":
            part.inputs["tokens"][:] = part.inputs["tokens"][::-1] + 1
        else:
            other = types.SimpleNamespace(**{**vars(ENCODER), "digest": "3" * 64})
        with pytest.raises(ValueError, match="give another --out"):
            embed.prepare(place, embed.identity("texts:scope=in", dataset, other), dataset)
