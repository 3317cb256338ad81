"""The convolutional network of the 20 Newsgroups experiments, with global pooling over a text."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from calib_jax.core import checks
from calib_jax.core.types import Array, Logits, PyTree
from calib_jax.models import layers
from calib_jax.models.contract import DType, Network, TorchRules, built, real_rows, register
from calib_jax.models.layers import Dropout, word_vectors

_WINDOW = 5  # words, of convolutions and of pooling
_CONVOLUTIONS = 3
SHORTEST = _CONVOLUTIONS * (_WINDOW - 1) + (_CONVOLUTIONS - 1) * (_WINDOW - 1) + 1


class GlobalPoolingCNN(Network, kw_only=True):
    """Three convolutions over the words and the maximum over a text; see `global_pooling_cnn`."""

    words: int
    width: int
    channels: int
    dropout: float

    @nn.compact
    def __call__(self, x: Any, *, train: bool, mask: Any = None, keys: Any = None) -> Logits:
        """Map word numbers `[batch, length]`, or vectors `[batch, length, width]`, to logits."""
        common = {"dtype": self.dtype, "init": self.initializer}
        if not isinstance(x, Mapping):  # `inputs` refuses it
            x = self._vectors(jnp.asarray(x), mask)
        x, _ = self.inputs(x, mask, rank=3)
        if x.shape[1] < SHORTEST:
            raise ValueError(
                f"{type(self).__name__}: a text must have at least {SHORTEST} words, got shape"
                f" {x.shape}: pad it with 0."
            )
        for number in range(1, _CONVOLUTIONS + 1):
            x = nn.relu(
                layers.conv(x, self.channels, _WINDOW, name=f"conv{number}", bias=True, **common)
            )
            if number < _CONVOLUTIONS:
                x = layers.max_pool(x, _WINDOW)
        x = jnp.max(x, axis=1)
        x = nn.relu(layers.dense(x, self.channels, name="dense", **common))
        x = Dropout(self.dropout, name="drop")(x, train, keys)
        return layers.head(x, self.num_classes, **common)

    def _vectors(self, x: Array, mask: Any) -> Array:
        """Return the vectors of word numbers; inputs may also be vectors."""
        if not jnp.issubdtype(x.dtype, jnp.integer):
            return x
        if x.ndim != 2:
            raise ValueError(
                f"{type(self).__name__}: word numbers must have shape [batch, length], got"
                f" {x.shape}."
            )
        return word_vectors(real_rows(x, mask), self.words, self.width, self.dtype)

    @nn.nowrap
    def example_inputs(self, batch: int = 2, *, seed: int = 0) -> PyTree:
        """Draw texts of the shortest length."""
        draw = np.random.default_rng(seed)
        return draw.integers(self.words, size=(batch, SHORTEST), dtype=np.int32)

    @nn.nowrap
    def torch_rules(self) -> TorchRules:
        """Return the layer names of the released network, which takes vectors."""
        return {"dense": "fc1", "head": "fc2"}


@register("global_pooling_cnn")
def global_pooling_cnn(
    *,
    num_classes: int = 20,
    words: int = 20_000,
    width: int = 100,
    channels: int = 128,
    dropout: float = 0.3,
    dtype: DType = "float32",
    init: str = "torch",
) -> nn.Module:
    """Build the text network of Kumar et al. 2018 and Mukhoti et al. 2020 for 20 Newsgroups.

    Three convolutions over windows of five words, with 128 channels and ReLU; the maximum over
    five positions (stride 1) after each of the first two, and over all positions after the last; a
    dense layer of 128 with ReLU, dropout and the last layer. It has 247,316 parameters for 20
    classes besides its word vectors. Inputs are word numbers `[batch, length]`, where 0 is padding,
    or vectors `[batch, length, width]` as in the released code; then it has no word vectors.

    Args:
      num_classes: the number of logits per text.
      words: the size of the vocabulary, with padding.
      width: the size of the word vectors.
      channels: the channels of the convolutions and of the dense layer.
      dropout: the rate before the last layer; the released code keeps 0.7.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: the recipe of the initial weights, "torch" or "he_normal".

    References:
      Kumar et al. 2018, Trainable Calibration Measures for Neural Networks from Kernel Mean
      Embeddings, and its released code.

    >>> import jax
    >>> network = global_pooling_cnn(words=50)
    >>> init = jax.tree_util.Partial(network.init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), network.example_inputs())
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables)) - 50 * 100
    247316
    """
    options = {**locals()}
    for name in ("words", "width", "channels"):
        checks.whole(name, options[name])
    return built(GlobalPoolingCNN, options)
