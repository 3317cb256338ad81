"""A frozen text encoder: the mean output of a pretrained BERT over the tokens of a text.

Its outputs for single words, including [CLS] and [SEP], serve text networks as word vectors if no
GloVe file is available. A principal component analysis over all words reduces the vectors to the
requested width. Nothing is random.
"""

import functools
import hashlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import data, models
from calib_jax.core import checks
from calib_jax.core.checks import options_of

FILES = ("config.json", "model.safetensors", "vocab.txt")
_BATCH = 256  # words
_SHORTEST = 8  # tokens; shorter texts are padded to 8, longer ones to the next power of 2


class TextEncoder:
    """The encoder of a folder of Hugging Face, with its vocabulary.

    Attributes:
      folder: the folder.
      pieces: its word pieces.
      width: the size of a vector.
      places: the number of tokens of the longest text.
    """

    def __init__(self, folder: str | pathlib.Path) -> None:
        self.folder = pathlib.Path(folder)
        if missing := [name for name in FILES if not (self.folder / name).is_file()]:
            raise FileNotFoundError(
                f"the folder {self.folder} has no {', '.join(missing)}: give the folder of a BERT"
                " of Hugging Face, such as a download of sentence-transformers/all-MiniLM-L6-v2."
            )
        network, variables = models.read_bert(
            folder, num_classes=1, key=jax.random.key(0), pool="mean"
        )
        self.pieces = data.WordPiece.of_folder(folder)
        self.width, self.places = network.width, network.places
        params = {"params": variables["params"]["bert"]}

        @jax.jit
        def pooled(tokens: jax.Array) -> jax.Array:
            hidden: Any = network.encoder().apply(params, tokens, jnp.zeros_like(tokens))
            real = (tokens != 0)[..., None]
            return jnp.sum(hidden * real, axis=1) / jnp.sum(real, axis=1)

        self._pooled = pooled

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of the files of the encoder."""
        known = hashlib.sha256()
        for name in FILES:
            with (self.folder / name).open("rb") as file:
                known.update(hashlib.file_digest(file, "sha256").digest())
        return known.hexdigest()

    def batches(self, tokens: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Yield the rows of each batch; texts of about the same length share a batch.

        Args:
          tokens: token numbers `[texts, length]`, 0 for padding.
          size: the number of texts in a batch.
        """
        lengths = _padded_lengths(tokens)
        for length in np.unique(lengths):
            rows = np.flatnonzero(lengths == length)
            yield from (rows[start : start + size] for start in range(0, len(rows), size))

    def vectors(self, tokens: np.ndarray, size: int) -> np.ndarray:
        """Encode a batch of texts, `[texts, width]`.

        Args:
          tokens: token numbers `[texts, length]` of texts with the same padded length.
          size: the number of texts to which the batch is filled, so that all batches of one length
            share one program.
        """
        length = int(_padded_lengths(tokens).max())
        cut = np.pad(tokens, ((0, 0), (0, max(0, length - tokens.shape[1]))))[:, :length]
        filled = np.concatenate([cut, np.repeat(cut[:1], size - len(cut), axis=0)])
        return np.asarray(self._pooled(filled))[: len(cut)]


def _padded_lengths(tokens: np.ndarray) -> np.ndarray:
    """Return the length to which each text is padded: a power of 2, at most the length of all."""
    lengths = (tokens != 0).sum(axis=1)
    padded = np.maximum(_SHORTEST, 1 << np.ceil(np.log2(np.maximum(lengths, 1))).astype(int))
    return np.minimum(padded, max(_SHORTEST, tokens.shape[1]))


# ------------------------------------------------------------------------------------------------
# Word vectors.


def write_word_vectors(
    path: str, folder: str, name: str, width: int, *, data_dir: str | None = None
) -> str:
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
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)  # before minutes of work
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
