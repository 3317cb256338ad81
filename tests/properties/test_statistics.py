"""Bins, sums and resampling on random numbers, against NumPy in float64."""

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from calib_jax import inference
from calib_jax.core import binning
from calib_jax.core.statistics import Rows, Sums

from .cases import few_and_many

SEEDS = st.integers(0, 2**32 - 1)
BINS = (1, 2, 10, 15)


def confidences(seed, rows):
    """Draw confidences of which some are equal, and some lie on edges or at the ends."""
    random = np.random.default_rng(seed)
    kinds = [
        random.random(rows),
        random.integers(0, 31, rows) / 30,
        np.linspace(0, 1, 16, dtype=np.float32)[random.integers(0, 16, rows)],
        np.nextafter(np.float32(1) / 15, random.integers(0, 2, rows)),
    ]
    return np.choose(random.integers(0, 4, rows), kinds).astype(np.float32)


@few_and_many(
    {"seed": SEEDS, "num_bins": st.sampled_from(BINS)},
    {"seed": SEEDS, "num_bins": st.sampled_from((*BINS, 3, 7, 20, 100))},
)
def TestFixedBins(seed: int, num_bins: int) -> None:
    """Every value has the bin (lo, hi] that comparing float32 with float32 gives."""
    values = confidences(seed, 50)
    edges = np.linspace(0, 1, num_bins + 1, dtype=np.float32)
    actual = np.asarray(binning.bin_index(jnp.asarray(values), edges))
    wanted = [sum(value > edge for edge in edges[1:-1]) for value in values]
    np.testing.assert_array_equal(actual, wanted)


def poured(confidence, hit, weight, num_bins):
    """Pour examples into bins of equal weight by exact cumulative sums in float64."""
    size = weight.sum() / num_bins
    values = np.unique(confidence[weight > 0])
    group = [weight[confidence == v].sum() for v in values]
    means = [(hit * weight)[confidence == v].sum() / g for v, g in zip(values, group, strict=True)]
    ends = np.cumsum(group)
    total = np.zeros((num_bins, 3))
    for b in range(num_bins):
        low, high = b * size, (b + 1) * size
        part = np.clip(np.minimum(ends, high) - np.maximum(ends - group, low), 0, None)
        total[b] = part.sum(), part @ values, part @ np.array(means)
    return total


@few_and_many(
    {"seed": SEEDS, "rows": st.sampled_from((1, 20)), "num_bins": st.sampled_from((1, 15))},
    {"seed": SEEDS, "rows": st.sampled_from((1, 2, 9, 50)), "num_bins": st.sampled_from(BINS)},
)
def TestBinsOfEqualMass(seed: int, rows: int, num_bins: int) -> None:
    """Sums of bins of equal mass are those of pouring, with ties, fractions and absent rows."""
    random = np.random.default_rng(seed)
    confidence = confidences(seed, rows)
    hit = random.integers(0, 2, rows).astype(np.float32)
    weight = random.choice([0, 1, 1, 2, 0.5], rows).astype(np.float32)
    weight[random.integers(rows)] = 1
    sums, edges = binning.equal_mass_bins(*map(jnp.asarray, (confidence, hit, weight)), num_bins)
    wanted = poured(confidence.astype(float), hit.astype(float), weight.astype(float), num_bins)
    np.testing.assert_allclose(np.stack(sums, axis=1), wanted, rtol=1e-5, atol=2e-5)
    assert np.all(np.diff(np.asarray(edges)) >= 0)


@few_and_many(
    {"seed": SEEDS, "cuts": st.integers(0, 5)}, {"seed": SEEDS, "cuts": st.integers(0, 20)}
)
def TestPartsMergeToTheWhole(seed: int, cuts: int) -> None:
    """Sums and rows do not depend on where the data were cut, nor on the order of sums."""
    random = np.random.default_rng(seed)
    values = random.standard_normal((30, 2)) * 10.0 ** random.integers(-3, 4)
    places = np.sort(random.integers(0, 31, cuts))
    parts = np.split(values, places)
    sums = [Sums({"total": part.sum(axis=0)}) for part in parts]
    rows = [Rows({"value": part}) for part in parts]
    merged, kept = sums[0], rows[0]
    for one, other in zip(sums[1:], rows[1:], strict=True):
        merged, kept = merged + one, kept + other
    size = np.abs(values).sum()
    np.testing.assert_allclose(merged["total"], values.sum(axis=0), atol=1e-12 * size)
    np.testing.assert_array_equal(kept["value"], values)


@few_and_many(
    {"seed": SEEDS, "level": st.floats(0.01, 0.99)}, {"seed": SEEDS, "level": st.floats(0.01, 0.99)}
)
def TestIntervals(seed: int, level: float) -> None:
    """An interval holds its share of the samples, whatever the others are; NaN belong to none."""
    random = np.random.default_rng(seed)
    samples = random.choice([random.standard_normal(40), random.integers(0, 3, 40)])
    gone = random.random(40) < random.choice([0, 0.3])
    gone[0] = False
    actual = inference.interval(
        jnp.asarray(np.where(gone, np.nan, samples), jnp.float32), level=level
    )
    wanted = np.quantile(samples[~gone].astype(np.float32), [(1 - level) / 2, (1 + level) / 2])
    np.testing.assert_allclose(np.asarray(actual), wanted, rtol=1e-4, atol=1e-5)
