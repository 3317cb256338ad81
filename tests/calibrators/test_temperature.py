"""Temperatures: what T may not change, the grid, by group, and mixtures of several."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

from calib_jax import metrics
from calib_jax.calibrators import ensemble_temperature, temperature
from calib_jax.calibrators import ensemble_temperature as ensemble
from calib_jax.calibrators.parts import contract
from tests.calibrators import mean_nll, problem


@pytest.mark.parametrize("calibrator", [temperature, ensemble_temperature])
def test_the_nll_as_measured_never_rises(calibrator):
    apply, nll = jax.jit(calibrator.apply), jax.jit(metrics.nll)
    for seed in range(15):
        random = np.random.default_rng(seed)
        logits = (100 * random.standard_normal((64, 5))).astype(np.float32)
        noise = (0.01, 0.3, 1.0, 3.0, 30.0)[seed % 5]
        labels = np.argmax(logits + noise * random.gumbel(size=logits.shape), axis=-1)
        before = float(nll(logits, labels))
        calibrated = apply(calibrator.fit(logits, labels), logits)
        assert float(nll(calibrated, labels)) <= before * (1 + 4e-7), seed
        np.testing.assert_array_equal(np.argmax(calibrated, axis=-1), np.argmax(logits, axis=-1))


def far_from_4(logits, labels, weights):
    return jnp.abs(logits[0, 0] - 4)


def test_the_grid_minimises_what_it_is_given():
    logits, labels = np.full((4, 2), 6, np.float32), np.zeros(4, int)
    fit = functools.partial(temperature.fit_grid, logits, labels, criterion=far_from_4)
    assert fit(start=0.5, stop=3.0, step=0.5).temperature == 1.5
    assert fit(start=2.0, stop=3.0, step=0.25).temperature == 2.0
    assert fit(start=2.0, stop=3.0, step=0.25).state.name == "stopped"
    assert fit(start=0.5, stop=1.5, step=0.5).state.name == "stopped"
    assert fit(start=1.0, stop=2.0, step=0.5).state.name == "converged"
    weighted = lambda z, y, w: jnp.abs(jnp.sum(w) * z[0, 0] - 4.0)  # noqa: E731
    actual = temperature.fit_grid(
        logits, labels, np.array([2.0, 0, 0, 0]), stop=4.0, criterion=weighted
    )
    np.testing.assert_allclose(actual.temperature, 3.0, rtol=1e-6)
    never = temperature.fit_grid(logits, labels, criterion=lambda z, y, w: jnp.full((), jnp.nan))
    assert (float(never.temperature), never.state.name) == (1.0, "no_optimum")


def test_a_criterion_is_a_function_to_one_number():
    logits = 2 * np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    labels = np.arange(20) % 3
    with pytest.raises(TypeError, match=r"must be one number, and its value has the shape \(3,\)"):
        temperature.fit_grid(logits, labels, criterion=metrics.per_class_ece)


NAMES = np.array(["few", "many", "some"])


def sample(seed, sizes, temperatures):
    """Draw calibrated logits, times a temperature for each group."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    calibrated = 2 * random.standard_normal((len(group), 4))
    labels = np.argmax(calibrated + random.gumbel(size=calibrated.shape), axis=-1)
    logits = calibrated * np.asarray(temperatures)[group][:, None]
    return logits.astype(np.float32), labels, NAMES[group]


def by_group(logits, labels, groups, common):
    """Compute the fixed point of `fit_by_group`: Newton steps of groups, drawn to the rest."""
    names, spreads = np.unique(groups), np.geomspace(1e-3, 10, 2000)
    x, ratio = (logits - logits.max(axis=1, keepdims=True)) / common, np.ones(len(names))
    for _ in range(40):
        sums = []
        for name, b in zip(names, ratio, strict=True):
            rows, true = x[groups == name], labels[groups == name]
            p = scipy.special.softmax(b * rows, axis=1)
            rows = np.where(p > 0, rows, 0)
            mean = np.sum(p * rows, axis=1)
            slope = mean - rows[np.arange(len(rows)), true]
            sums.append([slope.sum(), np.sum(p * rows**2) - np.sum(mean**2), np.sum(slope**2)])
        slope, curvature, scatter = np.transpose(sums)
        noise = np.maximum(scatter, scatter.sum() / curvature.sum() * curvature)
        own, error = ratio - slope / curvature, noise / curvature**2
        square = (own - 1) ** 2 * len(names) / (len(names) - 1)
        total = spreads[:, None] ** 2 + error
        spread = spreads[np.argmin(np.sum(np.log(total) + square / total, axis=1))]
        drawn = 1 + spread**2 / (spread**2 + error) * (own - 1)
        ratio = np.clip(drawn, ratio / 4, 4 * ratio)  # far away a Newton step is too long
    return common / ratio, spread


@pytest.mark.parametrize(
    ("sizes", "masked"), [((20, 300, 100), False), ((1, 299, 120), False), ((60, 240, 120), True)]
)
def test_small_groups_stay_near_the_common_temperature_and_large_ones_have_their_own(sizes, masked):
    logits, labels, groups = sample(0, sizes, (2.0, 1.0, 3.0))
    if masked:
        logits = np.where((np.arange(4) == 3) & (labels != 3)[:, None], -np.inf, logits)
    params = temperature.fit_by_group(logits, labels, groups)
    expected, spread = by_group(logits, labels, groups, float(params.common))
    np.testing.assert_allclose(params.temperature, expected, rtol=8e-3)
    np.testing.assert_allclose(params.spread, spread, rtol=0.05)
    answer = temperature.apply_by_group(params, logits, groups)
    each = np.asarray(params.temperature)[np.searchsorted(NAMES, groups)]
    np.testing.assert_allclose(answer, logits / each[:, None], rtol=1e-5)
    np.testing.assert_allclose(params.state.nll_after, mean_nll(answer, labels), rtol=1e-5)


def test_one_group_or_an_unknown_one_has_the_common_temperature():
    logits, labels, groups = sample(0, (0, 420, 0), (1.0, 2.0, 1.0))
    common = temperature.fit(logits, labels).temperature
    params = temperature.fit_by_group(logits, labels, groups)
    np.testing.assert_allclose(params.temperature, common, rtol=1e-6)
    assert float(params.spread) == 0
    answer = temperature.apply_by_group(params, logits[:2], ["new", "zebra"])
    np.testing.assert_allclose(answer, logits[:2] / common, rtol=1e-5)
    with pytest.raises(TypeError, match="groups are int64, in the fit <U4"):
        temperature.apply_by_group(params, logits[:2], [0, 1])


def test_a_group_without_an_optimum_stays_finite():
    logits, labels, groups = sample(0, (40, 320, 60), (1.0, 1.0, 2.0))
    labels = np.where(groups == "few", logits.argmax(-1), labels)
    labels = np.where(groups == "some", logits.argmin(-1), labels)
    params = temperature.fit_by_group(logits, labels, groups)
    assert np.isfinite(params.temperature).all()
    few, many, some = params.temperature
    assert few < many < some
    assert params.state.nll_after < params.state.nll_before
    flat = np.where((groups == "few")[:, None], 1.0, logits)  # without a slope and a curvature
    params = temperature.fit_by_group(flat, labels, groups)
    assert np.isfinite(params.temperature).all()
    np.testing.assert_allclose(params.temperature[0], params.common, rtol=1e-5)


def test_weights_are_copies_and_names_may_be_numbers_of_any_order():
    logits, labels, groups = sample(1, (60, 240, 120), (1.0, 2.0, 3.0))
    weights = np.arange(420) % 3  # of sum 420
    order = np.random.default_rng(0).permutation(420)
    copies = np.repeat(order, weights[order])
    weighted = temperature.fit_by_group(logits, labels, groups, weights.astype(np.float32))
    copied = temperature.fit_by_group(logits[copies], labels[copies], groups[copies])
    np.testing.assert_allclose(weighted.temperature, copied.temperature, rtol=1e-4)
    np.testing.assert_allclose(weighted.spread, copied.spread, rtol=0.15)
    number = {"few": 7, "many": -1, "some": 3}
    numbered = temperature.fit_by_group(logits, labels, [number[name] for name in groups])
    np.testing.assert_array_equal(numbered.names, [-1, 3, 7])
    named = temperature.fit_by_group(logits, labels, groups).temperature
    np.testing.assert_allclose(numbered.temperature, np.asarray(named)[[1, 2, 0]], rtol=1e-4)


def test_blocks_and_a_start_from_some_rows_change_nothing(x64, monkeypatch):
    logits, labels = problem(215, 53, seed=1, dtype=np.float64)
    weights = np.random.default_rng(2).choice([0.0, 1.0, 3.0], 215)

    def minimum(logits, labels, weights):
        rows = contract.FitRows(logits, labels, weights, jnp.asarray(True))
        return temperature.minimum(rows, 100)

    expected = jax.jit(minimum)(logits, labels, weights)
    assert 0.2 < expected[0] < 5
    for block in (40, 400):  # entries: a row each, and 8 rows with 7 at the end
        monkeypatch.setattr(temperature, "_BLOCK", block)
        found = jax.jit(lambda *rows: minimum(*rows))(logits, labels, weights)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


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
