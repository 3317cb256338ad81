"""The states of all nodes of binary trees, from the words up, and their gradient.

Nodes of one height are computed together, of all trees, and padding is left out.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from calib_jax.core.numerics import wide
from calib_jax.core.statistics import varying
from calib_jax.core.types import Array
from calib_jax.models.contract import precision_of_products

_GATES = 4  # input, forget left, forget right, update
_AT_ONCE = 4  # blocks whose gradients of weights are one product: more rows are faster


class Weights(NamedTuple):
    """The weights of all gates of a word, and of an inner node."""

    leaf_kernel: Array  # [width, 2 memory]
    leaf_bias: Array
    kernel: Array  # [2 memory, 4 memory], for the hidden states of both children
    bias: Array


def _of_words(kernel: Array, bias: Array, vectors: Array) -> Array:
    """Compute the states `[words, 2 memory]`, hidden and memory, from vectors of words."""
    memory, output = jnp.split(vectors @ kernel + bias[None], 2, axis=-1)
    return jnp.concatenate([jax.nn.sigmoid(output) * jnp.tanh(memory), memory], axis=-1)


def _of_gates(gates: Array, below: Array) -> Array:
    """Compute the states of nodes from their gates and their children's memories."""
    update, left, right, new = jnp.split(gates, _GATES, axis=-1)
    update, left, right = map(jax.nn.sigmoid, (update, left, right))
    memory = update * jnp.tanh(new) + left * below[:, 0] + right * below[:, 1]
    return jnp.concatenate([jnp.tanh(memory), memory], axis=-1)


class _Blocks(NamedTuple):
    """The nodes of all trees, sorted by height and cut into blocks of `batch` nodes.

    The nodes of a block depend only on nodes of earlier blocks. A tree of the SST has 19
    words, padded to 56, and 18 inner nodes at 10 heights.

    Attributes:
      nodes: `[blocks, batch]`, rows of the array of all nodes; a place without a node has a row
        behind its end.
      children: `[blocks, batch, 2]`, the rows of their children.
      words: the number of blocks of words, which come first, a multiple of `_AT_ONCE`.
      filled: the number of blocks up to the last with a node.
    """

    nodes: Array
    children: Array
    words: Array
    filled: Array


def _blocks(children: Array) -> _Blocks:
    """Sort the nodes, without padding.

    An inner node with one node as both children is padding, and so are words after the last child.
    """
    batch, inner, _ = children.shape
    trees, size = jnp.arange(batch)[:, None], 2 * inner + 1

    def climb(node: Array, heights: Array) -> Array:
        below = heights[trees, children[:, node]].max(axis=1)
        return heights.at[:, inner + 1 + node].set(below + 1)

    heights = jnp.zeros_like(children, shape=(batch, size))
    heights = jax.lax.fori_loop(0, inner, climb, heights)
    padding = children[..., 0] == children[..., 1]
    words = jnp.where((children > inner) | padding[..., None], 0, children)
    last = words.max(axis=(1, 2))  # A tree of one word has no inner node.
    unread = jnp.arange(inner + 1)[None] > last[:, None]
    padding = jnp.concatenate([unread, padding], axis=1)
    levels = jnp.where(padding, inner + 1, heights).reshape(-1)
    nodes_of = jnp.bincount(levels, length=inner + 2)
    blocks_of = -(-nodes_of // batch)
    blocks_of = blocks_of.at[0].set(-(-blocks_of[0] // _AT_ONCE) * _AT_ONCE)
    order = jnp.argsort(levels)
    level = levels[order]
    rank = jnp.arange(batch * size) - (jnp.cumsum(nodes_of) - nodes_of)[level]
    first = jnp.cumsum(blocks_of) - blocks_of
    # A level of inner nodes has at most one block that is not full, and the last blocks at once may
    # be empty.
    most = (3 * inner + 1 + 2 * _AT_ONCE) * batch
    places = jnp.where(level > inner, most, first[level] * batch + rank)
    below = jnp.pad(children, ((0, 0), (inner + 1, 0), (0, 0))) + trees[..., None] * size
    nodes = jnp.full_like(order, batch * size, shape=most).at[places].set(order, mode="drop")
    pairs = below.reshape(-1, 2)[order]
    pairs = jnp.zeros_like(pairs, shape=(most, 2)).at[places].set(pairs, mode="drop")
    return _Blocks(
        nodes.reshape(-1, batch), pairs.reshape(-1, batch, 2), blocks_of[0], first[inner + 1]
    )


def hidden_states(weights: Weights, vectors: Array, children: Array) -> Array:
    """Compute the hidden states of all nodes, `[batch, nodes, memory]`; padding has state 0.

    Args:
      weights: the weights.
      vectors: the vectors of the words, `[batch, words, width]`.
      children: `[batch, words - 1, 2]`, the numbers of the children of each inner node.
    """
    if not children.size:  # Each word is a whole tree, or there is no tree.
        states = _of_words(weights.leaf_kernel, weights.leaf_bias, vectors[:, 0])
        hidden, _ = _halves(states)
        nodes = 2 * children.shape[1] + 1
        return jnp.broadcast_to(hidden[:, None], (len(hidden), nodes, hidden.shape[-1]))
    varied = varying((weights, vectors), (weights, vectors, children))
    return _composed(precision_of_products(), *varied, children)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _composed(precision: str | None, weights: Weights, vectors: Array, children: Array) -> Array:
    """Compute the hidden states of trees with inner nodes.

    The gradient is written out, because the number of loop steps depends on the trees, and JAX has
    no reverse-mode derivative of such a loop.
    """
    return _forward(precision, weights, vectors, children)[0]


def _forward(
    precision: str | None, weights: Weights, vectors: Array, children: Array
) -> tuple[Array, Any]:
    batch, inner, _ = children.shape
    blocks, flat = _blocks(children), vectors.reshape(-1, vectors.shape[-1])

    def read(number: Array, states: Array) -> Array:
        nodes = _next(blocks.nodes, number).reshape(-1)
        new = _of_words(weights.leaf_kernel, weights.leaf_bias, flat[_word_rows(nodes, inner)])
        return states.at[nodes].set(new, mode="drop")

    def compose(number: Array, states: Array) -> Array:
        hidden, memories = _halves(states[blocks.children[number]])
        gates = hidden.reshape(batch, -1) @ weights.kernel + weights.bias[None]
        return states.at[blocks.nodes[number]].set(_of_gates(gates, memories), mode="drop")

    shape = batch * (2 * inner + 1), len(weights.leaf_bias)
    states = varying(jnp.zeros(shape, vectors.dtype), vectors)
    states = jax.lax.fori_loop(0, blocks.words // _AT_ONCE, read, states)
    states = jax.lax.fori_loop(blocks.words, blocks.filled, compose, states)
    hidden, _ = _halves(states.reshape(batch, 2 * inner + 1, -1))
    return hidden, (weights, vectors, states, blocks)


def _backward(precision: str | None, saved: Any, gradient: Array) -> tuple[Any, ...]:
    """Compute the gradient with the precision of the forward pass."""
    with jax.default_matmul_precision(precision):
        return _descended(saved, gradient)


def _descended(saved: Any, gradient: Array) -> tuple[Any, ...]:
    """Propagate the gradient of each node to its children, from the root down."""
    weights, vectors, states, blocks = saved
    (batch, count, _), flat = vectors.shape, vectors.reshape(-1, vectors.shape[-1])
    upward = weights.kernel.T

    def descend(of_states: Array, block: tuple[Array, Array]) -> tuple[Array, Any]:
        nodes, children = block
        hidden, memories = _halves(states[children])
        inputs = hidden.reshape(batch, -1)
        _, pulled = jax.vjp(_of_gates, inputs @ weights.kernel + weights.bias[None], memories)
        # A place without a node gets 0, and so adds 0 to everything.
        of_gates, of_memories = pulled(of_states.at[nodes].get(mode="fill", fill_value=0))
        of_hidden = (of_gates @ upward).reshape(hidden.shape)
        of_below = jnp.concatenate([of_hidden, of_memories], axis=-1)
        return of_states.at[children].add(of_below), (inputs, of_gates)

    def descend_all(step: Array, sums: tuple[Weights, Array]) -> tuple[Weights, Array]:
        of_weights, of_states = sums
        number = steps - 1 - step
        nodes = _next(blocks.nodes, number, blocks.words)
        children = _next(blocks.children, number, blocks.words)
        of_states, (inputs, of_gates) = jax.lax.scan(
            descend, of_states, (nodes, children), reverse=True
        )
        inputs, of_gates = (leaf.reshape(-1, leaf.shape[-1]) for leaf in (inputs, of_gates))
        product = jnp.matmul(inputs.T, of_gates, preferred_element_type=precise)
        return of_weights._replace(
            kernel=of_weights.kernel + product,
            bias=of_weights.bias + of_gates.sum(axis=0, dtype=precise),
        ), of_states

    def descend_to_words(number: Array, sums: tuple[Weights, Array]) -> tuple[Weights, Array]:
        of_weights, of_vectors = sums
        nodes = _next(blocks.nodes, number).reshape(-1)
        rows = _word_rows(nodes, count - 1)
        _, pulled = jax.vjp(_of_words, weights.leaf_kernel, weights.leaf_bias, flat[rows])
        more = pulled(of_states.at[nodes].get(mode="fill", fill_value=0))
        of_kernel, of_bias, of_block = more
        return of_weights._replace(
            leaf_kernel=of_weights.leaf_kernel + of_kernel.astype(precise),
            leaf_bias=of_weights.leaf_bias + of_bias.astype(precise),
        ), of_vectors.at[rows].set(of_block, mode="drop")

    precise = wide(vectors.dtype)
    of_weights = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, dtype=precise), weights)
    of_states = jnp.concatenate([gradient, jnp.zeros_like(gradient)], axis=-1)
    sums = of_weights, of_states.reshape(states.shape)
    steps = -((blocks.words - blocks.filled) // _AT_ONCE)
    of_weights, of_states = jax.lax.fori_loop(0, steps, descend_all, sums)
    sums = of_weights, jnp.zeros_like(flat)
    word_steps = blocks.words // _AT_ONCE
    of_weights, of_vectors = jax.lax.fori_loop(0, word_steps, descend_to_words, sums)
    of_weights = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), of_weights, weights)
    return of_weights, of_vectors.reshape(vectors.shape), None


def _next(blocks: Array, number: Array, start: Any = 0) -> Array:
    """Return the blocks of a step that handles several at once."""
    return jax.lax.dynamic_slice_in_dim(blocks, start + number * _AT_ONCE, _AT_ONCE)


def _halves(states: Array) -> tuple[Array, Array]:
    """Split states into hidden states and memories."""
    hidden, memory = jnp.split(states, 2, axis=-1)
    return hidden, memory


def _word_rows(nodes: Array, inner: int) -> Array:
    """Convert rows of the array of all nodes to rows of the array of all words."""
    return nodes - nodes // (2 * inner + 1) * inner


_composed.defvjp(_forward, _backward)
