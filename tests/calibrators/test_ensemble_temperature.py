"""Mixtures of temperatures against SciPy's minimum over the simplex."""

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax.calibrators import ensemble_temperature as ensemble
from calib_jax.calibrators import temperature
from tests.calibrators.members import problem


def hard_problem(seed):
    """Return problems whose best mixture is inside, or on a side, or in a corner."""
    random = np.random.default_rng(seed)
    logits, labels = problem(200, 3, seed=seed, dtype=np.float64)
    if seed % 3 == 1:  # a tenth of the labels is noise
        labels = np.where(random.random(200) < 0.1, random.integers(3, size=200), labels)
    if seed % 3 == 2:  # half the rows are calibrated, half far too confident
        logits = np.where(np.arange(200)[:, None] % 2, 0.4 * logits, 5 * logits)
    return logits, labels, random.choice([0.5, 1.0, 3.0], 200)


def test_it_is_scipys_minimum(x64):
    corners = []
    for seed in range(9):
        logits, labels, weights = hard_problem(seed)
        params = ensemble.fit(logits, labels, weights)
        assert params.state.name == "converged"
        alone = temperature.fit(logits, labels, weights)
        assert params.temperature == alone.temperature
        assert params.state.nll_after <= alone.state.nll_after + 1e-12
        parts = [scipy.special.softmax(logits / t, axis=-1) for t in (params.temperature, 1)]
        parts = np.stack([*parts, np.full((200, 3), 1 / 3)])
        true = parts[:, np.arange(200), labels]

        def nll(w, true=true, weights=weights):
            return -np.average(np.log(w @ true), weights=weights)

        minimum = scipy.optimize.minimize(
            nll,
            np.full(3, 1 / 3),
            method="SLSQP",
            bounds=[(0, 1)] * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        mixture = np.asarray(params.mixture)
        assert (mixture >= 0).all()
        np.testing.assert_allclose(mixture.sum(), 1, rtol=1e-12)
        np.testing.assert_allclose(mixture, minimum.x, atol=1e-4)
        assert nll(mixture) <= nll(minimum.x) + 1e-10
        expected = np.log(np.tensordot(mixture, parts, 1))
        np.testing.assert_allclose(ensemble.apply(params, logits), expected, rtol=1e-9)
        corners.append((mixture == 0).sum())
    assert {0, 1} & set(corners)
    assert len(set(corners)) > 1


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_no_prediction_changes(scale):
    logits, labels = problem()
    logits = scale * logits
    answer = ensemble.apply(ensemble.fit(logits, labels), logits)
    np.testing.assert_array_equal(np.argmax(answer, axis=-1), logits.argmax(-1))
