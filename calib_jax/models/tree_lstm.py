"""Tree-LSTMs: one state and one prediction per node of a binary tree or a dependency tree."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core.inputs import checks
from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, Logits, PyTree
from calib_jax.models import layers, tree_states
from calib_jax.models.contract import DType, Network, TorchRules, built, real_rows, register
from calib_jax.models.dropout import Dropout
from calib_jax.models.initializers import recipe
from calib_jax.models.word_vectors import LAYER, WordVectors

_GATES = ("i", "lf", "rf", "u")  # input, forget left, forget right, update; the released names
_SIDES = ("l", "r")


class Affine(nn.Module):
    """The weights of a dense layer, which are applied with the weights of other layers."""

    features: int
    dtype: DType
    initializer: str

    @nn.compact
    def __call__(self, inputs: int) -> tuple[Array, Array]:
        """Return the kernel `[inputs, features]` and the bias."""
        start, precise = recipe(self.initializer), wide(self.dtype)
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

    def _of_trees(self, x: Any, mask: Any, edges: str) -> dict[str, Array]:
        """Validate the inputs, whose entry `edges` has the numbers of nodes; set padding to 0."""
        if not isinstance(x, Mapping) or not {"words", edges} <= set(x):
            given = sorted(x) if isinstance(x, Mapping) else type(x).__name__
            raise TypeError(
                f"{type(self).__name__}: inputs must be a dictionary of 'words' and {edges!r}, got"
                f" {given}."
            )
        x = {name: jnp.asarray(leaf) for name, leaf in x.items()}
        if not jnp.issubdtype(x[edges].dtype, jnp.integer):
            raise TypeError(
                f"{type(self).__name__}: {edges} must be integers, got {x[edges].dtype}."
            )
        return real_rows(x, mask)

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


def _where(ordered: Array, logits: Logits, mask: Any) -> Logits:
    """Set the logits of trees whose nodes are not in order to NaN, but not those of padding."""
    kept = ordered if mask is None else ordered | ~jnp.asarray(mask, bool)
    return jnp.where(kept[:, None, None], logits, jnp.nan)


class TreeLSTM(OfTrees):
    """States of words and of pairs of subtrees, from the leaves up; see `tree_lstm`."""

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map trees to logits `[batch, nodes, classes]`, words first."""
        x = self._of_trees(x, mask, "children")
        words, children = self._vectors(x, mask), x["children"]
        count = words.shape[1]
        self._check("children", children, (words.shape[0], count - 1, 2), count)
        hidden = tree_states.hidden_states(self._weights(words.shape[-1]), words, children)
        ends = count + jnp.arange(count - 1)[None, :, None]  # children come before their parent
        ordered = jnp.all((children >= 0) & (children < ends), axis=(1, 2))
        return _where(ordered, self._classified(hidden, train, keys), mask)

    def _weights(self, width: int) -> tree_states.Weights:
        """Return the weights, joined to one kernel for words and one for inner nodes."""

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
        return tree_states.Weights(
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
    """States of words, each computed from its dependents; see `child_sum_tree_lstm`."""

    memory: int = 168

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map trees to logits `[batch, words, classes]`."""
        x = self._of_trees(x, mask, "parents")
        words, parents = self._vectors(x, mask), x["parents"]
        self._check("parents", parents, words.shape[:2], words.shape[1])
        count = words.shape[1]
        places = jnp.arange(count)[None]  # a parent comes after its dependents
        ordered = jnp.all((parents >= places) & (parents < count), axis=1)
        logits = self._classified(self._composed(words, parents), train, keys)
        return _where(ordered, logits, mask)

    def _composed(self, words: Array, parents: Array) -> Array:
        """Compute the hidden states of all words, dependents first."""
        dense = partial(layers.dense, dtype=self.dtype, init=self.initializer)
        of_word = dense(words, 4 * self.memory, name="gates_of_word")
        of_word, forget_of_word = jnp.split(of_word, [3 * self.memory], axis=-1)
        kernel, bias = Affine(
            3 * self.memory, self.dtype, self.initializer, name="gates_of_dependents"
        )(self.memory)
        forget_kernel, forget_bias = Affine(
            self.memory, self.dtype, self.initializer, name="forget_of_dependent"
        )(self.memory)
        rows = jnp.arange(words.shape[0])

        def compose(sums: tuple[Array, Array], step: Any) -> tuple[Any, Array]:
            """Compute a word's state, and add it to the sums of its parent."""
            (number, parent, gates), (hidden_sum, memory_sum) = step, sums
            gates += hidden_sum[:, number] @ kernel + bias[None]
            update, output, new = jnp.split(gates, 3, axis=-1)
            memory = jax.nn.sigmoid(update) * jnp.tanh(new) + memory_sum[:, number]
            hidden = jax.nn.sigmoid(output) * jnp.tanh(memory)
            forget = forget_of_word[rows, parent] + hidden @ forget_kernel + forget_bias[None]
            # The root is its own parent, and the sums of the root are not read again.
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
      init: the recipe of the initial weights: "torch", "normal" or "xavier".

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
    return _checked(TreeLSTM, {**locals()})


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
      init: the recipe of the initial weights: "torch", "normal" or "xavier".

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
    return _checked(ChildSumTreeLSTM, {**locals()})


def _checked(kind: type[OfTrees], options: dict[str, Any]) -> OfTrees:
    """Validate the options, and build a network."""
    for name in ("words", "width", "memory"):
        checks.whole(name, options[name])
    if options["excluded_class"] is not None:
        checks.between("excluded_class", options["excluded_class"], 0, options["num_classes"] - 1)
    return built(kind, options)
