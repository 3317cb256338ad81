"""The order of numbers is that of `jnp.argsort`, equal numbers by their index."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.core.numerics import argsort

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.0]


@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3, 70_000), (2, 3, 40)])
def test_the_order_is_that_of_jax_for_numbers_of_all_kinds(shape):
    generator = np.random.default_rng(0)
    rows = generator.normal(size=shape).astype(np.float32)
    some = generator.random(shape) < 0.5  # many equal ones
    rows[some] = generator.choice(np.array(SPECIAL, np.float32), np.sum(some))
    np.testing.assert_array_equal(jax.jit(argsort)(rows), jnp.argsort(rows))


def test_other_precisions_are_sorted_too():
    rows = jnp.array([0.5, -1.0, 0.25], jnp.bfloat16)
    np.testing.assert_array_equal(argsort(rows), [1, 2, 0])
