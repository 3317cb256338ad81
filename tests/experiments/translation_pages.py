"""Print the values of two translation networks, of which one has a fit without an optimum."""

import json
import types
from unittest import mock

import numpy as np

from calib_jax import report
from experiments.translation import bleu
from experiments.translation import score as score_translation


def scored(held_labels):
    """Score made-up tokens, with a temperature fitted on these labels."""
    random = np.random.default_rng(0)
    tokens = report.score(
        random.standard_normal((60, 3)),
        random.integers(0, 3, 60),
        calibrate="temperature",
        fit_on=(HELD, held_labels),
        metrics=("accuracy", "nll"),
        num_resamples=10,
    )
    fitted = tokens.calibrator["params"]["temperature"]
    return score_translation.Scored(fitted, (["x"], ["x"]), tokens)


def qualities(*_):
    """Return scores as sacrebleu would."""
    numbers = {"a": bleu.Quality(9, 8, 10, None), "b": bleu.Quality(9, 8, 10, 0.04)}
    return {"BLEU": dict(numbers), "chrF": dict(numbers)}, {"BLEU": "signature"}


HELD = np.random.default_rng(1).standard_normal((60, 3))

if __name__ == "__main__":
    noisy = scored(np.random.default_rng(2).integers(0, 3, 60))
    separable = scored(HELD.argmax(-1))
    score_translation._RESAMPLES = types.SimpleNamespace(value=10)
    with mock.patch.object(bleu, "qualities", qualities):
        pages = [
            score_translation.values_of(results, ["z"])
            for results in ({"a": noisy, "b": separable}, {"a": separable, "b": noisy})
        ]
    print(json.dumps(pages))
