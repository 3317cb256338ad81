"""Find the finished runs that an entry needs in a folder of sweeps, and train the missing ones.

A run is recognised by its config, not by the name of its folder, so every entry that needs it finds
it, and none trains it again. New ones are trained by experiments.sweep, in one folder per config:

    RUNS_DIR/cifar10_resnet8/runs/cross_entropy/1
    RUNS_DIR/cifar10_resnet8-gamma=1.0/runs/focal/1
"""

import contextlib
import copy
import functools
import importlib
import pathlib
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from calib_jax import models, train
from calib_jax.core.files import reading
from calib_jax.train.folder import files
from experiments.papers.entry import Training
from experiments.running import cli, imports, resuming

CONFIGS = pathlib.Path(__file__).parents[3] / "configs"
# Keys on which no result depends: those that may change in a finished sweep, and the best
# checkpoints that are kept.
FREE = (*resuming.MEASURED, "best", "seed", "num_seeds")


class Finished(NamedTuple):
    """A finished run.

    Attributes:
      folder: the folder of the run.
      seed: its seed.
      config: under today's keys.
      result: what the sweep wrote last.
    """

    folder: pathlib.Path
    seed: int
    config: dict[str, Any]
    result: dict[str, Any]

    @property
    def start(self) -> dict[str, Any]:
        """The command, commit, machine and versions of its last start."""
        rows = files.json_rows(self.folder / "environment.jsonl").rows
        return rows[-1] if rows else {"commit": "unknown"}


@functools.cache
def _config(name: str, loss: str) -> Any:
    path = CONFIGS / f"{name}.py"
    if not path.is_file():
        raise FileNotFoundError(f"there is no config file configs/{name}.py.")
    return importlib.import_module(f"configs.{name}").get_config(loss)


def config_of(training: Training) -> dict[str, Any]:
    """Return the config of a training as JSON restores it."""
    config = copy.deepcopy(_config(training.config, training.loss))
    if name := training.overrides.get("model.name"):  # its options are its own, as in the binaries
        with config.unlocked():
            config.model.options = ConfigDict(imports.default_options(models.catalogue()[name]))
    config.update_from_flattened_dict(training.overrides)
    return cli.plain(config)


def free(training: Training) -> tuple[str, ...]:
    """Return the keys of the config in which a run of a training may differ."""
    return FREE if training.diagnosed else (*FREE, "diagnose")


def finished(runs_dir: pathlib.Path) -> list[Finished]:
    """List all finished runs in the sweeps of a folder; a half-written one is no finished run."""
    if not runs_dir.is_dir():
        return []
    runs = []
    for path in sorted(runs_dir.glob("*/runs/*/*/result.json")):
        if not path.parent.name.isdecimal():
            continue
        result = reading.json_mapping(path, "a result", "the same sweep writes it again")
        runs.append(Finished(path.parent, int(path.parent.name), result["config"], result))
    return runs


def matching(
    training: Training, seed: int, runs: Iterable[Finished]
) -> tuple[Finished | None, list[str]]:
    """Find a run of a training; if there is none, list how similar ones differ."""
    wanted = config_of(training)
    others = []
    for run in runs:
        if run.seed != seed or run.config["loss"]["name"] != wanted["loss"]["name"]:
            continue
        differences = train.differences(run.config, wanted, free=free(training))
        measured = run.result.get("checkpoint") or "latest"
        if training.checkpoint not in ("", measured):
            differences.append(f"checkpoint {measured} and not {training.checkpoint}")
        if not differences:
            return run, []
        if run.folder.parents[2].name == sweep_folder(training):
            others.append(f"{run.folder} has another config ({'; '.join(differences[:3])})")
    return None, others


def sweep_folder(training: Training) -> str:
    """Return the name of the folder in which a training is trained."""
    return training.config + (f"-{training.variant}" if training.variant else "")


def train_missing(
    missing: Iterable[Training],
    runs_dir: pathlib.Path,
    data_dir: str | None,
    seconds: float | None = None,
) -> bool:
    """Train with experiments.sweep, one sweep for all losses of a config.

    Args:
      missing: the trainings; finished seeds of theirs are not trained again.
      runs_dir: folder of the sweeps.
      data_dir: folder of the data sets.
      seconds: after which a sweep is stopped; the same call resumes it.

    Returns:
      Whether all are trained; False if a sweep was stopped.
    """
    groups: dict[tuple[str, int, str], list[Training]] = {}
    for training in missing:
        key = (sweep_folder(training), training.seeds, training.checkpoint)
        groups.setdefault(key, []).append(training)
    for (folder, seeds, checkpoint), trainings in groups.items():
        first = trainings[0]
        command = [
            *(sys.executable, "-m", "experiments.sweep"),
            # The loss behind the file has the options that the overrides set.
            f"--config=configs/{first.config}.py:{first.loss}",
            f"--workdir={(runs_dir / folder).resolve()}",
            f"--losses={','.join(training.loss for training in trainings)}",
            f"--seeds={seeds}",
            *(f"--config.{key}={value}" for key, value in first.overrides.items()),
        ]
        command += [f"--checkpoint={checkpoint}"] if checkpoint else []
        command += ["--logits=none"] if all(t.keep == "none" for t in trainings) else []
        command += [f"--data_dir={pathlib.Path(data_dir).resolve()}"] if data_dir else []
        cli.say_step(" ".join(["training:", *command[1:]]))
        with subprocess.Popen(command, cwd=CONFIGS.parent) as process:
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.terminate()  # it saves its state and ends
                process.wait()
                return False
        if code:
            raise cli.Failed(
                f"the sweep in {runs_dir / folder} ended with code {code}: its message stands"
                " above, and the same command resumes it."
            )
    return True


def missing_data(name: str, data_dir: str | None) -> str:
    """Return why a data set cannot be read; "" if it can."""
    from calib_jax import data
    from calib_jax.data.formats import files

    about = data.about(name)
    if about is None or not about.has_files:
        return ""
    with contextlib.suppress(ValueError, OSError):
        files.find(name, about, data_dir, config=next(iter(about.variants), ""))
        return ""
    return (
        f"the data set {name} is absent: --data_dir=DIR gives its folder, and python -m"
        f" experiments.data --list shows how to get it."
    )
