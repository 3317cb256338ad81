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

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from absl import flags

from calib_jax import train
from calib_jax.core.types import Array
from calib_jax.inference import Evaluation
from calib_jax.report import calibrate
from experiments import exporting
from experiments.evaluation.scoring import label_rows, without_excluded
from experiments.evaluation.trained import predictions, restored
from experiments.running import building, cli, environment, imports

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


def main() -> int:
    """Export the network, and compare the file with the library's own predictions."""
    if not _WORKDIR.value:
        raise cli.Refused("give --workdir=FOLDER of the run.")
    folder = pathlib.Path(_WORKDIR.value)
    out = pathlib.Path(_OUT.value or folder / "exported.jax")
    # Validate before predicting.
    name = _CALIBRATE.value
    cli.refusing(calibrate.requested, name, _CRITERION.value)
    cli.refusing(exporting.check_request, folder, out, _CHECKPOINT.value)
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
    function, inputs = exporting.function(experiment, network.state, apply, given)
    exported = cli.refusing(exporting.exported, function, inputs, _BATCH_SIZE.value)
    about = {
        "inputs": exporting.described(exported, inputs),
        "class_names": list(experiment.dataset.class_names),
        "checkpoint": str(network.weights),
        "calibrator": fit,
        "platforms": exported.platforms,
        "provenance": environment.describe(),
    }
    described = cli.refusing(exporting.write, out, exported, about)
    outputs = jax.export.deserialize(bytearray(out.read_bytes())).call(inputs)
    own = jax.nn.softmax(apply(logits[number]), -1)
    cli.say(f"step {int(network.state.step)} of {folder} ({network.checkpoint})")
    if fit:
        cli.say(calibrate.sentence(fit))
    cli.say(
        f"Largest difference to the library's probabilities of {len(number)} validation examples:"
        f" {float(jnp.max(jnp.abs(outputs['probabilities'] - own))):.1e}."
    )
    platforms = ", ".join(exported.platforms)
    cli.say(f"written: {out} ({out.stat().st_size:,} bytes; {platforms}), {described}")
    return 0


def _fitted(name: str, predicted: train.Predicted) -> tuple[Callable[[Any], Array], dict[str, Any]]:
    """Fit a calibrator on the validation set; return its `apply` and a description of the fit."""
    logits, labels, weights, _ = label_rows(*predicted)
    one = cli.refusing(Evaluation, logits, labels, weights, name="export")
    held_out = one.logits, one.labels, one.weights
    apply, fit = cli.refusing(calibrate.fitted, name, _CRITERION.value, held_out)
    cli.refusing(exporting.check_calibrator, name, apply, logits)
    return apply, fit


if __name__ == "__main__":
    cli.run(main, select=imports.without_import_flags)
