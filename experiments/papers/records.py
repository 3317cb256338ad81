"""Records of trainings, and the trainings of those that are missing.

A record holds the logits of the validation and the test set in float16 with their labels. If no row
needs a temperature, it holds the uncertainty score of every test example and whether the prediction
is correct instead. Both kinds hold the config, the commit and the date of the run.

    RESULTS/runs/cifar10_resnet8/cross_entropy/1.npz
"""

import dataclasses
import functools
import importlib
import json
import pathlib
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.papers.estimates import Columns, Part, Predictions, temperatures
from experiments.papers.trainings import Training
from experiments.running import cli, environment

ROOT = pathlib.Path(__file__).parents[2]
PARTS = ("test", "validation")
RESAMPLES = 100


@dataclasses.dataclass(frozen=True)
class Trained:
    """The predictions of one seed; about: config, commit and date of its run."""

    test: Part
    validation: Part | None
    about: Mapping[str, Any]

    @functools.cached_property
    def temperatures(self) -> np.ndarray:
        """The papers' temperature, and behind it those of resamples of the validation set.

        The resamples are the same for all networks with as many validation examples.
        """
        if not isinstance(self.validation, Predictions):
            raise ValueError("a record without logits has no temperature: train the row again.")
        count = len(self.validation.labels)
        draws = np.random.default_rng(0).multinomial(
            count, np.full(count, 1 / count), size=RESAMPLES
        )
        weights = np.concatenate([np.ones((1, count)), draws]).astype(np.float32)
        return temperatures(self.validation, weights)

    def after(self, temperature: float) -> Columns:
        """Return the columns of the test set after a temperature."""
        assert isinstance(self.test, Predictions)
        return self.test.scaled(temperature).columns


def path_of(results: pathlib.Path, training: Training, seed: int) -> pathlib.Path:
    """Return the file of a record."""
    return results / "runs" / training.folder / f"{seed}.npz"


def read(results: pathlib.Path, training: Training, seed: int) -> Trained:
    """Read a record; refuse one that is damaged, or of another training or seed."""
    path = path_of(results, training, seed)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(bytes(arrays["about"]))
            parts = {part: _part(arrays, part) for part in PARTS if _has(arrays, part)}
            config = about["config"]
            wanted = _identity(training) | {"seed": seed}
            found = {key: _at(config, key) for key in wanted}
            about["commit"] = str(about["commit"])
            test = parts["test"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(
            f"{path} is no record of a run ({error}): remove it, and run the row again."
        ) from error
    for key, value in wanted.items():
        if json.dumps(found[key]) != json.dumps(value):
            raise ValueError(
                f"{path} is a record of another row: its {key} is {found[key]!r}, and"
                f" {training.folder} has {value!r}. Remove it, or give another --results."
            )
    return Trained(test, parts.get("validation"), about)


def _identity(training: Training) -> dict[str, Any]:
    """Return the keys of the config by which a record is recognised, with their values."""
    config = importlib.import_module(f"configs.{training.config}").get_config(training.loss)
    keys = {
        "data.name": config.data.name,
        "model.name": config.model.name,
        "loss.name": config.loss.name,
        "num_epochs": config.num_epochs,
    }
    if "imbalance" in config.data.options:
        keys["data.options.imbalance"] = config.data.options.imbalance
    return keys | training.overrides


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def _has(arrays: Any, part: str) -> bool:
    return any(name.startswith(f"{part}_") for name in arrays.files)


def _part(arrays: Any, part: str) -> Part:
    if f"{part}_logits" in arrays.files:
        logits = arrays[f"{part}_logits"].astype(np.float32)
        return Predictions(logits, arrays[f"{part}_labels"].astype(np.int64))
    confidence = 1 - arrays[f"{part}_doubt"].astype(np.float64)
    return Columns(confidence, arrays[f"{part}_right"])


def check_commits(trained: Mapping[pathlib.Path, Trained], known: frozenset[str]) -> None:
    """Refuse records of several commits, unless these are the commits of the row's verdict."""
    commits = {path: run.about["commit"] for path, run in trained.items()}
    if len(set(commits.values())) < 2 or set(commits.values()) <= known:
        return
    path = next(path for path, commit in commits.items() if commit not in known)
    others = sorted(set(commits.values()) - {commits[path]})
    raise ValueError(
        f"{path} is a record of commit {commits[path]}, and other records of the row are of"
        f" {', '.join(others)}: remove one of them, or give a new --results=FOLDER."
    )


def write(results: pathlib.Path, training: Training, seed: int, run: pathlib.Path) -> None:
    """Write the record of a finished run of a sweep."""
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS:
        with np.load(run / f"predictions_{part}.npz", allow_pickle=False) as found:
            logits = found["logits"].astype(np.float32)
            labels = found["labels"]
            kept = found["weights"] > 0 if "weights" in found.files else np.ones(labels.shape, bool)
        # Only differences of logits matter, and float16 is finest near 0.
        shifted = logits[kept] - logits[kept].max(axis=-1, keepdims=True)
        arrays[f"{part}_logits"] = np.maximum(shifted, np.finfo(np.float16).min).astype(np.float16)
        arrays[f"{part}_labels"] = labels[kept].astype(np.int16)
    config: dict[str, Any] = {"seed": seed}
    for key, value in _identity(training).items():
        *parents, last = key.split(".")
        functools.reduce(lambda at, part: at.setdefault(part, {}), parents, config)[last] = value
    about = {"config": config, **environment.published()}
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    path = path_of(results, training, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    new.replace(path)


def train(
    results: pathlib.Path, training: Training, workdir: pathlib.Path, data_dir: str | None
) -> None:
    """Train the seeds without a record by `experiments.sweep`, which resumes, and keep records."""
    seeds = range(1, training.seeds + 1)
    missing = [seed for seed in seeds if not path_of(results, training, seed).is_file()]
    if not missing:
        return
    folder = (workdir / training.folder.replace("/", "-")).resolve()
    command = [
        *(sys.executable, "-m", "experiments.sweep"),
        f"--config=configs/{training.config}.py:{training.loss}",
        f"--workdir={folder}",
        f"--losses={training.loss}",
        f"--seeds={training.seeds}",
        *(f"--config.{key}={value}" for key, value in training.overrides.items()),
        *([f"--checkpoint={training.checkpoint}"] if training.checkpoint else []),
        *([f"--data_dir={pathlib.Path(data_dir).resolve()}"] if data_dir else []),
    ]
    cli.say_step(f"training: {shlex.join(['python', *command[1:]])}")
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise cli.Failed(
            f"the sweep in {folder} ended with code {code}: its message stands above, and the same"
            " command resumes it."
        )
    for seed in missing:
        write(results, training, seed, folder / "runs" / training.loss / str(seed))
