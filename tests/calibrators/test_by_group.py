"""Temperatures by group: never worse than the common one beyond noise, better where they differ."""

import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.calibrators import temperature
from tests.calibrators.members import mean_nll

NAMES = np.array(["few", "many", "some"])


def sample(seed, sizes, temperatures):
    """Draw calibrated logits, times a temperature for each group."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    calibrated = 2 * random.standard_normal((len(group), 4))
    labels = np.argmax(calibrated + random.gumbel(size=calibrated.shape), axis=-1)
    logits = calibrated * np.asarray(temperatures)[group][:, None]
    return logits.astype(np.float32), labels, NAMES[group]


def test_small_groups_stay_near_the_common_temperature_and_large_ones_have_their_own():
    excess = []
    for seed in range(20):
        fitted = sample(seed, (20, 2000, 400), (2.0, 1.0, 3.0))
        params = temperature.fit_by_group(*fitted)
        few, many, some = params.temperature
        np.testing.assert_allclose([many, some], [1, 3], rtol=0.25)
        own = temperature.fit(*(part[fitted[2] == "few"] for part in fitted[:2])).temperature
        assert min(own, params.common) <= few <= max(own, params.common)
        logits, labels, groups = sample(100 + seed, (2000, 2000, 2000), (2.0, 1.0, 3.0))
        by_group = mean_nll(temperature.apply_by_group(params, logits, groups), labels)
        excess.append(by_group - mean_nll(logits / params.common, labels))
    assert max(excess) < -0.05


def test_groups_that_do_not_differ_cost_no_more_than_noise():
    excess = []
    for seed in range(20):
        params = temperature.fit_by_group(*sample(seed, (20, 300, 100), (2.0, 2.0, 2.0)))
        logits, labels, groups = sample(100 + seed, (100, 1500, 500), (2.0, 2.0, 2.0))
        by_group = mean_nll(temperature.apply_by_group(params, logits, groups), labels)
        excess.append(by_group - mean_nll(logits / params.common, labels))
    # Three free temperatures would cost a whole unit of 1 / n more than one.
    assert 420 * np.mean(excess) < 0.5
    assert 420 * np.max(excess) < 5


def test_one_group_or_an_unknown_one_has_the_common_temperature():
    logits, labels, groups = sample(0, (0, 500, 0), (1.0, 2.0, 1.0))
    common = temperature.fit(logits, labels).temperature
    params = temperature.fit_by_group(logits, labels, groups)
    np.testing.assert_allclose(params.temperature, common, rtol=1e-6)
    assert float(params.spread) == 0
    answer = temperature.apply_by_group(params, logits[:2], ["new", "zebra"])
    np.testing.assert_allclose(answer, logits[:2] / common, rtol=1e-5)


def test_a_group_without_an_optimum_stays_finite():
    logits, labels, groups = sample(0, (50, 500, 200), (1.0, 1.0, 2.0))
    labels = np.where(groups == "few", logits.argmax(-1), labels)
    labels = np.where(groups == "some", logits.argmin(-1), labels)
    params = temperature.fit_by_group(logits, labels, groups)
    assert np.isfinite(params.temperature).all()
    few, many, some = params.temperature
    assert few < many < some
    assert params.state.nll_after < params.state.nll_before
    flat = np.where((groups == "few")[:, None], 1.0, logits)  # without a slope and a curvature
    params = temperature.fit_by_group(flat, labels, groups)
    np.testing.assert_allclose(params.temperature[0], params.common, rtol=1e-5)


def test_weights_are_copies_and_names_may_be_numbers_of_any_order():
    logits, labels, groups = sample(1, (40, 200, 100), (1.0, 2.0, 3.0))
    weights = np.arange(340) % 3
    order = np.random.default_rng(0).permutation(340)
    copies = np.repeat(order, weights[order])
    weighted = temperature.fit_by_group(logits, labels, groups, weights.astype(np.float32))
    copied = temperature.fit_by_group(logits[copies], labels[copies], groups[copies])
    np.testing.assert_allclose(weighted.temperature, copied.temperature, rtol=1e-4)
    np.testing.assert_allclose(weighted.spread, copied.spread, rtol=0.15)
    number = {"few": 7, "many": -1, "some": 3}
    numbered = temperature.fit_by_group(logits, labels, [number[name] for name in groups])
    np.testing.assert_array_equal(numbered.names, [-1, 3, 7])
    named = temperature.fit_by_group(logits, labels, groups).temperature
    np.testing.assert_allclose(numbered.temperature, named[jnp.array([1, 2, 0])], rtol=1e-4)


def test_impossible_classes_keep_probability_0():
    logits, labels, groups = sample(2, (100, 100, 100), (1.0, 2.0, 3.0))
    masked = np.where((np.arange(4) == 3) & (labels != 3)[:, None], -np.inf, logits)
    params = temperature.fit_by_group(masked, labels, groups)
    answer = temperature.apply_by_group(params, masked, groups)
    np.testing.assert_array_equal(np.isinf(answer), np.isinf(masked))
    np.testing.assert_allclose(params.state.nll_after, mean_nll(answer, labels), rtol=1e-5)
    assert np.isfinite(jax.nn.softmax(answer)).all()
