"""Bins, sums and resampling on random numbers, against NumPy in float64."""

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from calib_jax import inference

from .cases import few_and_many

SEEDS = st.integers(0, 2**32 - 1)


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
