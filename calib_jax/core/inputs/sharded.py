"""Arrays sharded over a mesh: Explicit axes, and arrays gathered for fits and tests.

On an Explicit mesh, the default of `jax.make_mesh`, JAX must know the sharding of every result, so
scatters, sorts and gathers over a sharded axis raise an error. Public functions therefore compute
with Auto axes, for which the compiler chooses shardings, and reshard their results:

    per example, [*batch]            like the labels
    per class, [*batch, classes]     like the logits
    everything else                  replicated
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard, use_abstract_mesh


def explicit_sharding(value: Any) -> NamedSharding | None:
    """Return the sharding of an array on a mesh with Explicit axes, None for anything else."""
    traced = isinstance(value, jax.core.Tracer)
    sharding = jax.typeof(value).sharding if traced else getattr(value, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and sharding.mesh.explicit_axes else None


def with_auto_axes(
    function: Callable[..., Any], logits: Any, labels: Any, *others: Any, per_row: bool = True
) -> Any:
    """Call `function(logits, labels, *others)`, on an Explicit mesh with Auto axes.

    The arguments may be trees. A function among them that closes over arrays of an Explicit mesh
    raises an error; a `jax.tree_util.Partial` of these arrays is a tree.

    Args:
      function: returns a tree of arrays.
      logits, labels, others: its arguments.
      per_row: whether results per example and per class are sharded like the labels and the
        logits; otherwise all results are replicated.
    """
    of_logits, of_labels = explicit_sharding(logits), explicit_sharding(labels)
    sharding = of_labels if of_logits is None else of_logits
    if sharding is None:
        return function(logits, labels, *others)
    mesh = sharding.mesh
    auto = mesh.abstract_mesh.update_axis_types(dict.fromkeys(mesh.explicit_axes, AxisType.Auto))
    shape = np.shape(logits)
    per_class = PartitionSpec() if of_logits is None else jax.typeof(logits).sharding.spec
    per_example = per_class if of_labels is None else jax.typeof(labels).sharding.spec
    rows = PartitionSpec(*per_example[: len(shape) - 1])
    specs = {shape: per_class, shape[:-1]: rows} if per_row else {}

    def entering(leaf: Any) -> Any:
        return leaf if explicit_sharding(leaf) is None else reshard(leaf, PartitionSpec())

    def leaving(leaf: Any) -> Any:
        return reshard(leaf, NamedSharding(mesh, specs.get(np.shape(leaf), PartitionSpec())))

    with use_abstract_mesh(auto):
        results = function(*jax.tree.map(entering, (logits, labels, *others)))
    return jax.tree.map(leaving, results)


def _replicated(mesh: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def gathered(name: str, what: str, values: Any) -> Any:
    """Gather an array that is spread over devices; return anything else unchanged.

    Args:
      name: the name of the caller, for the error message.
      what: a description of the values, for the error message.
      values: an array, which inside `jit` is replicated.
    """
    if isinstance(values, jax.core.Tracer):
        sharding = explicit_sharding(values)
        return (
            values if sharding is None else reshard(values, sharding.update(spec=PartitionSpec()))
        )
    if not isinstance(values, jax.Array) or len(values.sharding.device_set) == 1:
        return values
    refuse_part(name, what, values)
    return jnp.asarray(np.asarray(values))


def refuse_part(name: str, what: str, values: Any) -> None:
    """Raise an error for an array of which this process holds only a part."""
    if not (getattr(values, "is_fully_addressable", True) or values.is_fully_replicated):
        raise ValueError(
            f"{name}: the {what} {values.shape} are spread over processes, and this process holds"
            " only a part of them. Gather them first:\n"
            f"jax.experimental.multihost_utils.process_allgather({what}, tiled=True)."
        )
