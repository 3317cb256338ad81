"""The Tree-LSTM against recursion in NumPy, and against the recorded released network."""

import functools

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models
from calib_jax.data.text.trees import Tree, padded

from . import members
from .members import evaluated


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def by_recursion(params, vectors, children):
    """Compute the logits of every node of one tree, each node by its own call."""

    def affine(name, x):
        return x @ params[name]["kernel"] + params[name]["bias"]

    def state(node):
        if node < len(vectors):
            memory = affine("leaf_memory", vectors[node])
            return sigmoid(affine("leaf_output", vectors[node])) * np.tanh(memory), memory
        (left_h, left_c), (right_h, right_c) = map(state, children[node - len(vectors)])
        gates = {
            gate: affine(f"{gate}lh", left_h) + affine(f"{gate}rh", right_h)
            for gate in ("i", "lf", "rf", "u")
        }
        memory = sigmoid(gates["i"]) * np.tanh(gates["u"])
        memory += sigmoid(gates["lf"]) * left_c + sigmoid(gates["rf"]) * right_c
        return np.tanh(memory), memory

    nodes = range(2 * len(vectors) - 1)
    return np.stack([affine("head", state(node)[0]) for node in nodes])


def shapes():
    """One word, a chain, a balanced tree and a random one, padded; with the nodes they have."""
    chain = [(0, 1), *((9 + i, 2 + i) for i in range(7))]
    balanced = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13)]
    drawn = [(2, 3), (1, 6), (7, 4), (0, 8), (9, 5)]
    of_trees = [
        Tree(("a",) * count, (0,) * (2 * count - 1), tuple(children))
        for count, children in ((1, []), (9, chain), (8, balanced), (6, drawn))
    ]
    arrays = padded(of_trees, 10)
    words = np.random.default_rng(2).standard_normal((4, 10, 4))
    return {"words": words, "children": arrays.children}, arrays.labeled


@pytest.fixture
def case(x64):
    network = models.tree_lstm(width=4, memory=3, dtype="float64")
    x, present = shapes()
    return network, members.variables_of(network, x), x, present


def test_logits_and_gradients_are_those_of_recursion(case):
    network, variables, x, present = case
    logits = evaluated(network, variables, x)
    params = jax.tree.map(np.asarray, variables["params"])
    trees_of = zip(x["words"], x["children"], strict=True)
    expected = np.stack([by_recursion(params, *tree) for tree in trees_of])
    np.testing.assert_allclose(logits[present], expected[present], rtol=1e-12, atol=1e-12)

    draw = np.random.default_rng(1)
    weight = draw.standard_normal(expected.shape) * present[..., None]

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def slopes(params, words):
        logits = network.apply({"params": params}, {**x, "words": words}, train=False)
        return jnp.sum(jnp.sin(logits) * weight)

    at = params, x["words"]
    direction = jax.tree.map(lambda leaf: draw.standard_normal(leaf.shape), at)

    def total(step):
        params, words = jax.tree.map(lambda leaf, d: leaf + step * d, at, direction)
        trees_of = zip(words, x["children"], strict=True)
        logits = np.stack([by_recursion(params, *tree) for tree in trees_of])
        return np.sum(np.sin(logits) * weight)

    of_params, of_words = slopes(*at)
    slope = (total(1e-5) - total(-1e-5)) / 2e-5
    products = jax.tree.map(np.vdot, (of_params, of_words), direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx(slope, rel=1e-6)
    assert not of_words[~present[:, : x["words"].shape[1]]].any()  # padding


def test_a_single_word_is_a_tree(case):
    network, variables, x, _ = case
    whole = evaluated(network, variables, x)
    alone = {"words": x["words"][:, :1], "children": np.zeros((4, 0, 2), np.int32)}
    for inputs in (alone, flax.core.freeze(alone)):
        logits = evaluated(network, variables, inputs)
        np.testing.assert_allclose(logits, whole[:, :1], rtol=1e-12)


def test_an_excluded_class_is_impossible_in_evaluation_only(case):
    network, variables, x, _ = case
    binary = network.clone(excluded_class=1)
    assert [models.tree_lstm(excluded_class=k).excluded_class for k in (0, 2)] == [0, 2]
    logits = np.asarray(evaluated(network, variables, x))
    probabilities = np.exp(jax.nn.log_softmax(evaluated(binary, variables, x)))
    polar = np.exp(logits[..., [0, 2]])
    expected = polar / polar.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(probabilities[..., [0, 2]], expected, rtol=1e-12)
    assert not probabilities[..., 1].any()
    keys = jax.random.split(jax.random.key(0), len(logits))
    train = jax.jit(functools.partial(binary.apply, train=True))
    assert np.isfinite(train(variables, x, keys=keys)).all()


def test_it_is_the_recorded_one(x64):
    case = members.RECORDED["tree_lstm"]
    network = models.tree_lstm(num_classes=3, dtype="float64")
    assert sum(np.prod(shape) for _, shape in case["parameters"]) == 271_953
    tensors = members.recorded_weights(case["parameters"], case["seed"])
    for number, children in enumerate(case["children"]):
        count = len(children) + 1
        draw = np.random.RandomState(case["seed"] - 1).standard_normal((count, 1, 300))
        x = {"words": 0.3 * draw[None, :, 0], "children": np.array([children])}
        variables = models.from_torch(network, tensors, inputs=x)
        logits = evaluated(network, variables, x)[0]
        expected = members.recorded_outputs()[f"tree_lstm/{number}"]
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12)


def test_a_tree_whose_nodes_are_not_in_order_is_nan():
    network = models.tree_lstm(words=9, width=4, memory=5, dropout=0.0)
    words = np.array([[1, 2, 3, 4]] * 3)
    # In order; a node in itself; the same in an example that the mask leaves out.
    children = np.array(
        [[[0, 1], [4, 2], [5, 3]], [[4, 1], [4, 2], [0, 3]], [[4, 1], [4, 2], [0, 3]]]
    )
    assert network.example_inputs()["words"].shape == (2, 4)
    drawn = network.example_inputs(300)["children"]
    assert drawn.shape == (300, 3, 2)
    assert (drawn[..., 0] != drawn[..., 1]).all()
    for inner in range(3):  # any two nodes before it
        assert [np.unique(side).tolist() for side in drawn[:, inner].T] == [[*range(4 + inner)]] * 2
    x, mask = {"words": words, "children": children}, np.array([True, True, False])
    variables = members.variables_of(network, x)
    logits = jax.jit(functools.partial(network.apply, train=False))(variables, x, mask=mask)
    assert np.isnan(logits).any(axis=(1, 2)).tolist() == [False, True, False]
