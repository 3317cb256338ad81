"""What is recorded of a trained network of translation: sums over the tokens of every sentence.

The logits of all tokens would take 200 MB. These sums suffice for calibration errors, NLL, BLEU and
their intervals, because whole sentences are the units.
"""

import pathlib

import numpy as np

from calib_jax import metrics
from experiments.papers.judge import estimates
from experiments.papers.judge.estimates import Predictions
from experiments.running import building, subword_files
from experiments.translation import bleu, networks

TEMPERATURES = tuple(round(0.6 + 0.1 * number, 1) for number in range(11))
BEAM, LENGTH_PENALTY = 4, 0.6
BINS = 15
AT_A_TIME = 1_000  # tokens, whose log-probabilities are in memory in float64


def measured(folder: pathlib.Path, data_dir: str | None) -> dict[str, np.ndarray]:
    """Predict the tokens and translate the sentences of the test part.

    Returns:
      temperatures: `[T]`, of the curves.
      bleu: `[T, sentences, 10]`, the counts of BLEU on the test part.
      validation_ece: `[T]`, of the tokens of the validation part.
      temperature, temperature_by_nll: the papers' temperature, and that of the least NLL.
      before_weight, before_confidence, before_hit: `[sentences, bins]`, sums over the test tokens;
        before_nll: `[sentences]`; the same after the papers' temperature.
    """
    bleu.require()  # now, and not after the minutes of the tokens
    translator = networks.restored(folder)
    config = translator.config
    dataset = building.data_set(config.data.name, config.data.options, data_dir)
    subword_files.check(folder, dataset.vocabulary)
    logits, labels, _ = translator.token_logits(dataset.validation)
    validation = Predictions(logits, labels)
    temperature = estimates.temperature_of(validation, "ece")
    eces = [float(metrics.ece(logits / np.float32(t), labels)) for t in TEMPERATURES]
    arrays = {
        "temperatures": np.array(TEMPERATURES),
        "validation_ece": np.array(eces),
        "temperature": np.array(temperature),
        "temperature_by_nll": np.array(estimates.temperature_of(validation, "nll")),
    }
    del logits, validation
    logits, labels, sentences = translator.token_logits(dataset.test)
    for phase, t in (("before", 1.0), ("after", temperature)):
        columns = sums_of(Predictions(logits / np.float32(t), labels), sentences)
        arrays |= {f"{phase}_{name}": column for name, column in columns.items()}
    del logits
    assert dataset.texts is not None
    sources, references = dataset.texts["test"]
    counts = [
        bleu.sentence_counts(
            translator.translate(sources, beam=BEAM, length_penalty=LENGTH_PENALTY, temperature=t),
            references,
        )
        for t in TEMPERATURES
    ]
    return arrays | {"bleu": np.array(counts, np.int16)}


def sums_of(tokens: Predictions, sentences: np.ndarray) -> dict[str, np.ndarray]:
    """Sum the tokens of every sentence by bins of confidence, and their NLL.

    Args:
      tokens: logits and labels.
      sentences: the number of the sentence of each token.
    """
    count = int(sentences.max()) + 1
    sums = {name: np.zeros(count * BINS) for name in ("weight", "confidence", "hit")}
    nll = np.zeros(count)
    for start in range(0, len(sentences), AT_A_TIME):
        rows = slice(start, start + AT_A_TIME)
        logs = Predictions(tokens.logits[rows], tokens.labels[rows]).log_probabilities
        labels = tokens.labels[rows]
        confidence = np.exp(logs.max(axis=-1))
        number = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
        columns = (np.ones(len(logs)), confidence, logs.argmax(axis=-1) == labels)
        for total, column in zip(sums.values(), columns, strict=True):
            total += np.bincount(sentences[rows] * BINS + number, column, count * BINS)
        nll += np.bincount(sentences[rows], -logs[np.arange(len(logs)), labels], count)
    wide = {name: total.reshape(count, BINS).astype(np.float32) for name, total in sums.items()}
    return wide | {"nll": nll.astype(np.float32)}
