"""Whether runs of two commits are of one code, or of commits that were measured to train alike.

Verdicts compare runs of one code. Some records are of several commits, whose code differs in what
none of their trainings uses. For these, RESULTS/runs/same_training.json keeps a measurement that
was made once: the first two epochs of a training with both commits, three seeds and 1,000 examples.
Rounding is amplified in some seeds and not in all, so the seed that agrees best decides. New runs
of an entry are trained at one commit, as one block.
"""

import collections
import functools
import pathlib
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from calib_jax.core.files import reading
from experiments.papers.entry import Training
from experiments.papers.store import runs

LIMIT = 1e-6  # ten times the rounding of float32
_AGAIN = "restore it from the repository"


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
