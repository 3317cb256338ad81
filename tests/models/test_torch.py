"""Every released form against PyTorch, with weights that go both ways. It needs torch.

python -m pytest tests/models/test_torch.py -m slow
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from calib_jax import models

CLASSES = 7


def residual(blocks, bottleneck, **changes):
    wide = changes.pop("wide", False)
    same = {"stem": "3x3", "cells": 1, **changes}
    shortcut = "shortcut" if same == {"stem": "3x3", "cells": 1} and not wide else "downsample"
    stem_width = 4 if wide else 8
    network = models.resnet(blocks, bottleneck, *same.values(), width=8, num_classes=CLASSES)
    network = network.clone(stem_width=stem_width, torch_shortcut=shortcut)
    size = {"width": 8, "stem_width": stem_width, "shortcut": shortcut, "classes": CLASSES}
    return network, "ResNet", ((blocks, bottleneck), {**same, **size})


def dense(blocks, *, stem="3x3", new="last", final_norm):
    network = models.densenet(blocks, 6, stem, new, final_norm, num_classes=CLASSES)
    if final_norm == "bn":
        return network, "DenseNet", ((blocks, 6), {"classes": CLASSES})
    options = {"stem": stem, "final_norm": final_norm, "classes": CLASSES}
    return network, "TorchvisionDenseNet", ((blocks, 6), options)


CASES = {
    "basic": residual([2, 1, 2], False),
    "bottleneck": residual([1, 2, 1, 1], True),
    "Tiny ImageNet": residual([1, 1, 2], True, cells=2),
    "ImageNet": residual([2, 1, 1], True, stem="7x7"),
    "wide": residual([2, 2, 1], False, wide=True),
    "dense": dense([2, 3, 1], new="first", final_norm="bn"),
    "dense, temperature scaling": dense([2, 1, 2], final_norm="norm_final"),
    "dense, ImageNet": dense([1, 2, 2], stem="7x7", final_norm="norm5"),
}


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_torch(case, train, x64):
    torch = pytest.importorskip("torch")
    from . import torch_networks

    network, kind, (args, options) = case
    network = network.clone(dtype="float64")
    if hasattr(network, "dropout"):
        network = network.clone(dropout=0.0)
    torch.manual_seed(0)
    theirs = getattr(torch_networks, kind)(*args, **options).double().train(train)
    draw = np.random.default_rng(0)
    for tensor in [*theirs.parameters(), *theirs.buffers()]:
        if tensor.is_floating_point():  # nothing stays at 0 or 1
            noise = torch.as_tensor(draw.uniform(0.1, 0.5, tuple(tensor.shape)))
            tensor.data += noise * (draw.uniform() if tensor.ndim < 2 else 0.1)
    x = network.example_inputs(3).astype(np.float64)
    variables = models.from_torch(network, theirs.state_dict())
    apply = functools.partial(network.apply, train=train, mutable=["batch_stats"])
    logits, changed = jax.jit(apply)(variables, jnp.asarray(x))
    images = torch.as_tensor(np.moveaxis(x, -1, 1).copy())
    expected = theirs(images).detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-9, atol=1e-9)

    # After training mode the running statistics have moved, here and there alike.
    after = models.to_torch(network, {**variables, **changed})
    for name, tensor in theirs.state_dict().items():
        if "num_batches_tracked" not in name:
            np.testing.assert_allclose(after[name], tensor.numpy(), rtol=1e-9, atol=1e-12)

    # The way back: our own weights in their network.
    doubled = jax.tree.map(lambda leaf: 1.5 * leaf, variables)
    tensors = models.to_torch(network, doubled)
    theirs.load_state_dict({name: torch.as_tensor(a) for name, a in tensors.items()})
    logits = network.apply(doubled, jnp.asarray(x), train=False)
    expected = theirs.eval()(images).detach().numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-9, atol=1e-9)
