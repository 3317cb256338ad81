"""The recorded networks: their weights, made by the rule of the recording, and their outputs."""

import functools
import json
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).parents[1] / "golden"

CASES = json.loads((FOLDER / "architectures.json").read_text(encoding="utf-8"))["cases"]


@functools.cache
def outputs():
    with np.load(FOLDER / "architectures.npz") as file:
        return dict(file)


def state_dict(parameters, seed):
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


def images(shape, seed):
    """Draw images `[batch, channels, height, width]`, and put the channels last."""
    return np.moveaxis(np.random.RandomState(seed).standard_normal(shape), 1, -1)
