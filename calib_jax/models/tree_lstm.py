"""Tree-LSTMs: one state and one prediction per node of a binary tree or a dependency tree."""

from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.statistics import varying
from calib_jax.core.types import Array, Logits, PyTree
from calib_jax.models import layers
from calib_jax.models.contract import (
    DType,
    Network,
    TorchRules,
    at_least_single,
    real_rows,
    register,
)
from calib_jax.models.dropout import Dropout
from calib_jax.models.initializers import recipe
from calib_jax.models.word_vectors import LAYER, WordVectors

__all__ = ["child_sum_tree_lstm", "tree_lstm"]

_GATES = ("i", "lf", "rf", "u")  # input, forget left, forget right, update; the released names
_SIDES = ("l", "r")


class Affine(nn.Module):
    """The weights of a dense layer, which are applied together with those of other layers."""

    features: int
    dtype: DType
    initializer: str

    @nn.compact
    def __call__(self, inputs: int) -> tuple[Array, Array]:
        """Return the kernel `[inputs, features]` and the bias."""
        start, precise = recipe(self.initializer), at_least_single(self.dtype)
        kernel = self.param("kernel", start.dense, (inputs, self.features), precise)
        bias = self.param("bias", start.bias(inputs), (self.features,), precise)
        return kernel.astype(self.dtype), bias.astype(self.dtype)


class OfTrees(Network):
    """The layers before and after the states of nodes, shared by both networks."""

    words: int = 20_000
    width: int = 300
    memory: int = 150
    dropout: float = 0.5
    excluded_class: int | None = None
    initializer: str = "torch"

    def _vectors(self, x: dict[str, Array], mask: Any) -> Array:
        """Return the vectors of words; inputs may also be vectors."""
        words = x["words"]
        if jnp.issubdtype(words.dtype, jnp.integer):
            words = WordVectors(self.words, self.width, self.dtype, name=LAYER)(words)
        return self.inputs(words, mask, rank=3)[0]

    def _check(self, name: str, given: Array, shape: tuple[int, ...], count: int) -> None:
        if given.shape != shape:
            raise ValueError(
                f"{type(self).__name__}: {name} must have shape {shape} for {count} words, got"
                f" {given.shape}."
            )

    def _classified(self, hidden: Array, train: bool, keys: Any) -> Logits:
        """Map the hidden states of nodes to logits."""
        hidden = Dropout(self.dropout, name="drop")(hidden, train, keys)
        logits = layers.head(hidden, self.num_classes, dtype=self.dtype, init=self.initializer)
        if self.excluded_class is not None and not train:
            return logits.at[..., self.excluded_class].set(-jnp.inf)
        return logits


class _Weights(NamedTuple):
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
    update, left, right, new = jnp.split(gates, len(_GATES), axis=-1)
    update, left, right = map(jax.nn.sigmoid, (update, left, right))
    memory = update * jnp.tanh(new) + left * below[:, 0] + right * below[:, 1]
    return jnp.concatenate([jnp.tanh(memory), memory], axis=-1)


class _Blocks(NamedTuple):
    """The nodes of all trees, sorted by height and cut into blocks of as many as trees.

    The nodes of a block depend on those of the blocks before it alone. A tree of the SST has 19
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


_AT_ONCE = 4  # blocks whose gradients of weights are one product: more rows are faster


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


@jax.custom_vjp
def _composed(weights: _Weights, vectors: Array, children: Array) -> Array:
    """Compute the hidden states `[batch, nodes, memory]` of all nodes; those of padding are 0.

    Its gradient is written out, because the number of steps of its loops depends on the trees, and
    such a loop has no derivative of its own.

    Args:
      weights: the weights.
      vectors: of the words, `[batch, words, width]`.
      children: `[batch, words - 1, 2]`.
    """
    return _composed_forward(weights, vectors, children)[0]


def _composed_forward(weights: _Weights, vectors: Array, children: Array) -> tuple[Array, Any]:
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


def _composed_backward(saved: Any, gradient: Array) -> tuple[Any, ...]:
    """Add the gradient of each node to those of its children, from the root down."""
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

    def descend_all(step: Array, sums: tuple[_Weights, Array]) -> tuple[_Weights, Array]:
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

    def descend_to_words(number: Array, sums: tuple[_Weights, Array]) -> tuple[_Weights, Array]:
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

    precise = at_least_single(vectors.dtype)
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
    """Return the rows of words among the words of all trees, from those among all nodes."""
    return nodes - nodes // (2 * inner + 1) * inner


_composed.defvjp(_composed_forward, _composed_backward)


class TreeLSTM(OfTrees):
    """States of words and of pairs of subtrees, from the leaves up; see `tree_lstm`."""

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map trees to logits `[batch, nodes, classes]`, words first."""
        x = real_rows({name: jnp.asarray(leaf) for name, leaf in x.items()}, mask)
        words, children = self._vectors(x, mask), x["children"]
        count = words.shape[1]
        self._check("children", children, (len(words), count - 1, 2), count)
        weights = self._weights(words.shape[-1])
        if not children.size:  # Each word is a whole tree.
            hidden = _of_words(weights.leaf_kernel, weights.leaf_bias, words[:, 0])
            hidden = _halves(hidden)[0][:, None]
        else:
            hidden = _composed(*varying((weights, words), (weights, words, children)), children)
        return self._classified(hidden, train, keys)

    def _weights(self, width: int) -> _Weights:
        def affine(name: str, inputs: int) -> tuple[Array, Array]:
            return Affine(self.memory, self.dtype, self.initializer, name=name)(inputs)

        leaves = [affine(f"leaf_{name}", width) for name in ("memory", "output")]
        gates = {
            gate + side: affine(f"{gate}{side}h", self.memory) for gate in _GATES for side in _SIDES
        }
        # One product for all gates and both children.
        kernels = [
            jnp.concatenate([gates[gate + side][0] for gate in _GATES], axis=1) for side in _SIDES
        ]
        return _Weights(
            jnp.concatenate([kernel for kernel, _ in leaves], axis=1),
            jnp.concatenate([bias for _, bias in leaves]),
            jnp.concatenate(kernels),
            jnp.concatenate([gates[gate + "l"][1] + gates[gate + "r"][1] for gate in _GATES]),
        )

    @nn.nowrap
    def example_inputs(self, batch: int = 2, *, seed: int = 0) -> PyTree:
        """Draw trees of four words, in which each inner node has any two nodes before it."""
        draw = np.random.default_rng(seed)
        count = 4
        ends = np.arange(count, 2 * count - 1)
        words = draw.integers(self.words, size=(batch, count), dtype=np.int32)
        left = draw.integers(ends, size=(batch, count - 1), dtype=np.int32)
        right = (left + draw.integers(1, ends, size=left.shape, dtype=np.int32)) % ends
        return {"words": words, "children": np.stack([left, right], axis=-1, dtype=np.int32)}

    @nn.nowrap
    def torch_rules(self) -> TorchRules:
        """Return the layer names of the released network, which takes vectors."""
        return {
            "leaf_memory": "tree_module.leaf_module.cx",
            "leaf_output": "tree_module.leaf_module.ox",
            r"([iu]|lf|rf)([lr])h": r"tree_module.composer.\1\2h",
            "head": "tree_module.output_module.l1",
        }


class ChildSumTreeLSTM(OfTrees):
    """States of words, each from those of its dependents; see `child_sum_tree_lstm`."""

    memory: int = 168

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map trees to logits `[batch, words, classes]`."""
        x = real_rows({name: jnp.asarray(leaf) for name, leaf in x.items()}, mask)
        words, parents = self._vectors(x, mask), x["parents"]
        self._check("parents", parents, words.shape[:2], words.shape[1])
        return self._classified(self._composed(words, parents), train, keys)

    def _composed(self, words: Array, parents: Array) -> Array:
        """Compute the hidden states of all words, each after those of its dependents."""
        dense = partial(layers.dense, dtype=self.dtype, init=self.initializer)
        of_word = dense(words, 4 * self.memory, name="gates_of_word")
        of_word, forget_of_word = jnp.split(of_word, [3 * self.memory], axis=-1)
        kernel, bias = Affine(
            3 * self.memory, self.dtype, self.initializer, name="gates_of_dependents"
        )(self.memory)
        forget_kernel, forget_bias = Affine(
            self.memory, self.dtype, self.initializer, name="forget_of_dependent"
        )(self.memory)
        rows = jnp.arange(len(words))

        def compose(sums: tuple[Array, Array], step: Any) -> tuple[Any, Array]:
            """Compute a word's state, and add it to the sums of its parent."""
            (number, parent, gates), (hidden_sum, memory_sum) = step, sums
            gates += hidden_sum[:, number] @ kernel + bias[None]
            update, output, new = jnp.split(gates, 3, axis=-1)
            memory = jax.nn.sigmoid(update) * jnp.tanh(new) + memory_sum[:, number]
            hidden = jax.nn.sigmoid(output) * jnp.tanh(memory)
            forget = forget_of_word[rows, parent] + hidden @ forget_kernel + forget_bias[None]
            # The root is its own parent: its sums are not read again.
            hidden_sum = hidden_sum.at[rows, parent].add(hidden)
            memory_sum = memory_sum.at[rows, parent].add(jax.nn.sigmoid(forget) * memory)
            return (hidden_sum, memory_sum), hidden

        empty = jnp.zeros((*parents.shape, self.memory), of_word.dtype)
        by_step = (jnp.moveaxis(leaf, 1, 0) for leaf in (parents, of_word))
        _, hidden = jax.lax.scan(compose, (empty, empty), (jnp.arange(parents.shape[1]), *by_step))
        return jnp.moveaxis(hidden, 0, 1)

    @nn.nowrap
    def example_inputs(self, batch: int = 2, *, seed: int = 0) -> PyTree:
        """Draw trees of four words, in which the parent of a word is any later one."""
        draw = np.random.default_rng(seed)
        count = 4
        parents = [draw.integers(min(i + 1, count - 1), count, size=batch) for i in range(count)]
        return {
            "words": draw.integers(self.words, size=(batch, count), dtype=np.int32),
            "parents": np.stack(parents, axis=1).astype(np.int32),
        }


@register("tree_lstm")
def tree_lstm(
    *,
    num_classes: int = 3,
    words: int = 20_000,
    width: int = 300,
    memory: int = 150,
    dropout: float = 0.5,
    excluded_class: int | None = None,
    dtype: DType = "float32",
    init: str = "torch",
) -> nn.Module:
    r"""Build the binary constituency Tree-LSTM of Tai et al. 2015, as released with focal loss.

    A word with vector x has the memory and the hidden state

    $$c = W_c x + b_c, \qquad h = \sigma(W_o x + b_o) \tanh(c)$$

    and an inner node with children l and r, without an output gate,

    $$c = \sigma(i) \tanh(u) + \sigma(f_l) c_l + \sigma(f_r) c_r, \qquad h = \tanh(c)$$

    where i, $f_l$, $f_r$ and u are each $W_l h_l + b_l + W_r h_r + b_r$. A dense layer with dropout
    predicts a class for each node. It has 271,953 parameters besides its word vectors.

    Inputs are a dictionary: "words" `[batch, words]`, the numbers of the words (or their vectors,
    as in the released code), and "children" `[batch, words - 1, 2]`, the numbers of the children of
    each inner node. Words have the numbers from 0, inner nodes those after all words, and children
    come before their parents. An inner node with one node as both children is padding, as are words
    after the last child; the state of padding is 0. Each step of a compiled loop computes nodes of
    one height, of all trees.

    Args:
      num_classes: the number of logits per node.
      words: the size of the vocabulary, with padding.
      width: the size of the word vectors.
      memory: the size of the states.
      dropout: the rate before the last layer.
      excluded_class: a class that is impossible in evaluation, such as 1 (neutral) in the binary
        task of the SST; its logit is -inf, so that the probabilities of the others sum to 1. None
        excludes none; the papers' metrics exclude it without renormalising.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: the recipe of the initial weights, "torch" or "he_normal".

    References:
      Tai et al. 2015, Improved Semantic Representations From Tree-Structured Long Short-Term
      Memory Networks; Mukhoti et al. 2020 and its released code.

    >>> import jax
    >>> network = tree_lstm(words=50)
    >>> init = partial(network.init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), network.example_inputs())
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables)) - 50 * 300
    271953
    """
    return _built(
        TreeLSTM,
        num_classes=num_classes,
        dtype=dtype,
        words=words,
        width=width,
        memory=memory,
        dropout=dropout,
        excluded_class=excluded_class,
        initializer=init,
    )


@register("child_sum_tree_lstm")
def child_sum_tree_lstm(
    *,
    num_classes: int = 3,
    words: int = 20_000,
    width: int = 300,
    memory: int = 168,
    dropout: float = 0.5,
    excluded_class: int | None = None,
    dtype: DType = "float32",
    init: str = "torch",
) -> nn.Module:
    r"""Build the child-sum Tree-LSTM of Tai et al. 2015, for dependency trees.

    A word with vector x and dependents k, whose hidden states sum to $\tilde h$, has the state

    $$c = \sigma(i) \tanh(u) + \sum_k \sigma(f_k) c_k, \qquad h = \sigma(o) \tanh(c)$$

    where i, o and u are each $W x + b + U \tilde h + b'$, and $f_k = W x + b + U h_k + b'$. A dense
    layer with dropout predicts a class for each word, which stands for the phrase of its subtree.
    It has 316,347 parameters besides its word vectors.

    Inputs are a dictionary: "words" `[batch, words]`, the numbers of the words (or their vectors),
    and "parents" `[batch, words]`, the place of the word on which each depends. Dependents come
    before their parents; the root and padding are their own parents. A word may have any number of
    dependents. All words are computed in one compiled loop.

    Args:
      num_classes: the number of logits per word.
      words: the size of the vocabulary, with padding.
      width: the size of the word vectors.
      memory: the size of the states.
      dropout: the rate before the last layer.
      excluded_class: as for `tree_lstm`.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: the recipe of the initial weights, "torch" or "he_normal".

    References:
      Tai et al. 2015, Improved Semantic Representations From Tree-Structured Long Short-Term
      Memory Networks, equations 2 to 8.

    >>> import jax
    >>> network = child_sum_tree_lstm(words=50)
    >>> init = partial(network.init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), network.example_inputs())
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables)) - 50 * 300
    316347
    """
    return _built(
        ChildSumTreeLSTM,
        num_classes=num_classes,
        dtype=dtype,
        words=words,
        width=width,
        memory=memory,
        dropout=dropout,
        excluded_class=excluded_class,
        initializer=init,
    )


def _built(kind: type[OfTrees], **options: Any) -> OfTrees:
    """Validate the options, and build a network."""
    for name in ("words", "width", "memory"):
        checks.at_least(name, options[name], 1)
    if options["excluded_class"] is not None:
        checks.between("excluded_class", options["excluded_class"], 0, options["num_classes"] - 1)
    recipe(options["initializer"])
    return kind(**options)
