"""Models: Flax networks, called `module(x, *, train, mask=None) -> logits [*batch, classes]`.

    models.resnet20(num_classes=100)                     a Flax module
    models.named("resnet20", num_classes=100)            a network by name, for configs
    models.catalogue()                                   every network by name

Every file of this subpackage is one family. To add a family, add one file and import its public
names below; the catalogue lists its registered networks.
"""

from typing import TYPE_CHECKING, Any

from calib_jax.core.names import no_attribute
from calib_jax.models.batch_norm import BatchNorm
from calib_jax.models.bert import Bert, BertEncoder, bert
from calib_jax.models.contract import Network, catalogue, named, register
from calib_jax.models.decoding import Decoded, beam_search, greedy_search, translate
from calib_jax.models.deeplab import (
    deeplab,
    deeplab_resnet18,
    deeplab_resnet101,
    deeplab_small,
    deeplabv3_resnet18,
    deeplabv3_resnet101,
)
from calib_jax.models.densenet import (
    densenet,
    densenet40_bc,
    densenet121,
    densenet121_imagenet,
    densenet161,
    densenet169,
    densenet201,
)
from calib_jax.models.dropout import Dropout
from calib_jax.models.files.bert_files import read_bert, write_bert
from calib_jax.models.files.torch_weights import classes_in, from_torch, to_torch
from calib_jax.models.files.weight_files import read_weights, write_weights
from calib_jax.models.lenet import lenet5
from calib_jax.models.perceptron import linear, mlp
from calib_jax.models.resnet import (
    resnet,
    resnet18,
    resnet34,
    resnet50,
    resnet50_imagenet,
    resnet50_tiny_imagenet,
    resnet101,
    resnet110,
    resnet110_imagenet,
    resnet110_tiny_imagenet,
    resnet152,
    resnet152_imagenet,
)
from calib_jax.models.small_resnet import (
    resnet8,
    resnet20,
    resnet32,
    resnet56,
    resnet110_small,
    small_resnet,
)
from calib_jax.models.text_cnn import global_pooling_cnn
from calib_jax.models.transformer import transformer
from calib_jax.models.tree_lstm import child_sum_tree_lstm, tree_lstm
from calib_jax.models.vit import vit
from calib_jax.models.wide_resnet import wide_resnet, wide_resnet26_10, wide_resnet28_10

__all__ = [
    "BatchNorm",
    "Bert",
    "BertEncoder",
    "Decoded",
    "Dropout",
    "Network",
    "beam_search",
    "bert",
    "catalogue",
    "child_sum_tree_lstm",
    "classes_in",
    "deeplab",
    "deeplab_resnet18",
    "deeplab_resnet101",
    "deeplab_small",
    "deeplabv3_resnet18",
    "deeplabv3_resnet101",
    "densenet",
    "densenet40_bc",
    "densenet121",
    "densenet121_imagenet",
    "densenet161",
    "densenet169",
    "densenet201",
    "from_torch",
    "global_pooling_cnn",
    "greedy_search",
    "lenet5",
    "linear",
    "mlp",
    "named",
    "read_bert",
    "read_weights",
    "register",
    "resnet",
    "resnet8",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet50",
    "resnet50_imagenet",
    "resnet50_tiny_imagenet",
    "resnet56",
    "resnet101",
    "resnet110",
    "resnet110_imagenet",
    "resnet110_small",
    "resnet110_tiny_imagenet",
    "resnet152",
    "resnet152_imagenet",
    "small_resnet",
    "to_torch",
    "transformer",
    "translate",
    "tree_lstm",
    "vit",
    "wide_resnet",
    "wide_resnet26_10",
    "wide_resnet28_10",
    "write_bert",
    "write_weights",
]


def __dir__() -> list[str]:
    """Return the public names, without the modules of this subpackage."""
    return __all__


if not TYPE_CHECKING:  # type checkers see all names above and report unknown ones

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name, __all__)
