"""Trained translation networks: restored with their subwords, and applied to sentences."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from calib_jax import data, models
from calib_jax.core.examples import Source
from experiments.running import building, imports, initial, training

_MULTIPLE = 16  # lengths are rounded up to a multiple, so that few programs are compiled


@dataclasses.dataclass(frozen=True)
class Translator:
    """A trained network with its subwords.

    Attributes:
      network: a network of `models.transformer`.
      variables: the variables of the network.
      subwords: the subwords of the run.
      config: the config of the run.
      checkpoint: the name of the restored checkpoint.
    """

    network: Any
    variables: Any
    subwords: data.Subwords
    config: ConfigDict
    checkpoint: str

    def translate(
        self,
        sentences: Sequence[str],
        *,
        beam: int = 4,
        length: int = 64,
        length_penalty: float = 0.6,
        temperature: float = 1.0,
        batch_size: int = 32,
        warn: Callable[[str], None] = initial.warn,
    ) -> list[str]:
        """Translate sentences; return one translation per sentence.

        An empty sentence stays empty. A sentence that is too long for the network is cut at the
        end, with a warning. A character that the training part lacks is an unknown subword.

        Args:
          sentences: the sentences.
          beam, length, length_penalty, temperature: as for `models.translate`.
          batch_size: the number of sentences in a batch.
          warn: called with each warning.
        """
        places, room = self.network.places, self.network.places - 1
        numbered = [self.subwords.numbers(sentence) for sentence in sentences]
        for line, numbers in enumerate(numbered, start=1):
            if len(numbers) > room:
                warn(
                    f"line {line} has {len(numbers):,} subwords, and the network reads {room}: its"
                    " end is cut off."
                )
        numbered = [numbers[:room] for numbers in numbered]
        rows = data.Ragged.of(numbered, np.int32)
        # Sentences of similar lengths share a batch, so that little padding is computed.
        order = np.argsort(rows.lengths, kind="stable")
        order = order[rows.lengths[order] > 0]
        translations = [""] * len(sentences)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            # A row without a sentence would be decoded to the full length, so copies fill the
            # batch. Batch sizes are powers of two, so that few programs are compiled.
            num_rows = min(batch_size, 1 << (len(batch) - 1).bit_length())
            filled = batch[np.minimum(np.arange(num_rows), len(batch) - 1)]
            size = min(places, -(-(int(rows.lengths[batch].max()) + 1) // _MULTIPLE) * _MULTIPLE)
            decoded = models.translate(
                self.network,
                self.variables,
                data.with_end(rows.padded(filled, size - 1)),
                length=min(length, places),
                beam=beam,
                length_penalty=length_penalty,
                temperature=temperature,
            )
            for number, tokens in zip(batch, np.asarray(decoded.tokens), strict=False):
                translations[number] = self.subwords.text(tokens)
        return translations

    def token_logits(
        self, source: Source, batch_size: int = 64
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute the logits of every token of a part, given the true preceding tokens.

        Returns:
          The logits `[tokens, classes]`, the labels, and the number of the sentence of each token.
        """
        evaluate = jax.jit(functools.partial(self.network.apply, train=False))
        parts: list[tuple[np.ndarray, ...]] = []
        for start in range(0, len(source), batch_size):
            # The last batch repeats the last example, so that one program is compiled.
            rows = np.arange(start, start + batch_size)
            examples = source[np.minimum(rows, len(source) - 1)]
            inputs = jax.tree.map(jnp.asarray, examples.inputs)
            logits = np.asarray(evaluate(self.variables, inputs))
            kept = (examples.weights > 0) & (rows < len(source))[:, None]
            sentence = np.broadcast_to(rows[:, None], kept.shape)
            parts.append((logits[kept], examples.labels[kept], sentence[kept]))
        logits, labels, sentences = (np.concatenate(column) for column in zip(*parts, strict=True))
        return logits, labels, sentences


def restored(
    folder: pathlib.Path, checkpoint: str | None = None, *, allow_imports: bool = False
) -> Translator:
    """Restore the network of a run and its subwords; the data set is not needed.

    Args:
      folder: the folder of the run.
      checkpoint: as for `experiments.evaluate`.
      allow_imports: whether to import code that the config names.
    """
    if several := training.there(folder):
        first = next(iter(several.values()))
        raise ValueError(f"{folder} holds several seeds: give one of them, such as {first}.")
    with initial.opened(folder) as checkpoints:
        name = checkpoint or initial.chosen(checkpoints)
        config = initial.config_of(checkpoints)
        imports.check_allowed(config, folder, allow_imports=allow_imports)
        variables = checkpoints.variables(initial.step_of(checkpoints, name), warn=initial.warn)
    network = building.network(config, 1)
    if not hasattr(network, "places") or "table" not in variables["params"]:
        raise ValueError(
            f"{folder} holds a run of the network {config.model.name}: only runs of transformer"
            " translate."
        )
    num_classes = len(variables["params"]["table"]["embedding"])
    subwords = training.read_subwords(folder, num_classes)
    return Translator(network.clone(num_classes=num_classes), variables, subwords, config, name)


def check_same_data(translators: Mapping[str, Translator]) -> None:
    """Raise an error unless all runs translate the same sentences with the same subwords.

    Args:
      translators: the translators of the runs, by folder.
    """
    first, *others = translators
    for name in others:
        theirs, ours = (
            (of.config.data.name, of.config.data.options.get("direction"), of.subwords)
            for of in (translators[name], translators[first])
        )
        if theirs != ours:
            raise ValueError(
                f"{name} and {first} translate other data, or have other subwords: compare runs of"
                " one data set and direction, and train one of them with"
                f" --config.data.options.subwords={first}/{training.SUBWORDS}."
            )
