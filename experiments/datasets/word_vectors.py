"""Word vectors from a pretrained BERT, for text networks if no GloVe file is available.

The vector of a word is the mean of BERT's output over the tokens of a text that holds only this
word, including [CLS] and [SEP]. A principal component analysis over all words reduces the vectors
to the requested width. Nothing is random.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from calib_jax import data
from calib_jax.core import checks
from calib_jax.core.names import options_of
from experiments.datasets.text_encoder import TextEncoder

_BATCH = 256


def write(path: str, folder: str, name: str, width: int, *, data_dir: str | None = None) -> str:
    """Write vectors for the vocabulary of a data set, and return a description.

    Args:
      path: the file, in the GloVe format.
      folder: the folder of the BERT.
      name: the data set; the vocabulary is the one with default options.
      width: the size of a vector; at most BERT's width.
      data_dir: the folder of the data sets.
    """
    factory = data.catalogue().get(name)
    if factory is None or "vectors" not in options_of(factory):
        named = [key for key, other in data.catalogue().items() if "vectors" in options_of(other)]
        checks.one_of("the data set of word vectors", name, named)
    vocabulary = data.named(name, data_dir=data_dir).vocabulary
    assert isinstance(vocabulary, data.Vocabulary)
    words = [word for word in vocabulary.words if word != data.UNKNOWN]
    pooled = mean_outputs(folder, [data.plain_words(word) for word in words])
    projected, share = principal_components(pooled, width)
    data.write_vectors(path, dict(zip(words, projected, strict=True)))
    return (
        f"{path}: {len(projected):,} words of {name}, {width} principal components of the mean"
        f" output of {pathlib.Path(folder).name}, with {100 * share:.1f} % of its variance."
    )


def mean_outputs(folder: str, words: Sequence[str]) -> np.ndarray:
    """Compute the mean output of a BERT for each word, `[words, width]`."""
    encoder = TextEncoder(folder)
    longest = max(2 + len(encoder.pieces.pieces(word)) for word in words)
    tokens = encoder.pieces.tokens(words, min(longest, encoder.places))["tokens"]
    result = np.zeros((len(words), encoder.width), np.float32)
    for rows in encoder.batches(tokens, _BATCH):
        result[rows] = encoder.vectors(tokens[rows], _BATCH)
    return result


def principal_components(vectors: np.ndarray, width: int) -> tuple[np.ndarray, float]:
    """Project vectors to their first principal components.

    The largest entry of every component is positive, which fixes the sign of the component.

    Args:
      vectors: `[words, features]`.
      width: the number of components.

    Returns:
      The projections `[words, width]` of the centered vectors, and the explained share of variance.

    >>> vectors = np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    >>> projections, share = principal_components(vectors, 1)
    >>> projections.ravel().round(6).tolist(), round(share, 6)
    ([-5.0, 0.0, 5.0], 1.0)
    """
    features = vectors.shape[1]
    checks.between("width", width, 1, features)
    centered = np.asarray(vectors, np.float64)
    centered = centered - centered.mean(axis=0)
    variances, components = np.linalg.eigh(centered.T @ centered)
    order = np.argsort(-variances, kind="stable")[:width]
    components = components[:, order]
    largest = np.abs(components).argmax(axis=0)
    components *= np.sign(components[largest, np.arange(width)])
    return centered @ components, float(variances[order].sum() / variances.sum())
