r"""Export a trained network with its calibrator as one file, which runs with JAX alone.

    python -m experiments.export --workdir=/tmp/digits
    python -m experiments.export --workdir=/tmp/digits --checkpoint=best_nll --calibrate=vector \
        --out=/tmp/digits.jax

The calibrator is fitted on the validation set, as experiments.evaluate fits it; --calibrate=
exports the network alone. The file takes a batch of any size on CPUs, CUDA GPUs and TPUs, and needs
neither calib_jax nor flax, only jax and flatbuffers:

    import jax

    with open("digits.jax", "rb") as file:
        model = jax.export.deserialize(bytearray(file.read()))
    outputs = jax.jit(model.call)(inputs)  # {"logits": ..., "probabilities": ...}

The inputs are those of the data set, such as bytes of images: normalization is in the file. Inputs
of several arrays are a dictionary. FILE.json beside the file has the names, shapes and types of the
inputs, the names of the classes, the checkpoint and the fitted parameters of the calibrator.

A network that depends on the size of its batch needs --batch_size=N. A file works with later
releases of JAX for at least six months.
"""

import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from absl import flags

from calib_jax import train
from calib_jax.core.types import Array, PyTree
from calib_jax.report import calibrate
from calib_jax.train import log
from experiments.evaluation.predictions import label_rows, without_excluded
from experiments.evaluation.trained import predictions, restored
from experiments.running import building, cli, imports, initial, provenance, training

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_ALLOW_IMPORTS = cli.define_allow_imports()
flags.declare_key_flag("data_dir")
_CHECKPOINT = cli.define_checkpoint()
_CALIBRATE = flags.DEFINE_string("calibrate", "temperature", "Calibrator; empty for none.")
_CRITERION = flags.DEFINE_string(
    "criterion", "nll", "What a temperature minimizes, as for experiments.evaluate."
)
_OUT = flags.DEFINE_string("out", None, "The new file; by default exported.jax in the workdir.")
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", 0, "Size of the batches of the file; 0 for any size.", lower_bound=0
)

PLATFORMS = ("cpu", "cuda", "tpu")
Function = Callable[[PyTree], dict[str, Array]]
# Errors of tracing: the function reads the values of an array, or the size of a batch.
_UNTRACED = (
    *(AttributeError, TypeError, ValueError, NotImplementedError),
    jax.errors.InconclusiveDimensionOperation,
)


def main() -> int:
    """Export the network, and compare the file with the library's own predictions."""
    if not _WORKDIR.value:
        raise cli.Refused("give --workdir=FOLDER of the run.")
    folder = pathlib.Path(_WORKDIR.value)
    out = pathlib.Path(_OUT.value or folder / "exported.jax")
    # Validate before predicting.
    name = cli.refusing(calibrate.chosen, _CALIBRATE.value, _CRITERION.value)
    cli.refusing(check_request, folder, out, _CHECKPOINT.value)
    cli.use_compilation_cache()
    experiment, (network,) = cli.refusing(
        restored,
        [folder],
        _CHECKPOINT.value,
        data_dir=building.DATA_DIR.value,
        allow_imports=_ALLOW_IMPORTS.value,
    )
    validation = experiment.dataset.validation
    predicted = cli.failing(predictions, experiment, [network.state], validation)
    logits = without_excluded(predicted.logits[0], experiment.config)
    apply, fit = _fitted(name, predicted._replace(logits=logits)) if name else (jnp.asarray, None)
    number = np.arange(_BATCH_SIZE.value or min(len(logits), 100)) % len(logits)
    given = validation[number].inputs
    served, inputs = function(experiment, network.state, apply, given)
    program = cli.refusing(exported, served, inputs, _BATCH_SIZE.value)
    about = {
        "inputs": described(program, inputs),
        "class_names": list(experiment.dataset.class_names),
        "checkpoint": str(network.weights),
        "calibrator": fit,
        "platforms": program.platforms,
        "provenance": provenance.describe(),
    }
    description = cli.refusing(write, out, program, about)
    outputs = jax.export.deserialize(bytearray(out.read_bytes())).call(inputs)
    own = jax.nn.softmax(apply(logits[number]), -1)
    cli.say(f"step {int(network.state.step)} of {folder} ({network.checkpoint})")
    if fit:
        cli.say(calibrate.sentence(fit))
    cli.say(
        f"Largest difference to the library's probabilities of {len(number)} validation examples:"
        f" {float(jnp.max(jnp.abs(outputs['probabilities'] - own))):.1e}."
    )
    platforms = ", ".join(program.platforms)
    cli.say(f"written: {out} ({out.stat().st_size:,} bytes; {platforms}), {description}")
    return 0


def _fitted(name: str, predicted: train.Predicted) -> tuple[Callable[[Any], Array], dict[str, Any]]:
    """Fit a calibrator on the validation set; return its `apply` and a description of the fit."""
    logits, labels, weights, _ = label_rows(*predicted)
    held_out = cli.refusing(
        calibrate.held_out, logits, labels, weights, num_classes=logits.shape[-1]
    )
    apply, fit = cli.refusing(calibrate.fitted, name, held_out, _CRITERION.value)
    cli.refusing(check_calibrator, name, apply, logits)
    return apply, fit


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


if __name__ == "__main__":
    cli.run(main, select=imports.without_import_flags)
