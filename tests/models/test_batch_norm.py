"""Batch norm against NumPy in float64: padding, several devices, and both variances."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax.models.batch_norm import BatchNorm

EPSILON = 1e-5


def normalised(rows, scale, bias, mean, var):
    return (rows - mean) / np.sqrt(var + EPSILON) * scale + bias


def start(channels, dtype=jnp.float32):
    """Variables of which none is at its trivial value."""
    draw = np.random.default_rng(7)
    params = {"scale": draw.uniform(0.5, 2, channels), "bias": draw.standard_normal(channels)}
    statistics = {"mean": draw.standard_normal(channels), "var": draw.uniform(0.5, 2, channels)}
    tree = {"params": params, "batch_stats": statistics}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf.astype(dtype)), tree)


def train(variables, x, mask=None, **options):
    apply = functools.partial(BatchNorm(**options).apply, train=True, mutable=["batch_stats"])
    y, changed = jax.jit(apply)(variables, x, mask=mask)
    return y, changed["batch_stats"]


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("axes", [0, 1, 2], ids=["no mask", "examples", "positions"])
def test_equals_numpy(axes, unbiased, x64):
    draw = np.random.default_rng(0)
    x = 3 + 2 * draw.standard_normal((5, 4, 3))
    mask = np.ones((5, 4), bool)
    if axes == 1:
        mask[[1, 4]] = False
    if axes == 2:
        mask = draw.random((5, 4)) < 0.6
    given = {0: None, 1: jnp.asarray(mask[:, 0]), 2: jnp.asarray(mask)}[axes]
    variables = start(3, jnp.float64)
    y, statistics = train(
        variables, jnp.asarray(x), given, dtype="float64", unbiased=unbiased, momentum=0.7
    )
    rows = x[mask]
    params = jax.device_get(variables["params"])
    expected = normalised(rows, **params, mean=rows.mean(0), var=rows.var(0))
    np.testing.assert_allclose(y[mask], expected, rtol=1e-12)
    old = variables["batch_stats"]
    np.testing.assert_allclose(
        statistics["mean"], 0.7 * old["mean"] + 0.3 * rows.mean(0), rtol=1e-12
    )
    var = rows.var(0, ddof=1 if unbiased else 0)
    np.testing.assert_allclose(statistics["var"], 0.7 * old["var"] + 0.3 * var, rtol=1e-12)


def test_a_large_mean_costs_no_digits():
    # Mean of squares less square of mean would keep none of the variance's digits here.
    x = np.random.default_rng(0).standard_normal((1000, 2)).astype(np.float32) + np.float32(1e4)
    _, statistics = train(start(2), jnp.asarray(x), momentum=0.0)
    np.testing.assert_allclose(statistics["var"], x.astype(float).var(0, ddof=1), rtol=1e-4)
    apart = functools.partial(train, start(2), momentum=0.0, axis_name="device")
    _, statistics = jax.vmap(apart, axis_name="device")(jnp.asarray(x.reshape(4, 250, 2)))
    expected = np.broadcast_to(x.astype(float).var(0, ddof=1), (4, 2))
    np.testing.assert_allclose(statistics["var"], expected, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_statistics_of_short_numbers_are_not_short(dtype):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((4000, 1)) * 30 + 100, dtype)
    y, statistics = train(start(1), x, momentum=0.0, dtype=dtype)
    assert y.dtype == dtype
    exact = np.asarray(x, float)
    assert statistics["mean"].dtype == statistics["var"].dtype == jnp.float32
    np.testing.assert_allclose(statistics["mean"], exact.mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics["var"], exact.var(0, ddof=1), rtol=1e-4)


@pytest.mark.parametrize("filling", [0.0, 1e30, np.nan])
def test_nothing_real_changes_nothing(filling):
    variables = start(2)
    x, nobody = jnp.full((3, 2), filling, jnp.float32), jnp.zeros(3, bool)

    def total(params, x):
        y, statistics = train({**variables, "params": params}, x, nobody)
        return jnp.sum(y), statistics

    gradient, statistics = jax.grad(total, argnums=(0, 1), has_aux=True)(variables["params"], x)
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    jax.tree.map(np.testing.assert_array_equal, statistics, variables["batch_stats"])


def test_one_value_has_a_mean_but_no_unbiased_variance():
    variables = start(2)
    old = variables["batch_stats"]
    x = jnp.asarray([[5.0, -3.0]])
    _, statistics = train(variables, x)
    np.testing.assert_allclose(statistics["mean"], 0.9 * old["mean"] + 0.1 * x[0], rtol=1e-6)
    np.testing.assert_array_equal(statistics["var"], old["var"])
    _, statistics = train(variables, x, unbiased=False)
    np.testing.assert_allclose(statistics["var"], 0.9 * old["var"], rtol=1e-6)
    # On the second of two devices, and beside a second value.
    apart = functools.partial(train, variables, axis_name="device")
    rows, mask = jnp.stack([0 * x, x]), jnp.asarray([[False], [True]])
    _, statistics = jax.vmap(apart, axis_name="device")(rows, mask)
    np.testing.assert_allclose(statistics["mean"][0], 0.9 * old["mean"] + 0.1 * x[0], rtol=1e-6)
    _, statistics = train(variables, rows[:, 0])
    np.testing.assert_allclose(statistics["var"], 0.9 * old["var"] + 0.05 * x[0] ** 2, rtol=1e-6)
