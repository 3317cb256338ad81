"""Read initial weights from the file of a released network, or from another run.

    FILE.npz, FILE.safetensors    tensors of the released PyTorch network, by PyTorch's names
    FOLDER                        a Hugging Face BERT, with config.json and model.safetensors
    FOLDER                        the newest checkpoint of a calib_jax run
    FOLDER:best_nll, FOLDER:1200  another checkpoint of that run

The last layer keeps its random initialisation if the number of classes differs, so that a network
can be fine-tuned on other classes.
"""

import pathlib
import sys
from typing import Any

import jax
import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from calib_jax import models, train
from calib_jax.core.types import PyTree
from experiments.evaluation import best_checkpoints
from experiments.running import cli

HEAD = "head"
BERT = "model.safetensors"
SIZES = ("words", "width", "depth", "heads", "mlp_width", "places", "types", "epsilon")


def variables(source: str, module: Any, random: PyTree, *, anew: bool = True) -> PyTree:
    """Read weights for a network.

    Args:
      source: a file or a folder, as listed above.
      module: the network.
      random: the network's randomly initialised variables, which define the shapes.
      anew: whether the last layer may keep its random initialisation if the number of classes
        differs.
    """
    path = pathlib.Path(source)
    if path.is_file():
        return _fitted(source, _released(path, module), random, anew)
    if (path / BERT).is_file():
        return _fitted(source, _bert(path, module, random, anew), random, anew)
    # A folder name may contain a colon; the text after the last colon may be a checkpoint.
    folder, _, checkpoint = (source, "", "") if path.is_dir() else source.rpartition(":")
    if not folder or not pathlib.Path(folder).is_dir():
        raise FileNotFoundError(
            f"there is neither a file nor a run called {source}: give FILE.npz, FILE.safetensors,"
            " the folder of a BERT, or RUN:CHECKPOINT."
        )
    return _fitted(source, _of_run(folder, checkpoint), random, anew)


def _released(path: pathlib.Path, module: Any) -> PyTree:
    tensors = models.read_weights(path)
    try:
        classes = models.classes_in(module, tensors)
        return models.from_torch(module.clone(num_classes=classes), tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _bert(folder: pathlib.Path, module: Any, random: PyTree, anew: bool) -> PyTree:
    """Read a BERT for a network of the same size; the folder may lack the last layer."""
    if not isinstance(module, models.Bert):
        raise ValueError(f"{folder} holds a BERT: set model.name=bert.")
    classified = any(name.startswith("classifier.") for name in models.read_weights(folder / BERT))
    if not (classified or anew):
        raise ValueError(f"{folder} holds a BERT without a last layer: fine-tune it first.")
    new_layer: dict[str, Any] = (
        {} if classified else {"num_classes": module.num_classes, "key": jax.random.key(0)}
    )
    network, variables = models.read_bert(folder, pool=module.pool, **new_layer)
    theirs, ours = ({name: getattr(bert, name) for name in SIZES} for bert in (network, module))
    if theirs != ours:
        options = [f"{name}={size}" for name, size in theirs.items() if size != ours[name]]
        raise ValueError(
            f"{folder} holds a BERT of another size: set the network's options"
            f" {', '.join(options)}."
        )
    if not classified:  # every seed has its own last layer
        variables = {"params": {**variables["params"], HEAD: random["params"][HEAD]}}
    return variables


def _of_run(folder: str, checkpoint: str) -> PyTree:
    with opened(folder) as checkpoints:
        return checkpoints.variables(step_of(checkpoints, checkpoint or "latest"), warn=warn)


def with_embedding(random: PyTree, table: np.ndarray) -> PyTree:
    """Replace the random word vectors of a network by the word vectors of the data set."""
    flat = traverse_util.flatten_dict(random, sep="/")
    place = "params/embedding/embedding"
    if place not in flat:
        raise ValueError(
            "the data set has word vectors, and the network has no layer 'embedding' for them:\n"
            "choose a network of texts, such as global_pooling_cnn, or no vectors."
        )
    if flat[place].shape != table.shape:
        (words, width), (given_words, given_width) = flat[place].shape, table.shape
        raise ValueError(
            f"the data set has {given_words:,} word vectors of width {given_width}, and the network"
            f" {words:,} of {width}:\nset the network's options words={given_words} and"
            f" width={given_width}."
        )
    return traverse_util.unflatten_dict({**flat, place: table.astype(flat[place].dtype)}, sep="/")


def opened(workdir: pathlib.Path | str) -> train.Checkpoints:
    """Open the checkpoints of a run, read-only; `with` closes them."""
    folder = pathlib.Path(workdir) / "checkpoints"
    if not folder.is_dir():
        runs = sorted(pathlib.Path(workdir).glob("runs/*/*/checkpoints"))
        near = f" The runs of this sweep are folders such as {runs[0].parent}." if runs else ""
        raise ValueError(f"there is no run in {workdir}: it has no folder checkpoints.{near}")
    return train.Checkpoints(folder, read_only=True)


def config_of(checkpoints: train.Checkpoints) -> ConfigDict:
    """Return the config of a run."""
    return ConfigDict(checkpoints.about()["config"])


def chosen(checkpoints: train.Checkpoints) -> str:
    """Return the name of the checkpoint to evaluate: the best if patience ended the run early."""
    about = checkpoints.about()
    config, rows = about["config"], about["rows"]
    patience, name = config.get("patience", 0), config.get("patience_for", "")
    early = about["done"] and rows[-1]["epoch"] < rows[-1]["num_epochs"]
    if early and 0 < patience <= about["waited"] and name in about["best"]:
        return f"best_{name}"
    return "latest"


def step_of(checkpoints: train.Checkpoints, name: str) -> int | None:
    """Return the step of a named checkpoint; None stands for the newest readable checkpoint.

    If a metric chose the checkpoint, its error is printed beside the best error.
    """
    if name == "latest":
        return None
    if name.isdecimal():
        return int(name)
    about = checkpoints.about()
    best = about["best"]
    names = {f"best_{metric}": int(record["step"]) for metric, record in best.items()}
    if name not in names:
        known = ", ".join(["latest", *names, *map(str, checkpoints.steps)])
        raise ValueError(f"there is no checkpoint {name!r}; this run has {known}.")
    count = about.get("same", {}).get("data", {}).get("validation", {}).get("examples", 0)
    if text := best_checkpoints.remark(about.get("rows", ()), name, names[name], count):
        cli.say_once(f"note: {checkpoints.folder.parent}: {text}")
    return names[name]


def warn(text: str) -> None:
    """Print a warning."""
    print(f"warning: {text}", file=sys.stderr)


def _fitted(source: str, given: PyTree, random: PyTree, anew: bool) -> PyTree:
    """Replace random variables by the given ones; only the shape of the last layer may differ."""
    ours, theirs = (traverse_util.flatten_dict(tree, sep="/") for tree in (random, given))
    head = [name for name in ours if name.split("/")[1] == HEAD]
    if any(np.shape(theirs.get(name, ours[name]))[-1] != ours[name].shape[-1] for name in head):
        if not anew:
            raise ValueError(f"{source} and the data set have different numbers of classes.")
        warn(f"{source} has another number of classes: the last layer is initialised at random.")
        theirs |= {name: ours[name] for name in head}
    for name in sorted({*ours, *theirs}):
        shapes = [str(np.shape(t[name])) if name in t else "nothing" for t in (theirs, ours)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{source} holds another network: {name} is {shapes[0]} there and {shapes[1]} here."
            )
    cast = {name: np.asarray(theirs[name], ours[name].dtype) for name in ours}
    return jax.tree.map(jax.numpy.asarray, traverse_util.unflatten_dict(cast, sep="/"))
