"""Blocks: runs of one network, data set and recipe, of which only the loss differs.

A block has every training that an entry uses with the same config, the same other changes and three
or more seeds, and whose records are there. Its runs have the same test examples. Their commits can
differ, and every value that uses them names how many there are.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from calib_jax.inference.residuals import Binned
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import pooling
from experiments.papers.judge.estimates import Columns, Estimate, Predictions
from experiments.papers.judge.pooling import Pooled
from experiments.papers.store import records
from experiments.papers.store.records import Trained

SEEDS = 3
LOSSES = 3  # the least number in a block

Statistic = Callable[[Any], Estimate | Binned]
Part = Callable[[Trained], Any]


def before(run: Trained) -> Predictions | Columns:
    """Return the test set as trained."""
    return run.test


def after(run: Trained) -> Predictions:
    """Return the test set after the papers' temperature."""
    return run.scaled


class Reader:
    """Read blocks from a folder of records, each once.

    Args:
      folder: the folder.
      entries: all entries that can have trainings of a block.
    """

    def __init__(self, folder: pathlib.Path, entries: Iterable[Entry]) -> None:
        self.folder, self.entries = folder, tuple(entries)
        self._blocks: dict[tuple[str, str, str], Block | None] = {}

    def block_of(self, training: Training) -> "Block | None":
        """Return the block of a training; None if it is in none."""
        key = key_of(training)
        if key is None:
            return None
        if key not in self._blocks:
            self._blocks[key] = _read(self.folder, training, self.entries)
        return self._blocks[key]

    def attach(
        self, entry: Entry, trained: Mapping[str, list[Trained]]
    ) -> dict[str, list[Trained]]:
        """Return the runs of an entry with their blocks, of which none was used."""
        unused: dict[Block, Block] = {}
        runs = {}
        for name, seeds in trained.items():
            block = self.block_of(entry.runs[name])
            if block is not None:
                block = unused.setdefault(block, dataclasses.replace(block, used={}))
            runs[name] = [dataclasses.replace(run, block=block) for run in seeds]
        return runs


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """A block.

    Attributes:
      name: the config, and the alias of the changes.
      runs: the first three seeds of every training, by its label.
      used: the pooled variances of calibration errors that were asked for, by name, for the page.
    """

    name: str
    runs: Mapping[str, list[Trained]]
    used: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    @property
    def commits(self) -> set[str]:
        """The commits of the runs."""
        return {str(run.about["commit"]) for seeds in self.runs.values() for run in seeds}

    def with_logits(self) -> "Block":
        """Return the block of the trainings whose records have logits, such as for a temperature.

        Both share the variances that were asked for.
        """
        kept = {
            label: seeds
            for label, seeds in self.runs.items()
            if all(isinstance(run.test, Predictions) for run in seeds)
        }
        return dataclasses.replace(self, runs=kept)

    def pooled(self, statistic: Statistic, part: Part) -> Pooled:
        """Pool the variance between seeds of a statistic; of a squared error, that of its root."""
        table = [[_rooted(statistic(part(run))) for run in seeds] for seeds in self.runs.values()]
        return pooling.pooled(np.array(table))


def _rooted(estimate: Estimate | Binned) -> float:
    return pooling.root(estimate.value) if isinstance(estimate, Binned) else estimate.value


def key_of(training: Training) -> tuple[str, str, str] | None:
    """Return config, alias and changes of a training; None if it is in no block."""
    if training.seeds < SEEDS or training.keep == "none":
        return None
    if training.changes and not training.alias:
        return None
    return training.config, training.alias, repr(sorted(training.changes.items()))


def _read(folder: pathlib.Path, training: Training, entries: Iterable[Entry]) -> Block | None:
    """Read the block of a training; None if fewer than three of its trainings are recorded.

    It raises an error for a record of another config or seed, and for one whose test set has
    another number of examples.
    """
    key = key_of(training)
    of_block: dict[str, Training] = {}
    for other in (other for entry in entries for other in entry.runs.values()):
        if key_of(other) == key:
            of_block.setdefault(other.label, other)
    seeds = range(1, SEEDS + 1)
    recorded = {
        label: other
        for label, other in of_block.items()
        if all(records.path_of(folder, other, seed).is_file() for seed in seeds)
    }
    if len(recorded) < LOSSES:
        return None
    runs = {
        label: [records.read(folder, other, seed) for seed in seeds]
        for label, other in recorded.items()
    }
    records.check_test_sets(
        [
            (records.path_of(folder, recorded[label], run.seed), run)
            for label, of_seeds in runs.items()
            for run in of_seeds
        ]
    )
    return Block(f"{training.config} {training.alias}".strip(), runs)


def resampled(run: Trained, statistic: Statistic) -> np.ndarray:
    """Compute a statistic after the temperature, under resamples of the validation examples.

    The examples are the same ones for all runs. Every resample fits the papers' temperature again;
    every distinct temperature is computed once.
    """
    distinct, places = np.unique(run.temperatures_of_resamples, return_inverse=True)
    values = [statistic(run.logits.scaled(float(t))).value for t in distinct]
    return np.array(values)[places]
