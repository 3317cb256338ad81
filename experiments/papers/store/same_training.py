"""Whether two commits train the same: equal code, or a beginning that was trained with both.

Verdicts compare runs of one code. Most changes leave a training as it was, such as a new network
beside the old one, and a run need not be repeated after them. `measure` trains the first epochs of
a training with both commits, with three seeds and few examples. Where the older commit does not
have the network yet, both train what was trained with it. Another loss, optimizer, order of
examples or initial network changes every seed. Rounding, which a compiler may change, is amplified
in some seeds and not in all, so the seed that agrees best decides. The result is kept beside the
records, in RESULTS/runs/same_training.json.

What begins after these epochs is not seen, such as a later drop of the learning rate; the configs
of records, where it stands, are compared apart from this.
"""

import collections
import functools
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from calib_jax.core.files import reading
from calib_jax.train.folder import files
from experiments.papers.entry import Training
from experiments.papers.store import runs
from experiments.running import cli, provenance

EPOCHS, SEEDS, EXAMPLES = 2, 3, 1000
LIMIT = 1e-6  # ten times the rounding of float32
_AGAIN = "remove it, and run the entries again with --same_training"


class Other(NamedTuple):
    """A training with runs of another code than that of most runs.

    Attributes:
      training: the training.
      commit: the commit of its runs.
      common: the commit of most runs.
      of_common: a training with a run of that commit, which both can train.
    """

    training: Training
    commit: str
    common: str
    of_common: Training

    @property
    def key(self) -> str:
        """The training and both commits, whichever is first."""
        first, second = sorted((self.commit, self.common))
        return f"{self.training.config} {self.training.label}: {first} and {second}"


def others(commits: Iterable[tuple[Training, str]]) -> list[Other]:
    """List the trainings whose code differs from that of most runs.

    Args:
      commits: the training and the commit of every run.
    """
    counted = collections.Counter(commits)
    of_code: collections.Counter[str] = collections.Counter()
    for (_, commit), number in counted.items():
        of_code[code(commit)] += number
    if len(of_code) < 2:
        return []
    most = of_code.most_common(1)[0][0]
    of_common, common = next(key for key in counted if code(key[1]) == most)
    return [Other(t, commit, common, of_common) for t, commit in counted if code(commit) != most]


class CannotTrain(ValueError):
    """Raised when a commit does not train what a newer one does."""


@functools.cache
def code(commit: str) -> str:
    """Return the hashes of all code that a training may import; the commit where git lacks it.

    This is calib_jax, experiments/running, and the modules in experiments itself.
    """
    if commit.endswith("-dirty"):
        return commit
    try:
        listed = _git("ls-tree", commit, "calib_jax/", "experiments/").decode().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return commit
    imported = (".py", "\texperiments/running")
    return "\n".join(line for line in listed if line.endswith(imported) or "\tcalib_jax/" in line)


def _git(*arguments: str) -> bytes:
    process = subprocess.run(
        ["git", *arguments], capture_output=True, check=True, cwd=runs.CONFIGS.parent
    )
    return process.stdout


def path_of(folder: pathlib.Path) -> pathlib.Path:
    """Return the file of all measurements."""
    return folder / "runs" / "same_training.json"


def read(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Read the measurements, by the key of `Other`."""
    try:
        return reading.json_mapping(path_of(folder), "measurements", _AGAIN)
    except FileNotFoundError:
        return {}


def is_same(other: Other, measured: Mapping[str, Mapping[str, Any]]) -> bool:
    """Check that both commits were measured, and train the same."""
    row = measured.get(other.key)
    return row is not None and row["difference"] <= LIMIT


def measure_missing(
    folder: pathlib.Path, commits: Iterable[tuple[Training, str]], data_dir: str | None
) -> None:
    """Measure what runs of several commits need, and keep it."""
    measured = read(folder)
    for other in others(commits):
        if other.key not in measured:
            cli.say_step(f"training {EPOCHS} epochs twice: {other.key}")
            measured[other.key] = measure(other, data_dir)
            content = json.dumps(dict(sorted(measured.items())), indent=1) + "\n"
            files.replace(path_of(folder), content)
        row = measured[other.key]
        print(
            f"{other.key}: losses of {row['trained']} differ by {row['difference']:.1g}, at most"
            f" {LIMIT:g} is the same"
        )


def measure(other: Other, data_dir: str | None) -> dict[str, Any]:
    """Train the first epochs with both commits, and return how far apart their losses are.

    A commit which does not have the network of the training yet trains `of_common`, as does the
    other.
    """
    commits = (other.common, other.commit)  # the older one is mostly the common one
    for commit in commits:
        if code(commit) == commit:
            raise ValueError(f"the commit {commit} is not in this checkout: train its runs again.")
    trained = other.training
    try:
        losses = [_losses(trained, commit, data_dir) for commit in commits]
    except CannotTrain:
        if trained == other.of_common:
            raise
        trained = other.of_common
        losses = [_losses(trained, commit, data_dir) for commit in commits]
    return {
        "trained": f"{trained.config} {trained.label}",
        "difference": least_difference(*losses),
        "losses": dict(zip(commits, losses, strict=True)),
        "provenance": provenance.published(),
    }


def least_difference(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    """Compute the relative difference of the losses of two commits, of the seed that agrees best.

    >>> least_difference([[2.0, 1.0], [2.0, 1.5]], [[2.0, 1.25], [2.0, 1.5]])
    0.0
    """
    return min(
        max(abs(a - b) / max(abs(a), abs(b)) for a, b in zip(*losses, strict=True))
        for losses in zip(first, second, strict=True)
    )


def _losses(training: Training, commit: str, data_dir: str | None) -> list[list[float]]:
    """Train with the code of a commit; return the training loss of every seed and epoch."""
    short = {"num_epochs": EPOCHS, "num_seeds": SEEDS}
    options = runs.config_of(training)["data"]["options"]
    if "training_size" in options:
        short["data.options.training_size"] = min(options["training_size"] or EXAMPLES, EXAMPLES)
    with tempfile.TemporaryDirectory() as place:
        checkout, workdir = pathlib.Path(place, "code"), pathlib.Path(place, "run")
        folders = _git("archive", commit, "calib_jax", "configs", "experiments")
        with tarfile.open(fileobj=io.BytesIO(folders)) as archive:
            archive.extractall(checkout, filter="data")
        command = [
            *(sys.executable, "-m", "experiments.train"),
            f"--config=configs/{training.config}.py:{training.loss}",
            f"--workdir={workdir}",
            *(f"--config.{k}={v}" for k, v in (training.overrides | short).items()),
        ]
        command += [f"--data_dir={pathlib.Path(data_dir).resolve()}"] if data_dir else []
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        process = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
        )
        if process.returncode:
            output = (process.stderr or process.stdout).strip().splitlines()[-3:]
            raise CannotTrain("\n".join([f"{commit} does not train {training.label}:", *output]))
        rows = [
            files.json_rows(workdir / f"seed_{seed}" / "metrics.jsonl").rows
            for seed in range(1, SEEDS + 1)
        ]
    return [[row["train_loss"] for row in rows_of_seed] for rows_of_seed in rows]
