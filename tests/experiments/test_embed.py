"""Vectors of a frozen encoder: against the network text by text, resumed, and refused."""

import functools

import jax
import numpy as np
import pytest

from calib_jax import data, models
from calib_jax.data.formats import vectors
from experiments import embed
from experiments.datasets.text_encoder import TextEncoder
from tests.data import tiny, tiny_intents

BERT = {"words": 60, "width": 6, "depth": 1, "heads": 2, "mlp_width": 8, "places": 40}
GIVEN = "clinc150:scope=out:length=30"


def write_bert(folder, seed=0):
    """Write a random BERT with its vocabulary."""
    folder.mkdir(exist_ok=True)
    network = models.bert(num_classes=2, **BERT)
    init = jax.jit(functools.partial(network.init, train=False))
    models.write_bert(folder, network, init(jax.random.key(seed), network.example_inputs()))
    tiny.word_pieces(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("embedded")
    write_bert(path / "bert")
    tiny_intents.clinc150(path)
    return path


@pytest.fixture(scope="module")
def encoder(folder):
    return TextEncoder(folder / "bert")


def embedded(folder, encoder, place, given=GIVEN):
    dataset = embed.texts_of(given, encoder, str(folder))
    embed.prepare(place, embed.identity(given, dataset, encoder), dataset)
    return dataset, embed.compute(place, dataset, encoder, 2)


def test_a_vector_is_the_mean_output_for_its_text(folder, encoder, tmp_path):
    dataset, computed = embedded(folder, encoder, tmp_path / "v")
    assert computed == 9
    network, variables = models.read_bert(folder / "bert")
    encode = jax.jit(network.encoder().apply)
    found = data.from_vectors(str(tmp_path / "v"), texts="clinc150", encoder="bert")
    for part in vectors.PARTS:
        tokens = getattr(dataset, part).inputs["tokens"]
        np.testing.assert_array_equal(getattr(found, part).weights, np.zeros(3))
        for row, vector in zip(tokens, getattr(found, part).inputs, strict=True):
            text = row[row > 0][None]
            hidden = encode({"params": variables["params"]["bert"]}, text, np.zeros_like(text))
            np.testing.assert_allclose(vector, np.mean(hidden[0], axis=0), rtol=0, atol=1e-5)


def test_only_missing_vectors_are_computed(folder, encoder, tmp_path):
    place = tmp_path / "v"
    embedded(folder, encoder, place)
    whole = np.load(place / "test.npy")
    assert embedded(folder, encoder, place)[1] == 0
    stored = np.lib.format.open_memmap(place / "test.npy", mode="r+")
    stored[1] = np.nan  # a command that was stopped
    stored[2, 3:] = np.nan
    stored.flush()
    with pytest.raises(ValueError, match="lacks 2 of 3 vectors"):
        data.from_vectors(str(place))
    assert embedded(folder, encoder, place)[1] == 2
    np.testing.assert_allclose(np.load(place / "test.npy"), whole, rtol=0, atol=1e-6)
