"""Beta calibration against SciPy's bounded minimum."""

import jax
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax.calibrators import beta
from tests.calibrators.members import problem
from tests.selection import first_case


def scipy_fit(p, target, weights):
    """Minimise the binary NLL over a >= 0, b >= 0 and c."""
    features = np.stack([np.log(p), -np.log1p(-p), np.ones_like(p)])

    def loss(theta):
        x = theta @ features
        residual = weights * (scipy.special.expit(x) - target) / weights.sum()
        return np.average(np.logaddexp(0, x) - target * x, weights=weights), features @ residual

    options = {"maxiter": 10_000, "ftol": 1e-16, "gtol": 1e-11}
    bounds = [(0, None), (0, None), (None, None)]
    start = np.array([1.0, 1.0, 0.0])
    return scipy.optimize.minimize(loss, start, jac=True, bounds=bounds, options=options).x


@first_case
@pytest.mark.parametrize("num_classes", [2, 4])
def test_it_is_scipys_minimum(num_classes, x64):
    logits, labels = problem(200, num_classes, seed=3, dtype=np.float64)
    weights = np.random.default_rng(0).choice([0.5, 1.0, 3.0], 200)
    params = beta.fit(logits, labels, weights)
    assert params.state.name == "converged"
    p = scipy.special.softmax(logits, axis=-1)
    classes = [1] if num_classes == 2 else range(4)
    wanted = np.array([scipy_fit(p[:, k], labels == k, weights) for k in classes])
    actual = np.stack([params.a, params.b, params.c], axis=1)
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)

    q = scipy.special.expit(
        wanted[:, 0] * np.log(p[:, classes])
        - wanted[:, 1] * np.log1p(-p[:, classes])
        + wanted[:, 2]
    )
    q = np.concatenate([1 - q, q], axis=1) if num_classes == 2 else q / q.sum(1, keepdims=True)
    np.testing.assert_allclose(jax.nn.softmax(beta.apply(params, logits)), q, rtol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_where_a_bound_is_met_it_is_still_scipys_minimum(seed, x64):
    """Labels that no rising curve explains well: a, b or both end at 0."""
    random = np.random.default_rng(seed)
    p = random.uniform(0.02, 0.98, 200)
    chance = [(1 - p), p**2 * 0.3, 1 - 0.7 * (1 - p) ** 3, 4 * (p - 0.5) ** 2, 0.5 + 0 * p, p][seed]
    labels = (random.random(200) < chance).astype(int)
    params = beta.fit(np.log(np.stack([1 - p, p], axis=1)), labels, np.ones(200))
    wanted = scipy_fit(p, labels, np.ones(200))
    assert params.state.name == "converged"
    assert min(params.a[0], params.b[0]) >= 0
    if seed in (0, 3):
        assert min(wanted[:2]) == 0
    np.testing.assert_allclose(
        [params.a[0], params.b[0], params.c[0]], wanted, rtol=1e-4, atol=1e-5
    )


def test_wrong_way_round_is_a_base_rate_and_the_right_way_has_no_optimum():
    score = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    logits = np.stack([0 * score, score], axis=1)
    params = beta.fit(logits, np.array([1, 1, 0, 0]))
    assert params.state.name == "converged"
    np.testing.assert_allclose(jax.nn.softmax(beta.apply(params, logits)), 0.5, rtol=1e-5)
    params = beta.fit(logits, np.array([0, 0, 1, 1]))
    assert params.state.name == "no_optimum"
    assert params.state.nll_after < 0.1 * params.state.nll_before
