"""What compiled programs say about themselves, against closed forms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from calib_jax import losses, models, train
from experiments.benchmarks import programs


def on_devices(function, count, *arguments):
    """Compile a function for some of the faked devices, each with a copy of the arguments."""
    devices = train.local_devices(count)
    spread = [train.replicate(argument, devices) for argument in arguments]
    return train.data_parallel(function, devices).compiled(*spread)


@pytest.mark.parametrize("count", [2, 8])
def test_bytes_of_every_kind(count):
    tree = {
        "float32": jnp.ones((3, 5)),
        "int32": jnp.ones(7, jnp.int32),
        "uint8": jnp.ones((2, 2, 9), jnp.uint8),
        "number": jnp.float32(1),
    }
    ring = [(i, (i + 1) % count) for i in range(count)]

    def exchange(tree, rows, half):
        return (
            lax.psum(tree, train.AXIS),
            lax.all_gather(half, train.AXIS),
            lax.psum_scatter(rows, train.AXIS),
            lax.ppermute(tree["int32"], train.AXIS, ring),
            lax.all_to_all(rows, train.AXIS, 0, 0, tiled=True),
        )

    rows, half = jnp.ones((count, 11)), jnp.ones((4, 3), jnp.int16)
    found = programs.collective_bytes(on_devices(exchange, count, tree, rows, half))
    assert found.outside == {
        "all-reduce": 4 * 15 + 4 * 7 + 36 + 4,
        "all-gather": count * 12 * 2,
        "reduce-scatter": count * 11 * 4,
        "collective-permute": 7 * 4,
        "all-to-all": count * 11 * 4,
    }
    assert found.inside == {}
    assert found.per_step == found.per_call == sum(found.outside.values())


def test_loops_count_by_the_trip_and_those_of_known_length_as_often_as_they_turn():
    def program(x, y, stop):
        def step(_, carry):
            x, y = carry
            x = lax.psum(x, train.AXIS) / 2
            y = lax.fori_loop(0, 3, lambda _, y: lax.psum(jnp.sin(y), train.AXIS), y)
            return x, y

        x, y = lax.fori_loop(0, stop, step, (x, y))
        return lax.psum(x[:2] * y[0], train.AXIS), x, y

    arguments = jnp.ones(10), jnp.ones(100), np.int32(4)
    found = programs.collective_bytes(on_devices(program, 2, *arguments))
    assert found.outside == {"all-reduce": 2 * 4}
    ((loops, inside),) = found.inside.items()
    assert len(loops) == 1
    assert inside == {"all-reduce": 10 * 4 + 3 * 100 * 4}
    assert (found.per_call, found.per_step) == (8, 1240)


def test_loops_inside_and_beside_each_other_are_apart():
    def program(x, stop):
        def inner(_, x):
            return lax.psum(jnp.sin(x), train.AXIS)

        def outer(_, x):
            return lax.fori_loop(0, stop, inner, x)

        one = lax.fori_loop(0, stop, outer, x)
        return one, lax.fori_loop(0, stop, inner, x[:3])

    found = programs.collective_bytes(on_devices(program, 2, jnp.ones(10), np.int32(2)))
    sizes = {len(loops): kinds for loops, kinds in found.inside.items()}
    assert sizes == {2: {"all-reduce": 40}, 1: {"all-reduce": 12}}
    with pytest.raises(ValueError, match="2 loops of unknown length exchange data"):
        _ = found.per_step


ASYNCHRONOUS = """HloModule step, entry_computation_layout={(f32[8,3]{1,0})->f32[8,3]{1,0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%scattering (given: f32[8,3]) -> f32[1,3] {
  %given = f32[8,3]{1,0} parameter(0)
  ROOT %reduce-scatter.1 = f32[1,3]{1,0} reduce-scatter(%given), dimensions={0}, to_apply=%add
}

%one (p: bf16[6]) -> bf16[6] {
  %p = bf16[6]{0} parameter(0)
  ROOT %moved = bf16[6]{0:T(256)(2,1)} collective-permute(%p), source_target_pairs={{0,1},{1,0}}
}

%other (q: bf16[6]) -> bf16[6] {
  ROOT %q = bf16[6]{0} parameter(0)
}

ENTRY %main (x: f32[8,3], y: bf16[6], n: s32[]) -> f32[8,3] {
  %x = f32[8,3]{1,0} parameter(0)
  %y = bf16[6]{0} parameter(1)
  %n = s32[] parameter(2)
  %all-reduce-start = (f32[8,3]{1,0}, bf16[6]{0}) all-reduce-start(%x, %y), to_apply=%add
  %all-reduce-done = (f32[8,3]{1,0}, bf16[6]{0}) all-reduce-done(%all-reduce-start)
  %gathering = ((f32[8,3]{1,0}, bf16[6]{0}), (f32[16,3]{1,0}, bf16[12]{0})) all-gather-start(%x, %y)
  %gathered = (f32[16,3]{1,0}, bf16[12]{0}) all-gather-done(%gathering)
  %passing = (f32[8,3]{1,0}, f32[8,3]{1,0}, u32[], u32[]) collective-permute-start(%x)
  %passed = f32[8,3]{1,0} collective-permute-done(%passing)
  %started = ((f32[8,3]{1,0}), f32[1,3]{1,0}, u32[]) async-start(%x), calls=%scattering
  %ended = f32[1,3]{1,0} async-done(%started), calls=%scattering
  %chosen = bf16[6]{0} conditional(%n, %y, /*index=2*/%y), branch_computations={%one, %other}
  ROOT %result = f32[8,3]{1,0} copy(%passed)
}
"""


def test_asynchronous_forms_count_once():
    found = programs.collectives(ASYNCHRONOUS)
    assert [(kind, payload) for kind, _, payload, _, _ in found] == [
        ("all-reduce", 96 + 12),
        ("all-gather", 192 + 24),
        ("collective-permute", 96),
        ("reduce-scatter", 96),
        ("collective-permute", 12),
    ]
    with pytest.raises(ValueError, match="no text of a compiled program"):
        programs.collectives("ENTRY?")


def test_a_training_step_exchanges_its_gradients_once_and_the_sums_of_batch_norm_both_ways():
    network = models.resnet([1], width=4).clone(axis_name=train.AXIS)
    objective, tx = losses.objective("cross_entropy"), train.optimisers.sgd(0.1, clip_norm=2.0)
    step = train.make_train_step(
        train.linen(network), objective, tx, reduction="sum", axis_name=train.AXIS
    )

    def steps(state, batch, stop):
        return lax.fori_loop(0, stop, lambda _, state: step(state, batch)[0], state)

    images = jnp.ones((2, 8, 8, 3))
    variables = jax.eval_shape(lambda: network.init(jax.random.key(0), images, train=False))
    variables = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), variables)
    state = train.create(variables, objective, tx, 10, 0)
    batch = train.Batch(images, jnp.zeros(2, jnp.int32), jnp.ones(2), jnp.arange(2))
    compiled = on_devices(steps, 2, state, batch, np.int32(3))
    found = programs.collective_bytes(compiled)

    sizes = {
        name: sum(leaf.size for leaf in jax.tree.leaves(tree)) for name, tree in variables.items()
    }
    # Batch norm's means and variances, their gradients, and the number of examples and positions,
    # which is the same in every trip and may be taken out of the loop. The loss and what else is
    # measured the loop drops.
    numbers = sizes["params"] + 2 * sizes["batch_stats"] + 1
    assert found.per_step + found.per_call == 4 * numbers
    assert found.per_call in (0, 4)


def test_memory():
    def double(x, y):
        return x + y, 2 * y

    arguments = jnp.ones((100, 30)), jnp.ones((100, 1), jnp.int32)
    found = programs.memory(jax.jit(double).lower(*arguments).compile())
    assert found.arguments == 4 * (3000 + 100)
    assert found.results == pytest.approx(4 * (3000 + 100), abs=64)  # and a table of the two
    assert found.aliased == 0
    compiled = jax.jit(lambda x: x + 1, donate_argnums=0).lower(arguments[0]).compile()
    found = programs.memory(compiled)
    assert (found.arguments, found.results, found.aliased) == (12000, 12000, 12000)
    assert found.peak == 12000 + found.temporaries + found.code


class Silent:
    def memory_analysis(self):
        return None

    def cost_analysis(self):
        raise NotImplementedError


def test_a_backend_may_have_no_answer():
    assert programs.memory(Silent()) is None
    assert programs.flops(Silent()) is None


def convolve(x, kernel, stride=1, padding="VALID", groups=1):
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def test_flops_of_layers():
    x, kernel = jnp.ones((6, 32)), jnp.ones((32, 5))
    assert programs.multiply_adds(jnp.dot, x, kernel) == 6 * 32 * 5
    assert programs.flops(jax.jit(jnp.dot).lower(x, kernel).compile()) == 2 * 6 * 32 * 5

    images, window = jnp.ones((2, 11, 9, 8)), jnp.ones((3, 2, 8, 7))
    assert programs.multiply_adds(convolve, images, window) == 2 * 9 * 8 * 7 * (3 * 2 * 8)
    compiled = jax.jit(convolve).lower(images, window).compile()
    assert programs.flops(compiled) == 2 * 2 * 9 * 8 * 7 * (3 * 2 * 8)

    def others(images, window, x):
        strided = convolve(images, window, 2, "SAME")  # 6 x 5 positions, windows count whole
        grouped = convolve(images, window[:, :, :2, :4], groups=4)
        batched = jnp.einsum("abc,acd->abd", x, jnp.moveaxis(x, 1, 2))
        return strided, grouped, batched

    expected = 2 * 6 * 5 * 7 * 48 + 2 * 9 * 8 * 4 * 12 + 5 * 3 * 3 * 4
    assert programs.multiply_adds(others, images, window, jnp.ones((5, 3, 4))) == expected


def test_flops_through_what_calls_functions():
    square = jnp.ones((4, 4))

    @jax.jit
    def program(x):
        x = lax.scan(lambda x, _: (jax.checkpoint(jnp.dot)(x, x), None), x, length=5)[0]
        return lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x @ x @ x, x)

    assert programs.multiply_adds(program, square) == (5 + 2) * 4**3

    def loop(x):
        return lax.fori_loop(0, jnp.int32(x[0, 0]), lambda _, x: x @ x, x)

    with pytest.raises(ValueError, match="a loop of unknown length multiplies matrices"):
        programs.multiply_adds(loop, square)


def test_training_is_three_times_the_forward_pass():
    def loss(x, dense, window):
        return jnp.sum(jnp.tanh(convolve(x, window)).reshape(2, -1) @ dense)

    x, window, dense = jnp.ones((2, 6, 6, 3)), jnp.ones((3, 3, 3, 4)), jnp.ones((64, 5))
    forward = programs.multiply_adds(loss, x, dense, window)
    assert forward == 2 * (16 * 4 * 27 + 64 * 5)
    # The dense layer's are so exactly; the gradient of a convolution reaches over the padding.
    gradient = jax.grad(lambda x, dense: jnp.sum(jnp.tanh(x @ dense)), (0, 1))
    assert programs.multiply_adds(gradient, jnp.ones((2, 64)), dense) == 3 * 2 * 64 * 5


def slow_resnet50():
    """Count, layer by layer, what the paper's table of the network says, at 32 x 32."""
    count, size, channels = 32 * 32 * 27 * 64, 32, 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for block in range(blocks):
            count += size**2 * channels * width
            size //= 2 if stage and not block else 1
            count += size**2 * 9 * width**2
            count += size**2 * width * 4 * width
            if not block:
                count += size**2 * channels * 4 * width
            channels = 4 * width
    return count + channels * 10


def test_flops_of_networks():
    forward = programs.forward_flops(models.resnet50(), (32, 32, 3))
    assert forward == 2 * slow_resnet50()
    assert math.isclose(forward / 2, 1.3e9, rel_tol=0.01)  # as others count it
    small = models.resnet([1], width=2)
    expected = 3 * programs.forward_flops(small, (8, 8, 3))
    assert programs.training_flops(small, (8, 8, 3)) == expected
