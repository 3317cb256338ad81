"""Conversion between a network's variables and the state dict of the released PyTorch network."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from calib_jax.core.types import PyTree
from calib_jax.models.contract import Network, TorchRules

# PyTorch's names of the variables of a layer; all other names are equal.
_LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "mean": "running_mean",
    "var": "running_var",
}
# PyTorch's batch norm counts batches for a cumulative average that no released network uses.
_IGNORED = "num_batches_tracked"
_WRAPPER = "module."
_SHOWN = 4

Path: TypeAlias = tuple[str, ...]


def from_torch(
    network: nn.Module,
    state_dict: Mapping[str, Any],
    *,
    shape: Sequence[int] | None = None,
    inputs: PyTree = None,
) -> PyTree:
    """Convert the `state_dict()` of the released network to variables.

    Kernels are transposed from `[out, in, *window]` to `[*window, in, out]`. Values are cast to
    the dtype of the network's parameters. `num_batches_tracked` is dropped, and so is a prefix
    `module.` common to all names (from `DataParallel`).

    Args:
      network: the Flax network, with the same number of classes.
      state_dict: a mapping from names to NumPy arrays, such as `models.read_weights(path)`, or to
        tensors that `numpy.asarray` accepts.
      shape: the shape of an example, by default of `network.example_inputs()` (mostly 32 x 32 x 3);
        the number of channels must match the weights.
      inputs: example inputs instead of a shape, for a network that takes a tree of arrays.

    Returns:
      `{"params": ..., "batch_stats": ...}`, the latter only for networks with batch norm.

    >>> from calib_jax import models
    >>> network = models.resnet([1], width=2)
    >>> from_torch(network, {"fc.weight": np.zeros((10, 3))})
    Traceback (most recent call last):
    ValueError: these tensors are no ResNet: 16 missing: ...; 1 unlike these: fc.weight is float64
    (10, 3) instead of (10, 2).
    """
    released, rules = _released(network)
    tensors = _unwrapped(state_dict)
    template = _template(released, shape, inputs)
    _check(type(network).__name__, list(_named(template, rules)), tensors)
    # Copy, since JAX could share memory with a tensor that PyTorch continues to train.
    flat = {
        path: jnp.array(_from_their_layout(path, np.asarray(tensors[name]).astype(leaf.dtype)))
        for name, path, leaf in _named(template, rules)
    }
    return jax.tree_util.tree_map_with_path(lambda keys, _: flat[_path(keys)], template)


def classes_in(network: nn.Module, state_dict: Mapping[str, Any]) -> int:
    """Return the number of classes of the last layer in a released network's state dict.

    Args:
      network: the Flax network, with any number of classes.
      state_dict: as for `from_torch`. If the last layer is missing, the result is
        `network.num_classes`; `from_torch` then raises an error.

    >>> from calib_jax import models
    >>> classes_in(models.resnet([1], width=2), {"fc.weight": np.zeros((100, 2))})
    100
    """
    released, rules = _released(network)
    tensors = _unwrapped(state_dict)
    for name, path, _ in _named(_template(released), rules):
        if path[1] == "head" and path[-1] == "kernel" and np.ndim(tensors.get(name, 0)):
            return int(np.shape(tensors[name])[0])
    return released.num_classes


def to_torch(network: nn.Module, variables: PyTree) -> dict[str, np.ndarray]:
    """Convert variables to NumPy arrays for `load_state_dict` of the released PyTorch network.

    Args:
      network: the network of the variables.
      variables: `{"params": ..., "batch_stats": ...}`, the latter only with batch norm.

    >>> from calib_jax import models
    >>> to_torch(models.resnet18(), {"params": {"norm": {"scale": jnp.ones(2)}}})
    {'bn1.weight': array([1., 1.], dtype=float32)}
    """
    if other := [name for name in variables if name not in ("params", "batch_stats")]:
        raise ValueError(
            f"variables has {other[0]!r}, and not only 'params' and 'batch_stats': give all that"
            " init returns, and not a part of it."
        )
    released, rules = _released(network)
    paths = {path for _, path, _ in _named(_template(released), rules)}
    named = list(_named(variables, rules))
    # Shapes are not compared: the number of channels of the images is not known here.
    if wrong := ["/".join(path) for _, path, _ in named if path not in paths]:
        raise ValueError(
            f"variables has {wrong[0]}, and this {type(network).__name__} has no such variable:"
            " give the variables of this network."
        )
    return {
        name: np.array(_to_their_layout(path, np.asarray(leaf)), order="C")
        for name, path, leaf in named
    }


def _released(network: nn.Module) -> tuple[Network, TorchRules]:
    rules = network.torch_rules() if isinstance(network, Network) else None
    if not isinstance(network, Network) or rules is None:
        raise ValueError(
            f"no PyTorch code was released for {type(network).__name__}: its layers have no names"
            " there."
        )
    return network, rules


def _template(
    network: Network, shape: Sequence[int] | None = None, inputs: PyTree = None
) -> PyTree:
    """Return the shapes and dtypes of the variables without allocating them."""
    if shape is not None:
        example = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    else:
        example = network.example_inputs(1) if inputs is None else inputs
    init = functools.partial(network.init, train=False)
    return jax.eval_shape(init, jax.random.key(0), example)


def _named(variables: PyTree, rules: TorchRules) -> Iterator[tuple[str, Path, Any]]:
    """Yield the PyTorch name, the path and the value of each variable."""
    for keys, leaf in jax.tree_util.tree_leaves_with_path(variables):
        path = _path(keys)
        layers = [_renamed(part, rules) for part in path[1:-1]]
        yield ".".join([*layers, _LEAVES.get(path[-1], path[-1])]), path, leaf


def _path(keys: Any) -> Path:
    return tuple(key.key for key in keys)


def _renamed(part: str, rules: TorchRules) -> str:
    for pattern, name in rules.items():
        if match := re.fullmatch(pattern, part):
            return match.expand(name) if isinstance(name, str) else name(match)
    return part


def _to_their_layout(path: Path, array: np.ndarray) -> np.ndarray:
    """Transpose a kernel from `[*window, in, out]` to `[out, in, *window]`."""
    return np.moveaxis(array, (-1, -2), (0, 1)) if path[-1] == "kernel" else array


def _from_their_layout(path: Path, array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, (0, 1), (-1, -2)) if path[-1] == "kernel" else array


def _unwrapped(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {name: t for name, t in state_dict.items() if not name.endswith(_IGNORED)}
    if tensors and all(name.startswith(_WRAPPER) for name in tensors):
        tensors = {name.removeprefix(_WRAPPER): t for name, t in tensors.items()}
    return tensors


def _check(kind: str, named: Sequence[tuple[str, Path, Any]], tensors: Mapping[str, Any]) -> None:
    """Raise an error that lists some differences if the tensors do not match the network."""
    wanted = {
        # A broadcast view allocates nothing; only its shape is needed.
        name: _to_their_layout(path, np.broadcast_to(0, leaf.shape)).shape
        for name, path, leaf in named
    }
    given = {name: np.asarray(tensor) for name, tensor in tensors.items()}
    missing = [f"{name} {shape}" for name, shape in wanted.items() if name not in given]
    left = [f"{name} {array.shape}" for name, array in given.items() if name not in wanted]
    other = [
        f"{name} is {given[name].dtype} {given[name].shape} instead of {shape}"
        for name, shape in wanted.items()
        if name in given
        and (given[name].shape != shape or given[name].dtype.kind not in "iufV")  # V: bfloat16
    ]
    wrong = [
        f"{len(names)} {what}: {', '.join(names[:_SHOWN])}" + ", ..." * (len(names) > _SHOWN)
        for names, what in ((missing, "missing"), (left, "left over"), (other, "unlike these"))
        if names
    ]
    if wrong:
        raise ValueError(f"these tensors are no {kind}: {'; '.join(wrong)}.")
