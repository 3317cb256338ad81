"""A frozen text encoder: the mean output of a pretrained BERT over the tokens of a text."""

import functools
import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import data, models

FILES = ("config.json", "model.safetensors", "vocab.txt")
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
