"""Vectors of a frozen encoder: against the network text by text, resumed, and refused."""

import functools
import shutil

import jax
import numpy as np
import pytest

from calib_jax import data, models
from calib_jax.data.formats import vectors
from experiments import embed
from experiments.running.text_encoder import TextEncoder
from tests.data import tiny, tiny_intents
from tests.experiments.processes import finish

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


def test_another_encoder_or_other_texts_are_refused_by_name(folder, encoder, tmp_path):
    place = tmp_path / "v"
    embedded(folder, encoder, place)
    other = TextEncoder(write_bert(tmp_path / "other", seed=1))
    with pytest.raises(ValueError, match=r"vectors of the encoder bert \(\w+\), and not of other"):
        embedded(folder, other, place)
    with pytest.raises(
        ValueError, match=r"of the texts clinc150:scope=out.*not of clinc150:length"
    ):
        embedded(folder, encoder, place, "clinc150:length=30")
    shutil.copytree(folder / "clinc150", tmp_path / "clinc150")
    tiny_intents.clinc150(tmp_path, changed_texts())
    with pytest.raises(ValueError, match="vectors of the texts clinc150:scope=out"):
        embedded(tmp_path, encoder, place)


def changed_texts():
    """The tiny queries with one other out-of-scope query."""
    stored = {
        part: [[f"{part} {k}", f"intent_{k:03d}"] for k in range(150)]
        for part in ("train", "val", "test")
    }
    return stored | {f"oos_{part}": [["yes yes", "oos"]] * 3 for part in stored}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --data=NAME, --encoder=BERT and --out=FOLDER"),
        (("--data=digits",), "must be one of 'banking77', 'clinc150'"),
        (("--data=banking77",), "texts of up to 128 word pieces, and bert takes 40"),
        (("--data=clinc150:scop=in",), "did you mean 'scope'"),
    ],
)
def test_what_cannot_be_embedded_is_refused(folder, tmp_path, options, message):
    given = (f"--encoder={folder / 'bert'}", f"--out={tmp_path}/v", f"--data_dir={folder}")
    output = finish("embed", *options, *(given if options else ()), code=2)
    assert message in output


def test_a_folder_that_is_no_encoder_is_named(tmp_path):
    match = r"has no config.json, model.safetensors, vocab.txt: give the folder of a BERT"
    with pytest.raises(FileNotFoundError, match=match):
        TextEncoder(tmp_path / "all-MiniLM-L6-v2")


def test_a_folder_with_other_files_is_left_alone(folder, encoder, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is no folder of vectors, and not empty: give another"):
        embedded(folder, encoder, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
