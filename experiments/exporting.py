"""A trained network with its calibrator as one function, and its export by `jax.export`."""

import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from calib_jax.core.types import Array, PyTree
from calib_jax.train import log
from experiments.running import building, initial, training

PLATFORMS = ("cpu", "cuda", "tpu")
Function = Callable[[PyTree], dict[str, Array]]
# Errors of tracing: the function reads the values of an array, or the size of a batch.
_UNTRACED = (
    *(AttributeError, TypeError, ValueError, NotImplementedError),
    jax.errors.InconclusiveDimensionOperation,
)


def check_request(folder: pathlib.Path, out: pathlib.Path, checkpoint: str | None) -> None:
    """Raise an error for what can be refused before the data set is read."""
    if importlib.util.find_spec("flatbuffers") is None:
        raise ImportError("export needs flatbuffers: pip install 'calib_jax[export]'.")
    for path in (out, _description(out)):
        if path.exists():
            raise FileExistsError(f"{path} exists: remove it, or give another --out=FILE.")
    if seeds := training.there(folder):
        raise ValueError(
            f"{folder} holds several seeds: export one, --workdir={next(iter(seeds.values()))}."
        )
    with initial.opened(folder) as checkpoints:
        done = checkpoints.about()["done"]
    if not (done or checkpoint):
        raise ValueError(
            f"the run in {folder} is not finished: finish it by its command of experiments.train,"
            " or give --checkpoint=latest."
        )
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {out.parent}: create it, or change --out.")


def check_calibrator(name: str, apply: Callable[[Array], Array], logits: Any) -> None:
    """Raise an error if a calibrator cannot be compiled."""
    try:
        jax.eval_shape(apply, jax.ShapeDtypeStruct(logits.shape, logits.dtype))
    except _UNTRACED as error:
        raise ValueError(
            f"the calibrator {name} cannot be exported, because its apply does not work inside"
            " jax.jit: write it with jax.numpy."
        ) from error


def function(
    experiment: building.Experiment, state: Any, apply: Callable[[Array], Array], given: PyTree
) -> tuple[Function, PyTree]:
    """Build the function to export, and its inputs: an array, or arrays by name."""
    params, model_state = jax.tree.map(jnp.asarray, state.evaluated)
    leaves, structure = jax.tree.flatten_with_path(given)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    arrays = [np.asarray(leaf) for _, leaf in leaves]
    one = names == [""]

    def function(inputs: PyTree) -> dict[str, Array]:
        parts = [inputs] if one else [inputs[name] for name in names]
        prepared = experiment.dataset.prepare(jax.tree.unflatten(structure, parts))
        logits, *_ = experiment.task.forward(
            params, model_state, prepared, train=False, rng=None, weights=None
        )
        number = experiment.config.get("excluded_class")
        if number is not None:
            logits = logits.at[..., number].set(-jnp.inf)
        logits = apply(logits)
        return {"logits": logits, "probabilities": jax.nn.softmax(logits, -1)}

    return function, arrays[0] if one else dict(zip(names, arrays, strict=True))


def exported(function: Function, inputs: PyTree, batch_size: int) -> jax.export.Exported:
    """Export a function for batches of one size, or with 0 of any size."""
    size = batch_size or jax.export.symbolic_shape("batch")[0]
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), inputs
    )
    try:
        return jax.export.export(jax.jit(function), platforms=PLATFORMS)(shapes)
    except _UNTRACED as error:
        if batch_size:
            raise
        raise ValueError(
            "the network or the calibrator depends on the size of a batch: give --batch_size=N, or"
            " write x.shape[0] in place of len(x) in your code."
        ) from error


def described(exported: jax.export.Exported, inputs: PyTree) -> Any:
    """Describe the shape and type of each input."""
    names = inputs if isinstance(inputs, dict) else {"": inputs}
    described = [f"{shape.dtype}{list(map(str, shape.shape))}" for shape in exported.in_avals]
    by_name = dict(zip(sorted(names), (text.replace("'", "") for text in described), strict=True))
    return by_name if isinstance(inputs, dict) else by_name[""]


def write(out: pathlib.Path, exported: jax.export.Exported, about: dict[str, Any]) -> pathlib.Path:
    """Write an exported function, and a description beside it; return the description's path."""
    with log.replacing(out) as temporary:
        temporary.write_bytes(exported.serialize())
    description = _description(out)
    log.replace(description, json.dumps(about, indent=1) + "\n")
    return description


def _description(out: pathlib.Path) -> pathlib.Path:
    return out.with_name(f"{out.name}.json")
