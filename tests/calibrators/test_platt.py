"""Platt scaling against SciPy's minimum, and the states that two answers can end in."""

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax.calibrators import platt
from tests.calibrators.members import problem


def scipy_fit(score, target, weights):
    """Minimise the binary NLL over slope and intercept."""

    def loss(theta):
        x = theta[0] * score + theta[1]
        p = scipy.special.expit(x)
        value = np.average(np.logaddexp(0, x) - target * x, weights=weights)
        slope = weights * (p - target) / weights.sum()
        return value, np.array([slope @ score, slope.sum()])

    minimum = scipy.optimize.minimize(loss, [1.0, 0.0], jac=True, method="BFGS", tol=1e-12)
    return minimum.x


def log_odds(logits, k):
    """Return log p_k - log(1 - p_k)."""
    rest = np.delete(logits, k, axis=1)
    return logits[:, k] - scipy.special.logsumexp(rest, axis=1)


@pytest.mark.parametrize("smoothed", [False, True])
@pytest.mark.parametrize("num_classes", [2, 4])
def test_it_is_scipys_minimum(num_classes, smoothed, x64):
    logits, labels = problem(200, num_classes, seed=3, dtype=np.float64)
    weights = np.random.default_rng(0).choice([1.0, 2.0, 6.0], 200)
    params = platt.fit(logits, labels, weights, smoothed=smoothed)
    assert params.state.name == "converged"
    wanted = []
    for k in [1] if num_classes == 2 else range(4):
        yes = weights[labels == k].sum()
        no = weights.sum() - yes
        aims = (1 / (no + 2), (yes + 1) / (yes + 2)) if smoothed else (0.0, 1.0)
        score = log_odds(logits, k)
        wanted.append(scipy_fit(score, np.where(labels == k, aims[1], aims[0]), weights))
    np.testing.assert_allclose(params.slope, np.array(wanted)[:, 0], rtol=1e-6)
    np.testing.assert_allclose(params.intercept, np.array(wanted)[:, 1], rtol=1e-6, atol=1e-7)

    p = [
        scipy.special.expit(a * log_odds(logits, k) + b)
        for k, (a, b) in zip([1] if num_classes == 2 else range(4), wanted, strict=True)
    ]
    p = np.stack([1 - p[0], p[0]] if num_classes == 2 else p, axis=1)
    actual = jax.nn.softmax(platt.apply(params, logits))
    np.testing.assert_allclose(actual, p / p.sum(1, keepdims=True), rtol=1e-6)


def two(scores):
    return np.stack([np.zeros(len(scores)), scores], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    ("scores", "labels", "state"),
    [
        ([1, 2, 3, 4], [0, 1, 0, 1], "converged"),
        ([1, 2, 3, 4], [0, 0, 1, 1], "no_optimum"),
        ([1, 2, 3, 4], [1, 1, 0, 0], "no_optimum"),
        ([1, 2, 2, 3], [0, 0, 1, 1], "no_optimum"),  # a tie at the threshold: steeper still helps
        ([1, 2, 3, 4], [1, 1, 1, 1], "no_optimum"),
        ([2, 2, 2, 2], [0, 1, 1, 1], "indistinct"),
        ([2, 2, 2, 2], [1, 1, 1, 1], "no_optimum"),
    ],
)
def test_the_state_says_whether_there_is_an_optimum(scores, labels, state):
    logits, labels = two(scores), np.array(labels)
    params = platt.fit(logits, labels)
    assert params.state.name == state
    answer = platt.apply(params, logits)
    assert np.isfinite(answer).all()
    smooth = platt.fit(logits, labels, smoothed=True)
    assert smooth.state.name == ("indistinct" if state == "indistinct" else "converged")
    if state == "indistinct":
        np.testing.assert_allclose(jax.nn.softmax(answer)[:, 1], 0.75, rtol=1e-5)


def test_far_away_scores_are_fitted_all_the_same():
    """Neither the scale of the scores nor where they lie matters."""
    logits, labels = problem(200, 2, seed=5)
    plain = jax.nn.softmax(platt.apply(platt.fit(logits, labels), logits))
    for scale, offset in ((1e-6, 0.0), (1e4, 0.0), (1.0, 300.0)):
        moved = (scale * logits + offset * np.array([0, 1])).astype(np.float32)
        params = platt.fit(moved, labels)
        assert params.state.name == "converged"
        np.testing.assert_allclose(
            jax.nn.softmax(platt.apply(params, moved)), plain, rtol=5e-3, atol=1e-4
        )
