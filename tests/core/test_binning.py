"""The binning convention, against slow loops over bins and exact fractions."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.calibrators.isotonic import run_sums
from calib_jax.core import binning
from calib_jax.losses.adaptive_focal import sorted_into_bins


def slow_index(value, edges, left_closed=False):
    """Return the first bin (lo, hi] that holds a value; those beyond the ends go to the end."""
    for b, (low, high) in enumerate(itertools.pairwise(edges)):
        if (low <= value < high) if left_closed else (low < value <= high):
            return b
    return 0 if value <= edges[0] else len(edges) - 2


def edge_values(edges):
    """Return the ends of [0, 1], every edge, its two neighbours in float32, and many zeros."""
    low, high = np.nextafter(edges, np.float32(-1)), np.nextafter(edges, np.float32(2))
    values = np.concatenate([np.float32([0, 1]), edges, low, high])
    return np.pad(values, (0, 160 - len(values)))  # in one shape, which shares programs


@pytest.mark.parametrize("num_bins", [1, 2, 3, 10, 15, 20])
def test_every_edge_has_its_bin(num_bins):
    edges = binning.uniform_edges(num_bins)
    assert edges.dtype == np.float32
    np.testing.assert_array_equal(edges, (np.arange(num_bins + 1) / num_bins).astype(np.float32))
    values = edge_values(edges)
    for rule, left_closed in (("right", False), ("left", True)):
        index = binning.BINNING_RULES[rule](jnp.asarray(values), num_bins)
        np.testing.assert_array_equal(index, [slow_index(v, edges, left_closed) for v in values])
        assert index[:2].tolist() == [0, num_bins - 1]  # the ends


@pytest.mark.parametrize("num_bins", [1, 10, 15, 49])
def test_the_ceiling_is_that_of_exact_fractions(num_bins, x64):
    values = edge_values(binning.uniform_edges(num_bins)).clip(0, 1)
    expected = [max(math.ceil(num_bins * Fraction(float(v))) - 1, 0) for v in values]
    for dtype in (np.float32, np.float64):
        rule = binning.BINNING_RULES["ceil"]
        np.testing.assert_array_equal(rule(jnp.asarray(values, dtype), num_bins), expected)


def sample(num_examples=200, seed=0, levels=None):
    """Return confidence, hit and weight; with `levels` confidences are tied."""
    random = np.random.default_rng(seed)
    confidence = random.random(num_examples)
    if levels:
        confidence = np.ceil(confidence * levels) / levels
    hit = (random.random(num_examples) < confidence).astype(np.float32)
    weight = random.choice([0.0, 1.0, 1.0, 2.0, 0.5], size=num_examples).astype(np.float32)
    return confidence.astype(np.float32), hit, weight


def test_the_gap_of_an_empty_bin_has_no_gradient():
    empty = jnp.zeros(2)
    gradient = jax.grad(lambda c: jnp.sum(binning.BinSums(empty, c, empty).gap))(empty)
    np.testing.assert_array_equal(gradient, empty)
    sums = binning.BinSums(*jnp.float32([[0, 0.5, 4], [0, 0.375, 3], [0, 0.5, 1]]))
    np.testing.assert_array_equal(sums.gap, [0, -0.25, 0.5])


def exact_mass_bins(confidence, hit, weight, num_bins):
    """Return sums [3, bins] and edges, in fractions: one tied group after another is poured out.

    Each group of equal confidence is a homogeneous liquid, and each bin a glass of 1/B of all.
    """
    groups = {}
    for c, h, w in zip(confidence, hit, weight, strict=True):
        if w > 0:
            mass, hits = groups.get(Fraction(float(c)), (0, 0))
            w = Fraction(float(w))
            groups[Fraction(float(c))] = (mass + w, hits + w * Fraction(float(h)))
    total = sum(mass for mass, _ in groups.values())
    glass = total / num_bins
    sums = [[Fraction(0)] * num_bins for _ in range(3)]
    edges = [min(groups)]
    b, room = 0, glass
    for c in sorted(groups):
        mass, hits = groups[c]
        left = mass
        while left > 0 and b < num_bins:
            poured = min(left, room)
            for row, amount in zip(sums, (1, c, hits / mass), strict=True):
                row[b] += poured * amount
            left, room = left - poured, room - poured
            if room == 0:
                edges.append(c)
                b, room = b + 1, glass
    return np.array(sums, float), np.array(edges, float)


CASES = {
    "distinct": sample(60, seed=3),
    "tied": sample(60, seed=4, levels=6),
    "two levels": sample(60, seed=5, levels=2),
    "all equal": (np.full(60, 0.625, np.float32), np.eye(60, dtype=np.float32)[4], np.ones(60)),
    "one example": (np.float32([0.7]), np.float32([1]), np.float32([2])),
    "one of two": (np.float32([0.7, 0.9]), np.float32([1, 1]), np.float32([0.5, 0])),
    "fewer than bins": sample(4, seed=6),
    "whole weights": (*sample(60, seed=7)[:2], np.arange(60) % 4),
    "sure and unsure": (np.float32([0, 0, 1, 1]), np.float32([0, 1, 1, 0]), np.ones(4)),
}


@pytest.mark.parametrize("num_bins", [3, 15])
@pytest.mark.parametrize("case", CASES)
def test_equal_mass_bins(case, num_bins, x64):
    confidence, hit, weight = (np.asarray(column, np.float64) for column in CASES[case])
    sums, edges = jax.jit(sorted_into_bins, static_argnums=3)(confidence, hit, weight, num_bins)
    expected, expected_edges = exact_mass_bins(confidence, hit, weight, num_bins)
    np.testing.assert_allclose(np.stack(sums), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(sums.weight, np.full(num_bins, weight.sum() / num_bins), rtol=1e-12)
    np.testing.assert_array_equal(edges, expected_edges)


def test_rounding_of_the_weights_moves_no_edge_between_two_rows():
    confidence, hit, _ = sample(60, seed=1)
    quarters = np.resize(np.float32([1, 2, 3, 5]), 60) / 4
    _, wanted = exact_mass_bins(confidence, hit, quarters, 15)
    bins = jax.jit(sorted_into_bins, static_argnums=3)
    for scale in np.random.default_rng(0).uniform(0.1, 10, 200).astype(np.float32):
        _, edges = bins(confidence, hit, quarters * scale, 15)
        np.testing.assert_array_equal(edges, wanted)


def test_the_last_edge_is_the_highest_confidence_however_small_its_weight():
    confidence, hit, weight = np.float32([[0.1, 0.2, 0.3], [0, 1, 1], [4, 4, 1e-7]])
    _, edges = jax.jit(sorted_into_bins, static_argnums=3)(confidence, hit, weight, 2)
    _, expected = exact_mass_bins(confidence, hit, weight.astype(np.float64), 2)
    assert expected[-1] == confidence[-1]
    assert (edges[0], edges[-1]) == (expected[0], expected[-1])


def slow_whole_bins(confidence, hit, weight, num_bins):
    """Return sums [3, bins] and edges: interpolated edges, bins (lo, hi], whole examples."""
    copies = weight.astype(int)
    confidence, hit = np.repeat(confidence, copies), np.repeat(hit, copies)
    count = len(confidence)
    edges = np.interp(np.linspace(0, count, num_bins + 1), np.arange(count), np.sort(confidence))
    sums = np.zeros((3, num_bins))
    for c, h in zip(confidence, hit, strict=True):
        for b, (low, high) in enumerate(itertools.pairwise(edges)):
            if low < c <= high:
                sums[:, b] += [1, c, h]
    return sums, edges


@pytest.mark.parametrize("num_bins", [2, 15])
@pytest.mark.parametrize("case", CASES)
def test_whole_example_bins(case, num_bins, x64):
    confidence, hit, weight = (np.asarray(column, np.float64) for column in CASES[case])
    weight = np.ceil(weight)
    bins = jax.jit(binning.whole_example_bins, static_argnums=3)
    actual, edges = bins(confidence, hit, weight, num_bins)
    expected, expected_edges = slow_whole_bins(confidence, hit, weight, num_bins)
    np.testing.assert_allclose(edges, expected_edges, rtol=1e-12)
    np.testing.assert_allclose(np.stack(actual), expected, rtol=1e-12)


def test_bins_without_weight_are_empty():
    nothing = jnp.float32([0.5, 0.7]), jnp.ones(2), jnp.zeros(2)
    for bins in (sorted_into_bins, binning.whole_example_bins):
        sums, edges = jax.jit(bins, static_argnums=3)(*nothing, 3)
        np.testing.assert_array_equal(np.stack(sums), np.zeros((3, 3)))
        assert np.isnan(edges).all()


sums_of_runs = jax.jit(run_sums)


@pytest.mark.parametrize("num_rows", [5000, 70_000])
def test_sums_of_runs_and_of_classes_lose_no_rows(num_rows):
    random = np.random.default_rng(0)
    run = np.cumsum((random.random(num_rows) < 0.001) & (np.arange(num_rows) > 30_000))
    weight = np.ones(num_rows, np.float32)
    weight[0] = 2**25  # one float32 sum would end here
    expected = np.bincount(run, weight.astype(float), minlength=num_rows)
    sums = sums_of_runs(run, weight)
    np.testing.assert_allclose(sums, expected, rtol=2e-5)
    sums = jax.jit(binning.class_sums, static_argnums=2)(run, weight, int(run[-1]) + 1)
    np.testing.assert_allclose(sums, expected[: run[-1] + 1], rtol=2e-5)
    outside = np.where(np.arange(num_rows) == 5, -1, run + 1)  # of two classes, 0 and 1
    ones = np.ones(num_rows, np.float32)
    sums = jax.jit(binning.class_sums, static_argnums=2)(outside, ones, 2)
    np.testing.assert_array_equal(sums, [0, np.sum(run == 0) - 1])
    pairs = np.tile(np.arange(2), (num_rows, 1))
    cell_sums = jax.jit(binning.cell_sums, static_argnums=(2, 3))
    sums = cell_sums(pairs, np.float32(1 + pairs), 2, True)
    np.testing.assert_array_equal(sums, [num_rows, 2 * num_rows])


@pytest.mark.parametrize("length", [1, 700])
def test_sums_over_runs_of_many_rows(length):
    values = np.random.default_rng(0).random(10_000).astype(np.float32)
    run = np.arange(10_000) // length
    actual = sums_of_runs(run, values)
    np.testing.assert_allclose(actual, np.bincount(run, values, 10_000), rtol=1e-5)
