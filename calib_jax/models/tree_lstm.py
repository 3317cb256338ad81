"""The binary Tree-LSTM: one state and one prediction per node of a tree."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.numerics import wide
from calib_jax.core.types import Array, Logits, PyTree
from calib_jax.models import layers, tree_states
from calib_jax.models.contract import DType, Network, TorchRules, built, real_rows, recipe, register
from calib_jax.models.layers import Dropout, word_vectors

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


class TreeLSTM(Network, kw_only=True):
    """States of words and of pairs of subtrees, from the leaves up; see `tree_lstm`."""

    words: int
    width: int
    memory: int
    dropout: float
    excluded_class: int | None

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map trees to logits `[batch, nodes, classes]`, words first."""
        name = type(self).__name__
        if not isinstance(x, Mapping) or not {"words", "children"} <= set(x):
            given = sorted(x) if isinstance(x, Mapping) else type(x).__name__
            raise TypeError(
                f"{name}: inputs must be a dictionary of 'words' and 'children', got {given}."
            )
        x = real_rows({key: jnp.asarray(leaf) for key, leaf in x.items()}, mask)
        words, children = x["words"], x["children"]
        if not jnp.issubdtype(children.dtype, jnp.integer):
            raise TypeError(f"{name}: children must be integers, got {children.dtype}.")
        if jnp.issubdtype(words.dtype, jnp.integer):  # inputs may also be vectors
            words = word_vectors(words, self.words, self.width, self.dtype)
        words, _ = self.inputs(words, mask, rank=3)
        count = words.shape[1]
        if children.shape != (words.shape[0], count - 1, 2):
            raise ValueError(
                f"{name}: children must have shape {(words.shape[0], count - 1, 2)} for {count}"
                f" words, got {children.shape}."
            )
        hidden = tree_states.hidden_states(self._weights(words.shape[-1]), words, children)
        hidden = Dropout(self.dropout, name="drop")(hidden, train, keys)
        logits = layers.head(hidden, self.num_classes, dtype=self.dtype, init=self.initializer)
        if self.excluded_class is not None and not train:
            logits = logits.at[..., self.excluded_class].set(-jnp.inf)
        # Logits of trees whose nodes are not in order are NaN, but not those of padding.
        ends = count + jnp.arange(count - 1)[None, :, None]  # children come before their parent
        kept = jnp.all((children >= 0) & (children < ends), axis=(1, 2))
        if mask is not None:
            kept |= ~jnp.asarray(mask, bool)
        return jnp.where(kept[:, None, None], logits, jnp.nan)

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

    >>> from functools import partial
    >>> import jax
    >>> network = tree_lstm(words=50)
    >>> init = partial(network.init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), network.example_inputs())
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables)) - 50 * 300
    271953
    """
    options = {**locals()}
    for name in ("words", "width", "memory"):
        checks.whole(name, options[name])
    if excluded_class is not None:
        checks.between("excluded_class", excluded_class, 0, num_classes - 1)
    return built(TreeLSTM, options)
