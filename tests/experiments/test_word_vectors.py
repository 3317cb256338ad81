"""Word vectors from a BERT: against NumPy, word by word and without padding."""

import functools

import jax
import numpy as np
import pytest

from calib_jax import data, models
from experiments.running import word_vectors
from tests.data import tiny
from tests.experiments.processes import finish

BERT = {"words": 60, "width": 6, "depth": 1, "heads": 2, "mlp_width": 8, "places": 20}


@pytest.fixture
def folder(tmp_path):
    """Write a random BERT, its vocabulary, and trees."""
    network = models.bert(num_classes=2, **BERT)
    init = jax.jit(functools.partial(network.init, train=False))
    drawn = init(jax.random.key(0), network.example_inputs())
    models.write_bert(tmp_path, network, drawn)
    tiny.word_pieces(tmp_path)
    tiny.sst(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_vector_is_the_mean_output_for_the_word_alone(folder):
    words = ["film", "film" * 3]  # padded to different lengths
    network, variables = models.read_bert(folder)
    pieces = data.WordPiece.of_folder(folder)
    encode = jax.jit(network.encoder().apply)
    result = word_vectors.mean_outputs(str(folder), words)
    for word, vector in zip(words, result, strict=True):
        tokens = pieces.numbers(word, 2 + len(pieces.pieces(word)))[None]
        hidden = encode({"params": variables["params"]["bert"]}, tokens, np.zeros_like(tokens))
        np.testing.assert_allclose(vector, np.mean(hidden[0], axis=0), rtol=0, atol=1e-5)


def test_components_are_those_of_a_singular_value_decomposition():
    vectors = np.random.default_rng(0).standard_normal((30, 5)) * np.arange(1, 6) + 7
    projected, share = word_vectors.principal_components(vectors, 3)
    centered = vectors - vectors.mean(axis=0)
    left, sizes, right = np.linalg.svd(centered, full_matrices=False)
    signs = [np.sign(row[np.abs(row).argmax()]) for row in right]
    np.testing.assert_allclose(projected, (left * sizes * signs)[:, :3], atol=1e-10)
    assert share == pytest.approx(np.sum(sizes[:3] ** 2) / np.sum(sizes**2))
    negative, _ = word_vectors.principal_components(-vectors, 3)
    np.testing.assert_allclose(negative, -projected, atol=1e-10)
    with pytest.raises(ValueError, match="width must lie in"):
        word_vectors.principal_components(vectors, 6)


def test_the_file_is_read_by_the_data_set(folder, tmp_path):
    path = tmp_path / "vectors.txt"
    output = word_vectors.write(str(path), str(folder), "sst", 4, data_dir=str(folder))
    dataset = data.sst(data_dir=str(folder), vectors=str(path))
    words = len(dataset.vocabulary.words) - 1  # without the number of unknown words
    assert f"{words} words of sst, 4 principal components of the mean output of" in output
    assert f"Word vectors of vectors.txt for {words} of {words} words" in dataset.description
    assert dataset.embedding.shape == (words + 2, 4)
    moments = dataset.embedding[2:].T @ dataset.embedding[2:]
    np.testing.assert_allclose(dataset.embedding[2:].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(moments, np.diag(np.diag(moments)), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--word_vectors needs --out=FILE"),
        (
            ("--out=x", "--words_of=digits"),
            "must be one of 'banking77', 'clinc150', 'newsgroups', 'newsgroups_19997', 'sst'",
        ),
        (("--out=x", "--list"), "give one of --list"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, options, message):
    output = finish("data", f"--word_vectors={tmp_path}", *options, code=2)
    assert message in output
