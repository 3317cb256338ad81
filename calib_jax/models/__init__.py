"""Models: Flax networks, called `module(x, *, train, mask=None) -> logits [*batch, classes]`.

    models.resnet20(num_classes=100)                     a Flax module
    models.named("resnet20", num_classes=100)            a network by name, for configs
    models.catalogue()                                   every network by name

Every file of this subpackage is one family. To add a family, add one file and import its public
names below; the catalogue lists its registered networks.
"""

from calib_jax.core import checks as _checks
from calib_jax.models.batch_norm import BatchNorm as BatchNorm
from calib_jax.models.bert import Bert as Bert
from calib_jax.models.bert import BertEncoder as BertEncoder
from calib_jax.models.bert import bert as bert
from calib_jax.models.contract import Network as Network
from calib_jax.models.contract import catalogue as catalogue
from calib_jax.models.contract import named as named
from calib_jax.models.contract import register as register
from calib_jax.models.decoding import Decoded as Decoded
from calib_jax.models.decoding import beam_search as beam_search
from calib_jax.models.decoding import greedy_search as greedy_search
from calib_jax.models.decoding import translate as translate
from calib_jax.models.deeplab import deeplab as deeplab
from calib_jax.models.deeplab import deeplab_resnet18 as deeplab_resnet18
from calib_jax.models.deeplab import deeplab_resnet101 as deeplab_resnet101
from calib_jax.models.deeplab import deeplab_small as deeplab_small
from calib_jax.models.deeplab import deeplabv3_resnet18 as deeplabv3_resnet18
from calib_jax.models.deeplab import deeplabv3_resnet101 as deeplabv3_resnet101
from calib_jax.models.densenet import densenet as densenet
from calib_jax.models.densenet import densenet40_bc as densenet40_bc
from calib_jax.models.densenet import densenet121 as densenet121
from calib_jax.models.densenet import densenet121_imagenet as densenet121_imagenet
from calib_jax.models.densenet import densenet161 as densenet161
from calib_jax.models.densenet import densenet169 as densenet169
from calib_jax.models.densenet import densenet201 as densenet201
from calib_jax.models.efficientnet import efficientnet_lite0 as efficientnet_lite0
from calib_jax.models.files.bert_files import read_bert as read_bert
from calib_jax.models.files.bert_files import write_bert as write_bert
from calib_jax.models.files.torch_weights import classes_in as classes_in
from calib_jax.models.files.torch_weights import from_torch as from_torch
from calib_jax.models.files.torch_weights import to_torch as to_torch
from calib_jax.models.files.weight_files import read_weights as read_weights
from calib_jax.models.files.weight_files import write_weights as write_weights
from calib_jax.models.images import lenet5 as lenet5
from calib_jax.models.layers import Dropout as Dropout
from calib_jax.models.layers import linear as linear
from calib_jax.models.layers import mlp as mlp
from calib_jax.models.resnet import resnet as resnet
from calib_jax.models.resnet import resnet8 as resnet8
from calib_jax.models.resnet import resnet18 as resnet18
from calib_jax.models.resnet import resnet20 as resnet20
from calib_jax.models.resnet import resnet32 as resnet32
from calib_jax.models.resnet import resnet34 as resnet34
from calib_jax.models.resnet import resnet50 as resnet50
from calib_jax.models.resnet import resnet50_imagenet as resnet50_imagenet
from calib_jax.models.resnet import resnet50_tiny_imagenet as resnet50_tiny_imagenet
from calib_jax.models.resnet import resnet56 as resnet56
from calib_jax.models.resnet import resnet101 as resnet101
from calib_jax.models.resnet import resnet110 as resnet110
from calib_jax.models.resnet import resnet110_imagenet as resnet110_imagenet
from calib_jax.models.resnet import resnet110_small as resnet110_small
from calib_jax.models.resnet import resnet110_tiny_imagenet as resnet110_tiny_imagenet
from calib_jax.models.resnet import resnet152 as resnet152
from calib_jax.models.resnet import resnet152_imagenet as resnet152_imagenet
from calib_jax.models.resnet import small_resnet as small_resnet
from calib_jax.models.resnet import wide_resnet26_10 as wide_resnet26_10
from calib_jax.models.text_cnn import global_pooling_cnn as global_pooling_cnn
from calib_jax.models.transformer import transformer as transformer
from calib_jax.models.tree_lstm import tree_lstm as tree_lstm

_checks.export(__name__)
