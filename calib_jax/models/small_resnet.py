"""The small residual networks of He et al. for CIFAR: three stages of 16, 32 and 64 channels."""

from collections.abc import Callable

import flax.linen as nn

from calib_jax.core import checks
from calib_jax.core.types import AxisName
from calib_jax.models.batch_norm import NORMS
from calib_jax.models.contract import DType, built, variant, variants_of
from calib_jax.models.resnet import SHORTCUTS, ResNet

_STAGES = 3


def small_resnet(
    blocks: int,
    *,
    num_classes: int = 10,
    width: int = 16,
    norm: str = "batch",
    shortcut: str = "pad",
    axis_name: AxisName = None,
    dtype: DType = "float32",
    init: str = "he_normal",
) -> nn.Module:
    """Build a residual network of 6 n + 2 layers, with n blocks in each of three stages.

    The network has a 3 x 3 convolution to 16 channels (`width`), three stages of basic blocks (16,
    32 and 64 channels, the later two starting with stride 2), the average over all positions and a
    linear layer. Images may have any size and number of channels.

    Args:
      blocks: n; 1, 3, 5, 9 and 18 give `resnet8`, `resnet20`, `resnet32`, `resnet56` and
        `resnet110_small`.
      num_classes: the number of logits per example.
      width: the channels of the first stage.
      norm: "batch", or "none" for a network without normalization, as in `resnet`.
      shortcut: how the shortcut changes the shape of its input. "pad" is the paper's option A for
        CIFAR: it takes every second position and pads zero channels, half of them before the old
        ones and half after. "projection" is option B: a 1 x 1 convolution with batch norm.
      axis_name: the device axis over which batch norm sums its statistics.
      dtype: the compute dtype of all layers but the last (see `Network`).
      init: "he_normal" as in the paper, whose deep networks need this scale, and by fan-out as in
        the released networks that do not use PyTorch's default; or "torch".

    References:
      He et al. 2016, Deep Residual Learning for Image Recognition, section 4.2.

    >>> import jax, jax.numpy as jnp
    >>> images = jnp.zeros((2, 32, 32, 3))
    >>> from functools import partial
    >>> init = partial(resnet20().init, train=False)
    >>> variables = jax.eval_shape(init, jax.random.key(0), images)
    >>> sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    269722
    """
    options = {**locals()}
    checks.whole("blocks", blocks)
    checks.whole("width", width)
    checks.one_of("norm", norm, NORMS)
    checks.one_of("shortcut", shortcut, SHORTCUTS)
    return built(ResNet, options, blocks=(blocks,) * _STAGES, stem_width=width)


@variants_of(small_resnet)
def _of_depth(name: str, blocks: int, millions: str) -> Callable[..., nn.Module]:
    what = f"the small ResNet with {blocks} blocks in each stage, {millions} million parameters for"
    return variant(name, f"{what} 10 classes", small_resnet, blocks)


resnet8 = _of_depth("resnet8", 1, "0.075")
resnet20 = _of_depth("resnet20", 3, "0.27")
resnet32 = _of_depth("resnet32", 5, "0.46")
resnet56 = _of_depth("resnet56", 9, "0.85")
resnet110_small = _of_depth("resnet110_small", 18, "1.7")
