"""Intervals of means over seeds: their formula, their limits, and how often they cover."""

import numpy as np
import pytest
import scipy.stats

from calib_jax.inference.noise_bound import NoiseBound
from experiments.reports import seed_intervals


def bound(value, low, high, p_value=0.001):
    return NoiseBound(value, low, high, 0.0, p_value)


def test_one_run_has_the_interval_of_its_examples():
    interval = seed_intervals.of_samples([0.5], np.linspace(0, 1, 101)[None])
    assert interval == (pytest.approx(0.05), pytest.approx(0.95), "percentile")
    assert seed_intervals.of_bounds([bound(0.3, 0.1, 0.4)]) == (0.1, 0.4, "noise bound")


def test_no_interval_leaves_the_range_of_its_metric():
    samples = np.array([[0.1, 0.2], [0.7, 0.9]])
    assert seed_intervals.of_samples([0.15, 0.8], samples, most=1.0)[:2] == (0, 1)
    assert seed_intervals.of_samples([0.15, 0.8], samples).high > 1


def test_bounds_of_several_runs_are_widened_by_the_seeds():
    bounds = [bound(0.30, 0.22, 0.40), bound(0.34, 0.28, 0.42), bound(0.35, 0.28, 0.46)]
    low, high, kind = seed_intervals.of_bounds(bounds)
    of_seeds = np.var([0.30, 0.34, 0.35], ddof=1) / 3
    mean = 0.33
    for end, half in ((low, 0.07), (high, 0.4266667 - 0.33)):
        of_examples = (half / scipy.stats.norm.ppf(0.95)) ** 2
        squares = scipy.stats.t(2).ppf(0.95) ** 2 * of_seeds
        wanted = np.sqrt(squares + scipy.stats.norm.ppf(0.95) ** 2 * of_examples)
        assert abs(end - mean) == pytest.approx(wanted, rel=1e-5)
    assert kind == "noise bound and seeds"
    # Equal runs have the interval of one.
    assert seed_intervals.of_bounds(3 * bounds[:1])[:2] == pytest.approx((0.22, 0.40))


def test_the_lower_end_is_0_unless_the_runs_together_reject():
    rejecting, other = bound(0.3, 0.2, 0.4, 0.001), bound(0.3, 0.0, 0.4, 0.06)
    assert seed_intervals.of_bounds([rejecting, other]).low == 0  # 2 x mean p is .061
    assert seed_intervals.of_bounds([rejecting, rejecting, rejecting, other]).low > 0
    assert seed_intervals.of_bounds([bound(0.9, 0.5, 1.0), bound(0.8, 0.5, 1.0)]).high == 1
