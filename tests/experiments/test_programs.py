"""Bytes that devices exchange and memory of programs, against closed forms."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from calib_jax import losses, models, train
from calib_jax.train.devices import memory
from experiments.benchmarks import programs


@pytest.mark.parametrize("count", [2, 8])
def test_bytes_of_every_kind(count):
    tree = {"float32": jnp.ones((3, 5)), "uint8": jnp.ones((2, 2, 9), jnp.uint8)}
    rows, half = jnp.ones((count, 11)), jnp.ones((4, 3), jnp.int16)
    ring = [(i, (i + 1) % count) for i in range(count)]

    def exchange(tree, rows, half):
        return (
            lax.psum(tree, train.AXIS),
            lax.all_gather(half, train.AXIS),
            lax.psum_scatter(rows, train.AXIS),
            lax.ppermute(half, train.AXIS, ring),
            lax.all_to_all(rows, train.AXIS, 0, 0, tiled=True),
        )

    result = programs.exchanged(exchange, tree, rows, half, devices=count)
    expected = (60 + 36) + count * 24 + count * 44 + 24 + count * 44
    assert result == {"gradient": expected}


def test_loops_count_as_often_as_they_turn():
    def known(x):
        step = jax.jit(lambda x: lax.psum(jnp.sin(x), train.AXIS))
        return lax.scan(lambda x, _: (step(x), None), x, length=3)[0]

    assert programs.exchanged(known, jnp.ones(10), devices=2).total() == 3 * 40

    def unknown(x, stop):
        return lax.fori_loop(0, stop, lambda _, x: lax.psum(x, train.AXIS), x)

    with pytest.raises(ValueError, match="A loop of unknown length exchanges data"):
        programs.exchanged(unknown, jnp.ones(10), 3, devices=2)


def test_a_training_step_exchanges_its_gradients_once_and_the_sums_of_batch_norm_both_ways():
    network = models.resnet([1], width=4).clone(axis_name=train.AXIS)
    images = jnp.ones((2, 8, 8, 3))
    variables = jax.eval_shape(lambda: network.init(jax.random.key(0), images, train=False))
    variables = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), variables)
    batch = train.Batch(images, jnp.zeros(2, jnp.int32), jnp.ones(2), jnp.arange(2))
    tx = train.optimizer("sgd", 0.1, clip_norm=2.0)
    sizes = {name: memory.size(tree) for name, tree in variables.items()}
    for name, of_loss in {"cross_entropy": {}, "mmce": {"loss": 4 * 5 * 4}}.items():
        objective = losses.objective(name)
        step = train.make_train_step(train.linen(network), objective, tx, axis_name=train.AXIS)
        state = train.create(variables, objective, tx, 10, 0)
        # With the gradients go four sums, among them the loss; each of three batch norms counts
        # its positions. MMCE gathers three columns of 4 examples, and returns the gradients of two.
        assert programs.exchanged(step, state, batch, devices=2) == {
            "gradient": sizes["params"] + 4 * 4,
            "batch norm": 2 * sizes["batch_stats"] + 3 * 4,
            **of_loss,
        }


def test_memory_and_operations():
    x, y = jnp.ones((100, 30)), jnp.ones((30, 7))
    product = programs.analysis(jax.jit(jnp.dot).lower(x, y).compile())
    assert product["memory"] == 4 * 100 * 7
    assert product["flops"] == pytest.approx(2 * 100 * 30 * 7)
    donated = jax.jit(lambda x: 2 * x, donate_argnums=0).lower(x).compile()
    assert programs.analysis(donated)["memory"] == 0


def test_a_loop_counts_the_operations_of_one_turn():
    x = jnp.ones((8, 8))
    loop = jax.jit(lambda x, stop: lax.fori_loop(0, stop, lambda _, y: x @ y, x))
    assert programs.analysis(loop.lower(x, 5).compile())["flops"] == pytest.approx(1024, rel=0.1)


class Silent:
    def memory_analysis(self):
        raise NotImplementedError


def test_a_backend_may_have_no_plan():
    assert programs.analysis(Silent()) == {"memory": None, "flops": None}
