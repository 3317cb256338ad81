"""The laws: what is promised of every network, run over every one that the catalogue finds."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from calib_jax import models
from tests.test_doctests import docstrings_of

from .members import (
    CLASSES,
    PARAMETERS,
    SMALL,
    built,
    convolutions,
    half,
    has_batch_norm,
    images,
    inputs,
    keys,
    size,
    weights,
)

every_network = pytest.mark.parametrize(
    "network", [pytest.param(network, id=name) for name, network in SMALL.items()]
)

# Real examples in each of eight devices' batches of two: half of all rows.
REAL = [2, 1, 2, 0, 1, 1, 0, 1]
MASK = np.array([[True] * n + [False] * (2 - n) for n in REAL])


def loss_and_logits(network, variables, params, x, labels, options, mask):
    """Sum the cross-entropy over real examples, in training."""
    logits, changed = network.apply(
        {**variables, "params": params},
        x,
        train=True,
        mask=mask,
        **options,
        mutable=["batch_stats"],
    )
    rows = cross_entropy(logits, labels)
    total = jnp.sum(rows if mask is None else jnp.where(mask, rows, 0))
    return total, (logits, changed.get("batch_stats", {}))


def cross_entropy(logits, labels):
    """Sum the cross-entropy over the predictions of each example, all with its label."""
    labels = labels.reshape(-1, *(1,) * (logits.ndim - 2))
    true = jnp.broadcast_to(jax.nn.one_hot(labels, CLASSES), logits.shape)
    rows = -jnp.sum(jax.nn.log_softmax(logits) * true, axis=-1)
    return rows.reshape(len(rows), -1).sum(axis=1)


def outcome(network, variables, x, labels, options, mask=None, axis_name=None):
    """Compute the logits, the gradient of the sum loss, and the new statistics."""
    if axis_name is not None and hasattr(network, "axis_name"):
        network = network.clone(axis_name=axis_name)
    of_params = functools.partial(loss_and_logits, network, variables)
    gradient, (logits, statistics) = jax.grad(of_params, has_aux=True)(
        variables["params"], x, labels, options, mask
    )
    if axis_name is not None:
        gradient = lax.psum(gradient, axis_name)
    return logits, gradient, statistics


def padded(leaf):
    """Put rows among padding that would spoil a result: NaN, or an integer out of range."""
    among = np.full((MASK.size, *leaf.shape[1:]), absent(leaf), leaf.dtype)
    among[MASK.reshape(-1)] = leaf
    return among


def absent(leaf):
    return np.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else -1


@functools.cache
def case(network):
    """Prepare real examples, each twice and all once among padding, in one program.

    Twice as many equal rows have the same mean and the same variance, and gradients twice as large.
    """
    variables = jax.tree.map(lambda leaf: np.asarray(leaf, float), weights(network))
    network, count = network.clone(dtype="float64"), sum(REAL)
    x = inputs(network, count, dtype=np.float64)
    labels = np.arange(count) % CLASSES
    options = keys(network, count)
    compute = jax.jit(functools.partial(outcome, network))
    twice = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), (x, labels))
    place = np.arange(2 * count) % count
    every = np.ones(MASK.size, bool)
    doubled = compute(variables, *twice, jax.tree.map(lambda k: k[place], options), every)
    place[MASK.reshape(-1)] = np.arange(count)  # padding has some key, too
    among = *jax.tree.map(padded, (x, labels)), jax.tree.map(lambda k: k[place], options)
    results = jax.device_get((doubled, compute(variables, *among, MASK.reshape(-1))))
    return network, variables, *results, among


@pytest.mark.parametrize("name", models.catalogue())
def test_builds(name):
    network = models.named(name)
    x = network.example_inputs()
    chex.assert_trees_all_equal(x, network.example_inputs(2, seed=0))
    logits, variables = built(network, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    assert ("batch_stats" in variables) == has_batch_norm(network)
    chex.assert_shape(logits, (2, *logits.shape[1:-1], network.num_classes))
    chex.assert_type(logits, jnp.float32)
    if name in PARAMETERS:
        assert size(variables["params"]) == PARAMETERS[name]


@functools.cache
def evaluation(network):
    """Return inputs and variables, the evaluation in one program, and what it gives."""
    x, variables = inputs(network, 3), weights(network)
    evaluate = jax.jit(functools.partial(network.apply, train=False, mutable=["batch_stats"]))
    return x, variables, evaluate, evaluate(variables, x, mask=np.ones(3, bool))


@every_network
def test_evaluation_is_a_pure_function(network):
    x, variables, evaluate, (logits, changed) = evaluation(network)
    logits = np.asarray(logits)
    assert np.all(np.isfinite(logits))
    assert np.std(logits, axis=0).min() > 0  # the input arrives
    if "batch_stats" in variables:
        chex.assert_trees_all_equal(changed["batch_stats"], variables["batch_stats"])
    # An example does not know of the others, and gets the same answer again.
    others = jax.tree.map(np.array, x)
    for leaf in jax.tree.leaves(others):
        leaf[1:] = absent(leaf)
    alone, _ = evaluate(variables, others, mask=np.array([True, False, False]))
    np.testing.assert_array_equal(alone[0], logits[0])


@every_network
def test_padding_is_absent(network, x64):
    _, _, (alone, twice, wanted), (logits, gradient, statistics), _ = case(network)
    close = functools.partial(chex.assert_trees_all_close, rtol=1e-9, atol=1e-9)
    half_of = jax.tree.map(lambda leaf: leaf / 2, twice)
    close((logits[MASK.reshape(-1)], gradient), (alone[: sum(REAL)], half_of))
    assert np.all(np.isfinite(logits))
    for (path, leaf), same in zip(
        jax.tree.leaves_with_path(statistics), jax.tree.leaves(wanted), strict=True
    ):
        # The unbiased variance is divided by one less than the rows.
        close(leaf, same, **({"rtol": 0.02} if path[-1].key == "var" else {}))


# Batch norm and dropout; the other networks consist of these and of what knows no other rows.
@pytest.mark.parametrize("name", ["lenet5(norm='batch')", "global_pooling_cnn"])
def test_eight_devices_are_one(name, x64):
    network, variables, _, one, among = case(SMALL[name])
    if jax.device_count() < len(REAL):
        pytest.skip("needs eight devices")
    step = functools.partial(outcome, network, variables, axis_name="device")
    spread = jax.pmap(step, axis_name="device")
    apart = jax.tree.map(lambda leaf: leaf.reshape(*MASK.shape, *leaf.shape[1:]), among)
    logits, gradient, statistics = jax.device_get(spread(*apart, MASK))
    close = functools.partial(chex.assert_trees_all_close, rtol=1e-9, atol=1e-9)
    close(logits[MASK], one[0][MASK.reshape(-1)])
    for device in range(len(REAL)):
        close(jax.tree.map(lambda leaf, i=device: leaf[i], (gradient, statistics)), one[1:])


@every_network
def test_bfloat16_computes_and_float32_keeps(network):
    """Each layer adds about 0.1 % of rounding."""
    x, variables, _, (exact, _) = evaluation(network)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    logits = jax.device_get(
        jax.jit(functools.partial(half(network).apply, train=False))(variables, x)
    )
    chex.assert_type(logits, jnp.float32)
    difference = np.linalg.norm(logits - exact) / np.linalg.norm(exact)
    assert 0 < difference < 0.05
    # Were the last layer in bfloat16, all logits would be numbers of 8 bits.
    assert np.any(logits != logits.astype(jnp.bfloat16).astype(np.float32))


@every_network
def test_a_step_promotes_no_dtype_takes_no_examples_and_convolves_in_the_fast_layout(network):
    """With jax_numpy_dtype_promotion="strict"; 33 rows, since a convolution sums over parts."""
    variables = weights(network)

    def total(network, batch, variables):
        options = {"mutable": ["batch_stats"], **keys(network, batch)}
        x = jax.tree.map(jnp.asarray, inputs(network, batch))
        logits, changed = network.apply(variables, x, train=True, **options)
        return jnp.sum(logits), (logits, changed)

    total_of_33 = functools.partial(total, half(network), 33)
    with jax.numpy_dtype_promotion("strict"):
        step = jax.make_jaxpr(jax.grad(total_of_33, has_aux=True), return_shape=True)
        jaxpr, (gradient, (logits, changed)) = step(variables)
        _, (none, _) = jax.eval_shape(functools.partial(total, network, 0), variables)
    chex.assert_trees_all_equal_shapes_and_dtypes(gradient, variables)
    assert {leaf.dtype for leaf in jax.tree.leaves(changed)} <= {jnp.dtype("float32")}
    for equation in convolutions(jaxpr) if jax.default_backend() == "cpu" else ():
        if equation.params["feature_group_count"] * equation.params["batch_group_count"] > 1:
            continue  # `convolve` leaves those with groups to XLA
        numbers = equation.params["dimension_numbers"]
        rank = len(numbers.lhs_spec) - 2
        channels_last = (0, rank + 1, *range(1, rank + 1))
        assert numbers.lhs_spec == numbers.out_spec == channels_last
        assert numbers.rhs_spec == (rank + 1, rank, *range(rank))
    assert logits.dtype == none.dtype == jnp.float32
    assert none.shape == (0, *logits.shape[1:])


def test_single_precision_stays_single_whatever_jax_could_do(x64):
    logits, variables = models.linear().init_with_output(
        jax.random.key(0), images(1, dtype=np.float64), train=False
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    assert logits.dtype == jnp.float32


test_docstring = docstrings_of("models")
