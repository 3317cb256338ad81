"""The trainings on texts that entries share, and predictions between the polar classes of the SST.

The papers' networks are those of the best validation accuracy. Files of words and weights are in
the folder of the data sets: `minilm` is the folder of all-MiniLM-L6-v2 in the form of Hugging Face,
and `minilm_sst_300.txt` and `minilm_newsgroups_100.txt` hold vectors of this width for the words of
a data set, from

    python -m experiments.data --word_vectors=DIR/minilm --words_of=sst --width=300 \
        --out=DIR/minilm_sst_300.txt --data_dir=DIR
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from calib_jax import metrics
from experiments.papers.entry import Training
from experiments.papers.judge import estimates
from experiments.papers.judge.estimates import Columns, Predictions
from experiments.papers.store.records import Trained

BEST = "best_error"
POLAR = (0, 2)  # negative and positive
NEUTRAL = 1
SMALLER = {"data.options.length": 250, "num_epochs": 22}
FIXED = {
    "data.options.vectors": "minilm_newsgroups_100.txt",
    "optimizer.groups": (("embedding/*", {"frozen": True}),),
}
MINILM = {
    **{"model.options.width": 384, "model.options.depth": 6, "model.options.mlp_width": 1536},
    **{"data.options.pieces": "minilm", "init_from": "minilm"},
    **{"data.options.length": 128, "num_epochs": 2},
}


def newsgroups_cnn(loss: str, **options: object) -> Training:
    """Return a training of the CNN on 250 words of each message, with the word vectors of MiniLM.

    They stay fixed, as those of GloVe in the source.
    """
    return dataclasses.replace(
        newsgroups_learned(loss, **options), changes=SMALLER | FIXED, alias="minilm"
    )


def newsgroups_learned(loss: str, **options: object) -> Training:
    """Return a training of the CNN with word vectors that are learned from random ones."""
    return Training(
        loss, options, config="newsgroups_cnn", changes=SMALLER, alias="length250", checkpoint=BEST
    )


def newsgroups_bert(loss: str) -> Training:
    """Return a fine-tuning of MiniLM with one seed."""
    return Training(
        loss, config="newsgroups_bert", changes=MINILM, alias="minilm", seeds=1, checkpoint=BEST
    )


def sst(loss: str, **options: object) -> Training:
    """Return a training of the Tree-LSTM from the word vectors of MiniLM."""
    return Training(
        loss,
        options,
        config="sst_tree_lstm",
        changes={"data.options.vectors": "minilm_sst_300.txt"},
        alias="minilm",
        checkpoint=BEST,
    )


def sst_learned(loss: str, **options: object) -> Training:
    """Return a training of the Tree-LSTM with word vectors that are learned from random ones."""
    return Training(loss, options, config="sst_tree_lstm", checkpoint=BEST)


def as_released(predictions: Predictions, temperature: float = 1.0) -> Columns:
    """Read predictions as the papers' code does: the probability of "neutral" goes to no class.

    So the confidences of all networks are lower than those of `polar`.
    """
    kept = np.isin(predictions.labels, POLAR)
    probabilities = np.exp(predictions.scaled(temperature).log_probabilities[kept][:, list(POLAR)])
    right = np.argmax(probabilities, axis=-1) == _polar_labels(predictions)
    return Columns(np.max(probabilities, axis=-1), right)


def released_before(run: Trained) -> Columns:
    """Return the test set as trained, in the papers' reading."""
    return as_released(run.logits)


def released_temperature(run: Trained) -> float:
    """Return the temperature of the least validation ECE on the papers' grid, in their reading."""
    errors = [estimates.ece(as_released(run.validation_logits, t)) for t in estimates.GRID]
    return float(estimates.GRID[np.argmin(errors)])


def released_after(run: Trained) -> Columns:
    """Return the test set after the papers' temperature, in their reading."""
    return as_released(run.logits, released_temperature(run))


def released_adaptive_ece(run: Trained) -> float:
    """Compute the AdaECE of the test set as trained, in the papers' reading."""
    kept = np.isin(run.logits.labels, POLAR)
    arrays = run.logits.logits[kept], run.logits.labels[kept]
    return float(metrics.adaptive_ece(*map(jnp.asarray, arrays), excluded_class=NEUTRAL))


def polar(predictions: Predictions) -> Predictions:
    """Return the predictions between the two polar classes, whose probabilities sum to 1."""
    kept = np.isin(predictions.labels, POLAR)
    return Predictions(predictions.logits[kept][:, list(POLAR)], _polar_labels(predictions))


def _polar_labels(predictions: Predictions) -> np.ndarray:
    kept = predictions.labels[np.isin(predictions.labels, POLAR)]
    return (kept == POLAR[1]).astype(np.int64)


def polar_before(run: Trained) -> Predictions:
    """Return the test set as trained."""
    return polar(run.logits)


def polar_temperature(run: Trained) -> float:
    """Return the temperature of the least validation ECE on the papers' grid."""
    return estimates.temperature_of(polar(run.validation_logits), "ece")


def polar_after(run: Trained) -> Predictions:
    """Return the test set after the papers' temperature."""
    return polar_before(run).scaled(polar_temperature(run))
