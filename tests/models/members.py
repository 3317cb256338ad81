"""The networks that the laws are run on, made small, and those whose outputs are recorded."""

import functools
import json
import math
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from calib_jax import models
from calib_jax.models.densenet import DenseLayer
from calib_jax.models.resnet import ResidualBlock

CLASSES = 3

# How many parameters a network has as it comes, for images of its `example_inputs`: recorded,
# published, or following from one of these by another stem and last layer.
PARAMETERS = {
    "densenet121": 6_956_298,
    "densenet121_imagenet": 7_978_856,
    "densenet161": 26_482_378,
    "densenet169": 12_493_322,
    "densenet201": 18_104_330,
    "densenet40_bc": 188_092,
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "resnet50": 23_520_842,
    "resnet50_imagenet": 25_557_032,
    "resnet50_tiny_imagenet": 25_138_952,
    "resnet101": 42_512_970,
    "resnet110": 45_864_522,
    "resnet110_imagenet": 47_900_712,
    "resnet110_tiny_imagenet": 47_482_632,
    "resnet152": 58_156_618,
    "resnet152_imagenet": 60_192_808,
    "global_pooling_cnn": 2_247_316,
    "tree_lstm": 6_271_953,
    # 109,482,240 as of BERT-base with its pooler, and 768 x 2 + 2 for two classes.
    "bert": 109_483_778,
    # By hand: 6 (3,152,384 + 4,204,032) in the blocks, 37,000 x 512 vectors (published: 65 M).
    "transformer": 63_082_496,
    "wide_resnet26_10": 36_481_434,
    "deeplab_resnet18": 35_250_090,
    "deeplab_resnet101": 59_341_482,
    # By hand: the published backbones (11,176,512 and 42,500,160), 29 x 256 weights of the pyramid
    # for each of their 512 and 2,048 channels, 1,280 x 256, 12 x 256 of batch norm, and the head.
    "deeplabv3_resnet18": 15_310_922,
    "deeplabv3_resnet101": 58_037_834,
    "resnet8": 75_290,
    # He et al. 2016, table 6: 0.27, 0.46, 0.85 and 1.7 million.
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet56": 853_018,
    "resnet110_small": 1_727_962,
    "efficientnet_lite0": 4_652_008,
}
# The attributes that make a network deep or wide, and those that the laws need. With other such
# attributes a network is tested as large as it is.
SMALLER = {
    "dropout": 0.3,
    "blocks": 1,
    "hidden": 5,
    "width": 4,
    "channels": 5,
    "memory": 3,
    "stem_width": 3,
    "growth": 2,
    "depth": 1,
    "heads": 2,
    "mlp_width": 5,
    "places": 7,
}
STAGES = 2
BERT = {
    **{"words": 50, "width": 4, "depth": 1, "heads": 2, "mlp_width": 5, "places": 7},
    "dropout": 0.3,
}


def small(name):
    """Make a network of the catalogue with few classes, few blocks and narrow layers."""
    network = models.named(name, num_classes=CLASSES)
    changes = {}
    for field, size in SMALLER.items():
        value = getattr(network, field, None)
        if value is not None:
            changes[field] = (size,) * min(len(value), STAGES) if isinstance(value, tuple) else size
    return network.clone(**changes)


# One of each kind of network, with the options that change what it computes.
SMALL = {
    name: small(name)
    for name in (
        *("mlp", "resnet110_imagenet", "densenet121_imagenet", "efficientnet_lite0"),
        *("global_pooling_cnn", "tree_lstm"),
    )
}
SMALL |= {
    "deeplab_small": small("deeplab_small").clone(blocks=(1,), multi_grid=(2,), rates=(2,)),
    "lenet5(norm='batch')": models.lenet5(num_classes=CLASSES, norm="batch"),
    "bert(pool='mean')": models.bert(num_classes=CLASSES, **BERT, pool="mean"),
    "transformer(norm='pre')": small("transformer").clone(norm="pre"),
}


def has_batch_norm(network):
    return hasattr(network, "axis_name") and getattr(network, "norm", "batch") == "batch"


def images(batch, *, side=8, channels=3, dtype=np.float32, seed=0):
    return jnp.asarray(pixels((batch, side, side, channels), dtype, seed))


def pixels(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(network, batch, dtype=np.float32, seed=0):
    """Draw inputs that a network takes; images are smaller than its own, to be fast."""

    def convert(leaf):
        if leaf.ndim == 4:
            return pixels((batch, 8, 8, 3), dtype, seed)
        floating = np.issubdtype(leaf.dtype, np.floating)
        return leaf.astype(dtype) if floating else leaf

    return jax.tree.map(convert, network.example_inputs(batch, seed=seed))


def keys(network, count):
    """Return the argument that a network with dropout needs in training, for others none."""
    if not hasattr(network, "dropout"):
        return {}
    return {"keys": jax.random.split(jax.random.key(5), count)}


def shapes_for(network, x):
    """Return the shapes of the variables for these inputs, without computing any.

    They do not depend on the number of examples: a network is traced once for each kind of inputs.
    """
    leaves, form = jax.tree.flatten(x)
    kinds = ((2, *leaf.shape[1:], leaf.dtype) for leaf in leaves)
    return traced_init(jax.config.jax_enable_x64, network, form, *kinds)


@functools.cache
def traced_init(_, network, form, *leaves):
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for *shape, dtype in leaves]
    init = functools.partial(network.init, train=False)
    return jax.eval_shape(init, jax.random.key(0), form.unflatten(arrays))


@functools.cache
def built_alone(block, channels):
    """Return the shapes of a block's result for 4 x 4 pixels, and of its variables."""
    init = functools.partial(block.init_with_output, train=False, mask=None)
    x = jax.ShapeDtypeStruct((2, 4, 4, channels), "float32")
    return jax.eval_shape(init, jax.random.key(0), x)


def equal_blocks_once(call, arguments, options, context):
    """Trace only one of the blocks that are equal but for their names: most time goes into them."""
    block = context.module
    if not (block.path and isinstance(block, ResidualBlock | DenseLayer)):
        return call(*arguments, **options)
    count, *sides, channels = arguments[0].shape
    result, variables = built_alone(block.clone(parent=None, name=None), channels)
    for kind, of_kind in variables.items():
        block.put_variable(kind, "of_block", jax.tree.map(jnp.zeros_like, of_kind))
    stride = 4 // result.shape[1]
    return jnp.zeros((count, *(-(-side // stride) for side in sides), result.shape[-1]))


def built(network, x):
    """Return the shapes of the logits in evaluation, and of the variables, by fewer traces."""
    init = functools.partial(network.init_with_output, train=False)
    with nn.intercept_methods(equal_blocks_once):
        return jax.eval_shape(init, jax.random.key(0), x)


def variables_of(network, x, seed=1):
    """Draw every variable: what begins as zeros or ones would hide mistakes."""
    draw = np.random.default_rng(seed)

    def fill(path, leaf):
        noise = draw.standard_normal(leaf.shape)
        if len(leaf.shape) > 1:
            noise *= np.prod(leaf.shape[:-1]) ** -0.5  # inputs of an output
        elif path[-1].key in ("scale", "var"):
            noise = 1 + 0.1 * np.abs(noise)
        else:
            noise *= 0.1
        return noise.astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes_for(network, x))


def half(network):
    return network.clone(dtype="bfloat16")


@functools.cache
def weights(network):
    """Draw the variables of a network of `SMALL`, which are the same for every dtype of it."""
    return variables_of(half(network), inputs(network, 2))


@functools.cache
def _evaluation(network):
    return jax.jit(functools.partial(network.apply, train=False))


def evaluated(network, variables, x):
    """Compute the logits in one program: layers one by one would need many."""
    return _evaluation(network)(variables, x)


def affine(params, x):
    return x @ params["kernel"] + params["bias"]


def normalized(params, x, epsilon):
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * params["scale"] + params["bias"]


def attended(params, x, context, seen=lambda row: None, heads=2):
    """Compute the attention of one text, one query and one head at a time."""
    query = affine(params["query"], x)
    key, value = (affine(params[name], context) for name in ("key", "value"))
    size = x.shape[1] // heads
    result = np.empty_like(x)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for row in range(len(x)):
            last = seen(row)
            shares = np.exp(key[:last, part] @ query[row, part] / math.sqrt(size))
            result[row, part] = shares @ value[:last, part] / shares.sum()
    return affine(params["out"], result)


def convolutions(jaxpr):
    """Yield the convolutions of a program, and of those that it calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            yield equation
        for value in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from convolutions(inner)


def size(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


FOLDER = pathlib.Path(__file__).parents[1] / "golden"

RECORDED = json.loads((FOLDER / "architectures.json").read_text(encoding="utf-8"))["cases"]


@functools.cache
def recorded_outputs():
    with np.load(FOLDER / "architectures.npz") as file:
        return dict(file)


def recorded_weights(parameters, seed):
    """Fill tensors of these names and shapes as `fill_rule` in the file of the cases says."""
    tensors = {}
    for number, (name, shape) in enumerate(parameters):
        draw = np.random.RandomState(seed + number).standard_normal(shape)
        if len(shape) > 1:
            tensors[name] = draw * np.sqrt(2 / np.prod(shape[1:]))
        else:
            tensors[name] = 1 + 0.1 * draw if name.endswith("weight") else 0.1 * draw
    # Every vector called weight belongs to a batch norm, which has two buffers.
    norms = [
        (n[: -len("weight")], s) for n, s in parameters if n.endswith("weight") and len(s) == 1
    ]
    for number, (name, shape) in enumerate(norms):
        mean, var = (
            np.random.RandomState(seed + 10000 + 2 * number + k).standard_normal(shape)
            for k in (0, 1)
        )
        tensors[name + "running_mean"] = 0.1 * mean
        tensors[name + "running_var"] = 1 + 0.1 * np.abs(var)
        tensors[name + "num_batches_tracked"] = np.array(7)
    return tensors


def recorded_images(shape, seed):
    """Draw images `[batch, channels, height, width]`, and put the channels last."""
    return np.moveaxis(np.random.RandomState(seed).standard_normal(shape), 1, -1)
