"""Platt scaling of an over-confident binary score whose true probabilities are known."""

import numpy as np
import scipy.special

from calib_jax import calibrators
from calib_jax.inference.pairs.compare_calibration import compare_calibration
from experiments.papers.entry import computed
from experiments.papers.judge.paired import over_seeds
from experiments.papers.judge.rules import above
from experiments.papers.judge.values import Value

DRAWS, VALIDATION, TEST = 20, 2_000, 10_000


def reductions() -> dict[str, Value]:
    """Compute the fall of the calibration error on test examples, over draws of both sets."""
    exact, debiased, slopes = [], [], []
    for draw in range(DRAWS):
        generator = np.random.default_rng(draw)
        truth = 1.5 * generator.standard_normal(VALIDATION + TEST)
        labels = (generator.random(len(truth)) < scipy.special.expit(truth)).astype(np.int32)
        # Twice as confident as it should be, and shifted: fixed logits of a binary classifier.
        score = np.column_stack([np.zeros_like(truth), 2 * truth + 0.5]).astype(np.float32)
        fitted = calibrators.platt.fit(score[:VALIDATION], labels[:VALIDATION])
        before = score[VALIDATION:]
        after = np.asarray(calibrators.platt.apply(fitted, before))
        chance = scipy.special.expit(truth[VALIDATION:])
        # The score is a one-to-one function of the truth, so this is the whole calibration error.
        errors = [
            np.mean(np.square(scipy.special.softmax(z.astype(np.float64), axis=-1)[:, 1] - chance))
            for z in (before, after)
        ]
        exact.append(float(errors[0] - errors[1]))
        change = compare_calibration(before, after, labels[VALIDATION:])
        debiased.append(-change.value)
        logits = after[:, 1] - after[:, 0], before[:, 1] - before[:, 0]
        slopes.append(float(np.polyfit(logits[1], logits[0], 1)[0]))
    return {
        "CE2(before) - CE2(after Platt)": over_seeds(debiased)._replace(rows=TEST),
        "true squared error, before - after": over_seeds(exact)._replace(rows=TEST),
        "fitted slope a": over_seeds(slopes, note="0.5 undoes the over-confidence"),
    }


ENTRY = computed(
    {
        "guo-platt-calibrates-binary": (
            reductions,
            above("CE2(before) - CE2(after Platt)", "true squared error, before - after"),
        )
    }
)
