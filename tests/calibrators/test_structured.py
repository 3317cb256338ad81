"""Structured vector and matrix scaling against SciPy's minimum, and values of their authors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax import calibrators
from tests.calibrators.members import mean_nll, problem

BOTH = pytest.mark.parametrize("name", ["svs", "sms"])
K = 3


def criterion(name, x, labels, share, penalties, n):
    """Return the penalised NLL and its gradient as a function of all parameters."""
    one_hot = np.eye(K)[labels]
    factors = np.where(np.eye(K) > 0, penalties[0] * K / n, penalties[1] * K * (K - 1) / n)

    def unpack(theta):
        if name == "svs":
            return np.diag(theta[:K]), theta[K:]
        return theta[: K * K].reshape(K, K), theta[K * K :]

    def loss(theta):
        w, b = unpack(theta)
        z = x @ w.T + b
        residual = share[:, None] * (scipy.special.softmax(z, axis=1) - one_hot)
        value = -share @ np.sum(one_hot * scipy.special.log_softmax(z, axis=1), axis=1)
        value += np.sum(factors * (w - np.eye(K)) ** 2) + penalties[2] * K / n * np.sum(b**2)
        slope_w = residual.T @ x + 2 * factors * (w - np.eye(K))
        slope_w = np.diag(slope_w) if name == "svs" else slope_w.ravel()
        slope_b = residual.sum(axis=0) + 2 * penalties[2] * K / n * b
        return value, np.concatenate([slope_w, slope_b])

    return loss


@BOTH
@pytest.mark.parametrize("factor", [1.0, 0.02])
def test_it_is_scipys_minimum(name, factor, x64):
    logits, labels = problem(200, K, seed=3, dtype=np.float64)
    logits += np.array([1.0, 0.0, -2.0])
    weights = np.random.default_rng(0).choice([0.0, 1.0, 3.0], 200)
    n = weights.sum()
    penalties = factor * np.array([2.0, 0.5, 0.1])
    names = (
        ("slope_penalty", None) if name == "svs" else ("diagonal_penalty", "off_diagonal_penalty")
    )
    options = dict(zip((*names, "intercept_penalty"), penalties, strict=True))
    options.pop(None, None)
    params = calibrators.named(name).fit(logits, labels, weights, **options)
    assert params.state.name == "converged"
    temperature = float(calibrators.temperature.fit(logits, labels, weights).temperature)
    np.testing.assert_allclose(params.temperature, temperature, rtol=1e-12)
    p = scipy.special.softmax(logits / temperature, axis=1)
    x = np.log(p * n / (n + 1) + 1 / (n + 1) / K)
    loss = criterion(name, x, labels, weights / n, penalties, n)
    start = np.concatenate([np.ones(K) if name == "svs" else np.eye(K).ravel(), np.zeros(K)])
    best = scipy.optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-10})
    theta = np.concatenate([np.ravel(params[2]), params.intercept])
    np.testing.assert_allclose(loss(theta)[0], best.fun, rtol=1e-12)
    np.testing.assert_allclose(theta, best.x, rtol=1e-5, atol=1e-6)
    z = x @ (np.diag(best.x[:K]) if name == "svs" else best.x[: K * K].reshape(K, K)).T
    answer = jax.nn.softmax(calibrators.named(name).apply(params, logits))
    np.testing.assert_allclose(answer, scipy.special.softmax(z + best.x[-K:], axis=1), rtol=1e-5)


# The mean NLL after SVSCalibrator and SMSCalibrator of probmetrics 1.3.0, with their defaults.
RECORDED = {
    ("svs", 200, 3): 0.747329,
    ("sms", 200, 3): 0.718283,
    ("svs", 10_000, 10): 1.417826,
    ("sms", 10_000, 10): 1.409781,
}


@pytest.mark.parametrize(("name", "num_rows", "num_classes"), RECORDED)
def test_it_reaches_the_nll_of_probmetrics(name, num_rows, num_classes):
    random = np.random.default_rng(0)
    shape = (num_rows, num_classes)
    z = random.standard_normal(shape).astype(np.float32) * 1.5
    likely = np.arange(num_classes) == random.integers(num_classes, size=num_rows)[:, None]
    z += np.float32(np.log(num_classes)) * likely
    shift = 0.5 * random.standard_normal(num_classes).astype(np.float32)
    slope = (1 + 0.3 * random.standard_normal(num_classes)).astype(np.float32)
    labels = np.argmax(slope * z + shift + random.gumbel(size=shape), axis=1)
    logits = z * np.float32(1.8)
    params = calibrators.named(name).fit(logits, labels)
    assert params.state.name == "converged"
    reached = mean_nll(calibrators.named(name).apply(params, logits), labels)
    np.testing.assert_allclose(reached, RECORDED[name, num_rows, num_classes], atol=1e-4)


@BOTH
def test_strong_penalties_leave_temperature_scaling(name):
    logits, labels = problem()
    names = {"svs": ["slope"], "sms": ["diagonal", "off_diagonal"]}[name] + ["intercept"]
    params = calibrators.named(name).fit(logits, labels, **{f"{n}_penalty": 1e4 for n in names})
    identity = np.ones(3) if name == "svs" else np.eye(3)
    np.testing.assert_allclose(params[2], identity, atol=1e-3)
    np.testing.assert_allclose(params.intercept, 0, atol=1e-3)
    alone = calibrators.temperature.fit(logits, labels)
    np.testing.assert_allclose(params.state.nll_after, alone.state.nll_after, atol=1 / 80)


@BOTH
def test_options_are_checked(name):
    with pytest.raises(ValueError, match="intercept_penalty must be greater than 0, got 0"):
        calibrators.named(name).fit(*problem(), intercept_penalty=0)
    params = calibrators.named(name).fit(*problem(), max_iterations=1)
    assert params.state.nll_after < params.state.nll_before


@BOTH
def test_separable_classes_have_an_optimum(name):
    """The NLL alone would approach 0 with the parameters growing."""
    logits, labels = problem()
    labels = np.where(logits[:, 0] > 0, 0, 1 + labels % 2)
    params = calibrators.named(name).fit(logits, labels)
    assert params.state.name == "converged"
    assert np.isfinite(params[2]).all()
    assert jnp.max(jnp.abs(params[2])) < 50
