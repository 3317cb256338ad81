"""Answers with one number each: their metrics, their calibration, and their files."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from hypothesis import assume
from hypothesis import strategies as st

from calib_jax import calibrators, metrics

from .cases import few_and_many
from .test_statistics import SEEDS, confidences

NAMES = ("accuracy", "error", "mean_confidence", "signed_gap", "brier", "nll", "ece", "mce")


@jax.jit
def of_metrics(confidence, correct, weights):
    stated = metrics.Stated(confidence, correct)
    return {name: getattr(metrics, name)(stated, weights=weights) for name in NAMES}


def by_loops(confidence, correct, weights):
    """The same in float64, from the definitions for one event; bins are (lo, hi]."""
    edges = np.linspace(0, 1, 16, dtype=np.float32)
    bins = np.array([sum(c > edge for edge in edges[1:-1]) for c in confidence])
    c, y, w = (np.float64(column) for column in (confidence, correct, weights))
    w = w / w.sum()
    gaps = [abs(np.sum((w * (c - y))[bins == b])) for b in range(15)]
    sizes = [np.sum(w[bins == b]) for b in range(15)]
    with np.errstate(divide="ignore"):
        log_true = np.log(np.where(y == 1, c, 1 - c))
    return {
        **{"accuracy": w @ y, "error": 1 - w @ y, "mean_confidence": w @ c},
        **{"signed_gap": w @ c - w @ y, "brier": w @ (c - y) ** 2},
        "nll": -(w[w > 0] @ log_true[w > 0]),
        "ece": sum(gaps),
        "mce": max(gap / size for gap, size in zip(gaps, sizes, strict=True) if size > 0),
    }


@few_and_many(
    {"seed": SEEDS, "rows": st.just(20)}, {"seed": SEEDS, "rows": st.sampled_from((1, 2, 20, 50))}
)
def TestMetricsOfStatedConfidences(seed: int, rows: int) -> None:
    """Values are those of loops, with ties, edges, absent rows and confidences of 0 and 1."""
    random = np.random.default_rng(seed)
    confidence = confidences(seed, rows)
    correct = random.random(rows) < random.choice([0.1, 0.5, 0.9])
    weights = random.choice([0, 1, 1, 2, 0.5], rows).astype(np.float32)
    weights[random.integers(rows)] = 1
    actual = of_metrics(confidence, correct, weights)
    for name, wanted in by_loops(confidence, correct, weights).items():
        np.testing.assert_allclose(actual[name], wanted, rtol=2e-5, atol=2e-6, err_msg=name)


RISING = {
    "the same": lambda s: s,
    "a line": lambda s: 4 * s - 20,
    "a cube": lambda s: s**3,
    "a probability": lambda s: 1 / (1 + np.exp(-s)),
}


def of_scores(score, correct):
    params = calibrators.isotonic.fit(calibrators.Scored(jnp.asarray(score), correct))
    return np.asarray(calibrators.isotonic.apply(params, jnp.asarray(score)))


@few_and_many(
    {"seed": SEEDS, "rows": st.just(20)}, {"seed": SEEDS, "rows": st.sampled_from((3, 20, 50))}
)
def TestScoresHaveNoScale(seed: int, rows: int) -> None:
    """Isotonic probabilities are those of SciPy, whatever rising function the scores went through.

    They keep the share of right answers.
    """
    random = np.random.default_rng(seed)
    score = random.integers(-5, 6, rows).astype(np.float32)
    correct = random.random(rows) < 1 / (1 + np.exp(-score * random.choice([-1, 0, 1])))
    assume(0 < correct.sum() < rows)
    values, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    shares = np.bincount(group, correct) / counts
    wanted = scipy.optimize.isotonic_regression(shares, weights=counts).x[group]
    assert len(values) > 1 or np.allclose(wanted, correct.mean())
    for name, change in RISING.items():
        actual = of_scores(change(score).astype(np.float32), correct)
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(actual.mean(), correct.mean(), rtol=1e-5)


# --------------------------------------------------------------------------------------------
# Files.
