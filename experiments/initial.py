"""Weights that a run does not begin with at random: of a released network, or of another run.

    FILE.npz, FILE.safetensors    tensors of the released PyTorch network, by its names
    FOLDER                        the newest checkpoint of a run of ours
    FOLDER:best_nll, FOLDER:1200  another one of its checkpoints

The last layer stays as it begins at random where the number of classes is another one: what was
learned for one set of classes is tuned to another.
"""

import pathlib
import sys
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from calib_jax import models, train
from calib_jax.core.types import PyTree

HEAD = "head"


def variables(source: str, module: Any, random: PyTree, *, anew: bool = True) -> PyTree:
    """Read weights for a network.

    Args:
      source: see above.
      module: the network.
      random: its variables as they begin at random, which tell the shapes.
      anew: whether the last layer may begin at random, where the number of classes is another.
    """
    path = pathlib.Path(source)
    if path.is_file():
        return _fitted(source, _released(path, module), random, anew)
    # A folder may have a colon in its name; what follows the last one may be a checkpoint.
    folder, _, checkpoint = (source, "", "") if path.is_dir() else source.rpartition(":")
    if not folder or not pathlib.Path(folder).is_dir():
        raise FileNotFoundError(f"there is neither a file nor a run called {source}.")
    return _fitted(source, _of_run(folder, checkpoint), random, anew)


def _released(path: pathlib.Path, module: Any) -> PyTree:
    tensors = models.read_weights(path)
    try:
        classes = models.classes_in(module, tensors)
        return models.from_torch(module.clone(num_classes=classes), tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _of_run(folder: str, checkpoint: str) -> PyTree:
    checkpoints = opened(folder)
    try:
        return checkpoints.variables(step_of(checkpoints, checkpoint or "latest"), say=warn)
    finally:
        checkpoints.close()


def opened(workdir: str) -> train.Checkpoints:
    """Open the checkpoints of a run, to read them."""
    folder = pathlib.Path(workdir) / "checkpoints"
    if not folder.is_dir():
        raise ValueError(f"there is no run in {workdir}: it has no folder checkpoints.")
    return train.Checkpoints(folder, read_only=True)


def chosen(checkpoints: train.Checkpoints) -> str:
    """Name the checkpoint that a run is measured by: its best, if patience has ended it early."""
    about = checkpoints.about()
    config, ledger = about["config"], about["ledger"]
    row = ledger["row"] or {"epoch": 0, "num_epochs": 0}
    patience, name = config.get("patience", 0), config.get("patience_for", "")
    early = ledger["done"] and row["epoch"] < row["num_epochs"]
    if early and 0 < patience <= ledger["waited"] and name in ledger["best"]:
        return f"best_{name}"
    return "latest"


def step_of(checkpoints: train.Checkpoints, name: str) -> int | None:
    """Find the step that a name stands for; None is the newest that can be read."""
    if name == "latest":
        return None
    if name.isdecimal():
        return int(name)
    best = checkpoints.about()["ledger"]["best"]
    names = {f"best_{metric}": int(found["step"]) for metric, found in best.items()}
    if name not in names:
        known = ", ".join(["latest", *names, *map(str, checkpoints.steps)])
        raise ValueError(f"there is no checkpoint {name!r}; this run has {known}.")
    return names[name]


def warn(text: str) -> None:
    """Say something that is no reason to stop."""
    print(f"warning: {text}", file=sys.stderr)


def _fitted(source: str, found: PyTree, random: PyTree, anew: bool) -> PyTree:
    """Put what was read in the place of what is random; only the last layer may differ."""
    ours, theirs = (traverse_util.flatten_dict(tree, sep="/") for tree in (random, found))
    head = [name for name in ours if name.split("/")[1] == HEAD]
    if any(np.shape(theirs.get(name, ours[name]))[-1] != ours[name].shape[-1] for name in head):
        if not anew:
            raise ValueError(f"the last layer of {source} is for other classes than the data set.")
        warn(f"the last layer of {source} is for other classes: ours begins at random.")
        theirs |= {name: ours[name] for name in head}
    for name in sorted({*ours, *theirs}):
        shapes = [str(np.shape(t[name])) if name in t else "nothing" for t in (theirs, ours)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{source} holds another network: {name} is {shapes[0]} there and {shapes[1]} here."
            )
    cast = {name: np.asarray(theirs[name], ours[name].dtype) for name in ours}
    return jax.tree.map(jax.numpy.asarray, traverse_util.unflatten_dict(cast, sep="/"))
