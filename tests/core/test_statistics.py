"""Statistics that merge: the laws of addition, over parts, precisions and devices; weights."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from calib_jax.core import numerics
from calib_jax.core.statistics import Joint, Rows, Sums, gather, merged, merged_scan, total
from calib_jax.losses.adaptive_focal import thinned


def stat_of_three(seed):
    """Return statistics of three examples, sums and rows, with whole numbers in them."""
    values = np.random.default_rng(seed).integers(10, size=3).astype(np.float32)
    sums = Sums({"count": jnp.asarray(3.0), "value": jnp.asarray([values.sum(), 1.0])})
    rows = Rows({"value": jnp.asarray(values), "pair": jnp.asarray(np.stack([values] * 2, 1))})
    return Joint({"sums": sums, "rows": rows})


def test_a_scan_and_the_host_merge_all_parts():
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)

    def stat_of(part):
        rows = Rows({"value": part[:, 0], "pair": part})
        return Joint({"sums": Sums({"total": jnp.sum(part, axis=0)}), "rows": rows})

    host = merged([stat_of(jnp.asarray(part)) for part in values])
    for stat in (merged_scan(stat_of, jnp.asarray(values)), host):
        assert stat["sums"]["total"].tolist() == [132, 144]
        np.testing.assert_array_equal(stat["rows"]["pair"], values.reshape(12, 2))
        np.testing.assert_array_equal(stat["rows"]["value"], values.reshape(12, 2)[:, 0])
    assert host["sums"]["total"].dtype == np.float64
    assert isinstance(host["rows"]["pair"], np.ndarray)


def sharded(function, out_specs):
    """Run a function on the parts of eight devices, with the default check of `shard_map`."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("d",))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=out_specs))


def test_devices_merge_as_parts_do():
    """Under pmap, and under `shard_map`, which checks that the result is replicated."""
    parts = [stat_of_three(seed) for seed in range(8)]
    whole = functools.reduce(lambda a, b: a + b, parts)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)

    def reduce(stat):
        return stat.all_reduce("d")

    merged = jax.block_until_ready(jax.pmap(reduce, axis_name="d")(stacked))
    for device in range(8):
        # rows come in the order of the devices
        chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[device], merged), whole)  # noqa: B023

    def reduce_part(stacked):
        return reduce(jax.tree.map(lambda leaf: leaf[0], stacked))

    chex.assert_trees_all_equal(jax.block_until_ready(sharded(reduce_part, P())(stacked)), whole)


def test_statistics_of_different_names_do_not_merge():
    count = Sums({"count": jnp.ones(())})
    with pytest.raises(ValueError, match=r"Sums and Sums of other names do not merge"):
        count + Sums({"hits": jnp.ones(())})
    with pytest.raises(ValueError, match="do not merge"):
        count + Rows({"count": jnp.ones(1)})
    with pytest.raises(ValueError, match="do not merge"):
        Joint({"a": count}) + Joint({"a": count, "b": count})  # b would be lost
    with pytest.raises(ValueError, match="do not merge"):
        count + 1


def test_totals_of_other_options_do_not_broadcast():
    for xp in (np, jnp):
        with pytest.raises(ValueError, match=r"shapes \(1,\) and \(15,\) do not merge"):
            Sums({"weight": xp.ones(1)}) + Sums({"weight": xp.ones(15)})


def test_gather_and_total_send_gradients_home_under_shard_map():
    """The check knows the global value to be one, so that no device takes a share of it."""
    x = jnp.arange(16.0)

    def gradients(x):
        of_rows = jax.grad(lambda x: jnp.sum(gather(x, "d") ** 2))(x)
        return of_rows, jax.grad(lambda x: total(jnp.sum(x), "d") ** 2)(x)

    of_rows, of_sums = jax.block_until_ready(sharded(gradients, P("d"))(x))
    np.testing.assert_allclose(of_rows, 2 * x)
    np.testing.assert_allclose(of_sums, np.full(16, 2 * 120.0))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_absent_rows_can_do_no_harm(dtype):
    logits = jnp.asarray([[1.0, 2.0], [jnp.nan, jnp.inf], [3.0, 4.0]])
    weights = jnp.asarray(np.array([1, 0, 1], dtype))
    clean, labels, _ = numerics.present(logits, jnp.asarray([1, 255, 0]), weights)
    np.testing.assert_array_equal(clean, [[1, 2], [0, 0], [3, 4]])
    np.testing.assert_array_equal(labels, [1, 0, 0])
    values = jnp.asarray([5.0, jnp.nan, 7.0])
    np.testing.assert_array_equal(numerics.weigh(values, weights), [5, 0, 7])
    pairs = jnp.stack([values, 2 * values], axis=1)
    np.testing.assert_array_equal(numerics.weigh(pairs, weights), [[5, 10], [0, 0], [7, 14]])


@pytest.mark.parametrize(
    ("shape", "kept"),
    [((4, 3), (4, 3)), ((4,), (4,)), ((2, 5, 2), (2, 3, 1)), ((2, 1, 9), (2, 1, 5))],
)
def test_large_examples_keep_an_even_grid_of_their_labels(shape, kept):
    labels = jnp.arange(np.prod(shape)).reshape(shape)
    logits = jnp.stack([labels, -labels], axis=-1).astype(float)
    some = thinned(logits, labels, 2 * labels, 5)
    assert some[1].shape == kept
    np.testing.assert_array_equal(some[0], jnp.stack([some[1], -some[1]], axis=-1))
    np.testing.assert_array_equal(some[2], 2 * some[1])
    assert thinned(logits, labels, None, 5)[2] is None
    for width, kept in ((256, 256), (257, 129)):  # at most 2^15 of an example
        pixels = jnp.zeros((1, 128, width))
        assert thinned(pixels[..., None], pixels.astype(int), None)[1].shape[2] == kept


@pytest.mark.parametrize("function", [numerics.counted, jax.jit(numerics.counted)])
def test_weights_below_1_are_scaled_to_a_mean_of_1_and_counts_stay(function):
    of_arrays = lambda *weights: np.asarray(function(jnp.float32(weights)))  # noqa: E731
    np.testing.assert_array_equal(of_arrays(0, 1, 2.5, 7), [0, 1, 2.5, 7])
    np.testing.assert_allclose(of_arrays(0, 1, 0.5, 1.5), [0, 1, 0.5, 1.5], rtol=1e-6)
    np.testing.assert_allclose(of_arrays(0, 1e-3, 3e-3), [0, 0.5, 1.5], rtol=1e-6)
    np.testing.assert_array_equal(of_arrays(*[1 / 30] * 30), np.ones(30))
    np.testing.assert_array_equal(of_arrays(0, 0), [0, 0])
    for wrong in (np.nan, -1, np.inf):
        odd = of_arrays(wrong, 0.5, 0.5)[0]
        assert not 0 <= odd < np.inf


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf, 1e38])
def test_a_row_without_a_usable_weight_is_nan(wrong):
    weights = jnp.asarray([2.0, 0.0, wrong])
    logits, _, used = numerics.present(jnp.ones((3, 2)), jnp.asarray([1, 7, 1]), weights)
    assert np.isnan(logits[2]).all()
    assert used[2] == 1
    weighed = numerics.weigh(jnp.ones(3), weights)
    np.testing.assert_array_equal(weighed, [2, 0, np.float32(1e38) if wrong == 1e38 else np.nan])
    if wrong == -1:  # the others are as they were
        np.testing.assert_array_equal(logits[:2], [[1, 1], [0, 0]])
        np.testing.assert_array_equal(used[:2], [2, 0])


def test_weights_of_too_large_a_sum_are_unusable():
    for total_weight, logit in ((1e30, 1), (1.05e30, np.nan)):
        weights = jnp.float32([total_weight, 0])
        logits, _, _ = numerics.present(jnp.ones((2, 2)), jnp.zeros(2, int), weights)
        assert np.array_equal(logits[0], [logit, logit], equal_nan=True)
