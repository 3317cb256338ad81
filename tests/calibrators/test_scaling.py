"""The temperature fit, against SciPy and the released grid searches."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax import metrics
from calib_jax.calibrators import temperature
from calib_jax.calibrators.temperature import scaled
from tests.calibrators import mean_nll
from tests.selection import some

RECORDED = pathlib.Path(__file__).parents[1] / "golden" / "temperature.npz"


def best_temperature(logits, labels, weights):
    """Return SciPy's minimum: a scan of log T, then Brent's root of the derivative by log T."""
    logits = np.asarray(logits, np.float64)
    true = logits[np.arange(len(labels)), labels]

    def slope(log_t):
        p = scipy.special.softmax(logits * np.exp(-log_t), axis=-1)
        return np.average(true - np.sum(p * logits, axis=-1), weights=weights)

    grid = np.linspace(np.log(1e-3), np.log(1e4), 200)
    above = np.argmax([slope(t) > 0 for t in grid])  # the NLL falls before it, and rises from it
    return np.exp(scipy.optimize.brentq(slope, grid[above - 1], grid[above], xtol=1e-14))


def problem(seed):
    """Return logits, labels and weights whose best temperature is about a chosen one."""
    random = np.random.default_rng(seed)
    num_classes = (2, 10, 100)[seed % 3]
    true_temperature = np.exp(random.uniform(np.log(0.05), np.log(60)))
    calibrated = random.uniform(1, 4) * random.standard_normal((400, num_classes))
    labels = np.argmax(calibrated + random.gumbel(size=calibrated.shape), axis=-1)
    weights = random.choice([0.0, 0.5, 1.0, 3.0], size=400) if seed % 2 else np.ones(400)
    return true_temperature * calibrated, labels, weights


@functools.cache
def fit(precision):
    """Compile the fit once a precision; it is traced anew for each shape."""
    return jax.jit(temperature.fit)


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-4), (np.float64, 1e-6)])
@pytest.mark.parametrize("seed", some(range(60), {0, 2, 3}))
def test_the_fit_is_scipys_minimum(seed, dtype, rtol, x64):
    logits, labels, weights = problem(seed)
    logits, weights = logits.astype(dtype), weights.astype(dtype)
    expected = best_temperature(logits, labels, weights)
    assert 0.03 < expected < 100
    actual = fit(dtype)(logits, labels, weights)
    assert actual.temperature.dtype == dtype
    assert actual.state.converged
    np.testing.assert_allclose(actual.temperature, expected, rtol=rtol)
    for nll, t in ((actual.state.nll_before, 1.0), (actual.state.nll_after, expected)):
        wanted = mean_nll(logits.astype(np.float64) / t, labels, weights)
        np.testing.assert_allclose(nll, wanted, rtol=rtol)
    assert actual.state.nll_after <= actual.state.nll_before


def test_a_fit_that_was_cut_short_did_not_converge():
    logits, labels, _ = problem(3)
    logits = logits.astype(np.float32)
    fits = [fit(np.float32)(logits, labels, max_iterations=n) for n in range(30)]
    best = float(fits[-1].temperature)
    assert fits[-1].state.converged
    for actual in fits:
        assert not actual.state.converged or abs(float(actual.temperature) / best - 1) < 1e-4
    assert sum(not actual.state.converged for actual in fits) >= 3


def separable(logits, random):
    return logits.argmax(-1)


def drawn(logits, random):
    return np.argmax(logits / np.abs(logits).max() * 4 + random.gumbel(size=logits.shape), axis=-1)


def nearly_separable(logits, random):
    """Label the row of the smallest gap by its second largest logit, all others by the largest."""
    order = np.argsort(logits, axis=-1)
    top = np.take_along_axis(logits, order, axis=-1)
    first = np.arange(len(logits)) == np.argmin(top[:, -1] - top[:, -2])
    return np.where(first, order[:, -2], order[:, -1])


def worse_than_chance(logits, random):
    return np.where(random.random(len(logits)) < 0.8, logits.argmin(-1), logits.argmax(-1))


def tied_at_the_top(logits, random):
    """Tie the two largest logits of every row, and label it by either."""
    order = np.argsort(logits, axis=-1)
    either = np.where(random.random(len(logits)) < 0.5, order[:, -1], order[:, -2])
    logits[np.arange(len(logits)), order[:, -2]] = logits.max(-1)
    return either


def as_chance(logits, random):
    """Repeat one row with every label once: f' vanishes at 1/T = 0."""
    logits[:] = np.round(4 * logits[:1] / np.abs(logits[0]).max()) * 2.0 ** np.round(
        np.log2(np.abs(logits).max())
    )
    return np.arange(len(logits)) % 3


KINDS = [separable, drawn, nearly_separable, worse_than_chance, tied_at_the_top, as_chance]
SCALES = [1e-30, 1e-6, 1e-3, 0.1, 1.0, 4.0, 8.0, 20.0, 100.0, 1e3, 1e6, 1e20, 1e30]


def slope_at(b, logits, labels, weights):
    """Return f'(b) of shifted logits in float64, and the size of the terms that cancel in it."""
    true = logits[np.arange(len(labels)), labels]
    terms = weights * (np.sum(scipy.special.softmax(b * logits, axis=-1) * logits, axis=-1) - true)
    return terms.sum(), np.abs(terms).sum()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_data_decide_whether_there_is_an_optimum(kind, dtype, x64):
    eps = np.finfo(dtype).eps
    # Squares of the logits have to be numbers of the dtype.
    scales = [s for s in SCALES if dtype is np.float64 or 1e-18 < s < 1e18]
    for case, scale in enumerate(s for s in scales for _ in range(3)):
        random = np.random.default_rng(case)
        logits = (scale * random.standard_normal((24, 3))).astype(dtype)
        labels = kind(logits, random)
        weights = random.choice([0.0, 1.0, 3.0], 24) if case % 3 == 1 else np.ones(24)
        if kind is as_chance:
            weights = np.repeat(weights[::3], 3)
        if kind is nearly_separable:
            weights[labels != logits.argmax(-1)] = 1
        weights = weights.astype(dtype)
        actual = fit(dtype)(logits, labels, weights)

        exact = logits.astype(np.float64)
        exact -= exact.max(-1, keepdims=True)
        size = np.abs(exact[weights > 0]).max()
        problem = exact / size, labels, weights.astype(np.float64)
        true = problem[0][np.arange(24), labels]
        some_wrong = np.any((true < 0) & (weights > 0))
        at_zero, terms = slope_at(0.0, *problem)
        assert kind is as_chance or abs(at_zero) > 1e-4 * terms  # no case that rounding decides
        wanted = bool(some_wrong and at_zero < -1e-12 * terms)
        expected = {separable: False, drawn: True, nearly_separable: True, as_chance: False}
        assert wanted == expected.get(kind, False)
        assert bool(actual.state.converged) == wanted, (scale, case)
        assert (actual.state.name in ("no_optimum", "indistinct")) == (not wanted), (scale, case)
        assert np.isfinite(actual.temperature)
        assert actual.temperature > 0
        assert actual.state.nll_after <= actual.state.nll_before
        if wanted:
            slope, terms = slope_at(size / float(actual.temperature), *problem)
            assert abs(slope) <= 64 * eps * terms, (scale, case)


def test_an_impossible_class_is_no_class():
    random = np.random.default_rng(0)
    logits = random.normal(size=(40, 3)).astype(np.float32)
    beside = np.hstack([logits, np.full((40, 1), -np.inf, np.float32)])
    ones, first = np.ones(40, np.float32), np.arange(40) == 0
    for labels in (separable(logits, random), logits.argmin(axis=1), drawn(logits, random)):
        actual, expected = (
            jax.tree.leaves(fit(np.float32)(z, labels, ones)) for z in (beside, logits)
        )
        np.testing.assert_allclose(actual, expected, rtol=1e-4)
    # A row whose true class is impossible has no say.
    actual = fit(np.float32)(beside, np.where(first, 3, labels), ones).temperature
    expected = fit(np.float32)(beside, labels, np.where(first, 0, ones)).temperature
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    np.testing.assert_array_equal(scaled(jnp.array([-jnp.inf, 3.0]), jnp.inf), [-np.inf, 0])


@pytest.mark.parametrize("logits", [np.zeros((6, 3)), np.full((6, 3), 1e4)])
def test_logits_that_say_nothing_leave_the_temperature_alone(logits):
    actual = temperature.fit(jnp.asarray(logits, jnp.float32), jnp.zeros(6, int))
    assert actual.temperature == 1
    np.testing.assert_allclose(actual.state.nll_after, np.log(logits.shape[1]), rtol=1e-6)


def test_half_precision_is_fitted_in_float32():
    logits, labels, weights = problem(0)
    narrow = jnp.asarray(logits, jnp.bfloat16)
    actual = temperature.fit(narrow, jnp.asarray(labels), jnp.asarray(weights))
    expected = best_temperature(np.asarray(narrow, np.float32), labels, weights)
    assert actual.temperature.dtype == jnp.float32
    np.testing.assert_allclose(actual.temperature, expected, rtol=1e-4)


def test_the_first_strict_minimum_of_the_grid_wins():
    curve = jnp.asarray([3.0, 2.0, 2.0, 2.5, 2.0])  # at T = 1, 2, ...

    def criterion(logits, labels, weights):
        return curve[jnp.argmin(jnp.abs(1 / logits[0, 0] - jnp.arange(1, 6)))]

    grid = {"start": 1.0, "stop": 5.0, "step": 1.0, "criterion": criterion}
    assert temperature.fit_grid(jnp.ones((1, 2)), jnp.zeros(1, int), **grid).temperature == 2


def ece(logits, labels, weights):
    return metrics.ece.value(metrics.ece.stat(logits, labels, weights))


@pytest.mark.parametrize(
    ("number", "criterion", "step", "grid"),
    [
        (0, ece, 0.1, "T_grid_ece"),
        (1, None, 0.1, "T_grid_nll"),
        (2, ece, 0.01, "T_grid001_ece_bsce"),
    ],
)
def test_the_grid_finds_what_the_released_code_found(number, criterion, step, grid):
    recorded, case = np.load(RECORDED), f"tscale_{number}"
    logits, labels = recorded[f"{case}/logits"], recorded[f"{case}/labels"]
    actual = temperature.fit_grid(logits, labels, start=step, step=step, criterion=criterion)
    np.testing.assert_allclose(actual.temperature, recorded[f"{case}/{grid}"], rtol=1e-6)
