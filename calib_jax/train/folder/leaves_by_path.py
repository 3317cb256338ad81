"""Trees as arrays by path, such as `("params", "Dense_0", "kernel")`, and their checksums."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from calib_jax.core.types import PyTree

Leaves = Mapping[tuple[str, ...], np.ndarray]


class AnotherRun(ValueError):
    """Raised when saved arrays do not match the train state."""


def of_tree(tree: PyTree) -> dict[tuple[str, ...], np.ndarray]:
    """Return the arrays of a tree by path."""
    return {_names(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def _names(path: Sequence[Any]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def as_template(template: PyTree, leaves: Leaves, folder: Path) -> PyTree:
    """Build a tree with the structure of the template; raise `AnotherRun` if anything differs.

    Args:
      template: a tree with the expected structure, shapes and dtypes.
      leaves: the arrays by path.
      folder: the folder that the error names.
    """
    expected = {_names(path): leaf for path, leaf in jax.tree.leaves_with_path(template)}
    problem = ""
    if expected.keys() != leaves.keys():
        problem = "/".join(min(expected.keys() ^ leaves.keys())) + " differs"
    else:
        for path, leaf in expected.items():
            saved = leaves[path]
            if (saved.shape, saved.dtype) != (leaf.shape, leaf.dtype):
                problem = (
                    f"{'/'.join(path)} is {saved.dtype}{list(saved.shape)} there and"
                    f" {leaf.dtype}{list(leaf.shape)} here"
                )
                break
    if problem:
        raise AnotherRun(f"{folder} holds another network, optimizer or loss: {problem}.")
    return jax.tree.unflatten(jax.tree.structure(template), [leaves[path] for path in expected])


def checksums(leaves: Leaves) -> dict[str, list[Any]]:
    """Return the dtype, the shape and the checksum of the bytes of every array."""
    return {
        "/".join(path): [str(leaf.dtype), list(leaf.shape), zlib.crc32(leaf.tobytes())]
        for path, leaf in leaves.items()
    }


def changed(leaves: Leaves, saved: Mapping[str, Any]) -> str:
    """Return the path of an array that does not match the saved checksum; "" if all match."""
    actual = checksums(leaves)
    names = sorted(actual.keys() | saved.keys())
    return next((name for name in names if saved.get(name) != actual.get(name)), "")
