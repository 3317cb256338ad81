"""Blocks: runs of one network, data set and recipe, of which only the loss differs.

A block has every training that an entry uses with the config as it is and three or more seeds.
The statistics are those that the entries compare: the debiased squared error in bins of equal width
or of equal mass, before and after the papers' temperature. After it, the validation examples are
resampled, in the same way for all runs, and every resample fits the temperature again.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.special

from calib_jax.inference.residuals import Binned
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import estimates, pooling, procedure
from experiments.papers.judge.estimates import Predictions
from experiments.papers.judge.pooling import Pooled
from experiments.papers.judge.values import Value
from experiments.papers.store import records

BINNED = {"CE2": estimates.squared_error, "AdaCE2": estimates.adaptive_squared_error}
PHASES = ("before", "after")
GRID = np.arange(1, 101) / 10  # the papers' temperatures
RESAMPLES, NUM_BINS = 100, 15
SEEDS = 3


@dataclasses.dataclass(frozen=True)
class Block:
    """The runs of a block, for one statistic in one phase.

    Attributes:
      name: config and changes, statistic and phase.
      bins: the test residuals of every seed, by label of the training.
      resampled: `[resamples, seeds]` values of the statistic by label; empty before scaling.
      commits: the commits of the runs.
    """

    name: str
    bins: dict[str, list[Binned]]
    resampled: dict[str, np.ndarray]
    commits: frozenset[str]

    @functools.cached_property
    def means(self) -> dict[str, float]:
        """The mean of the statistic over seeds, by label."""
        return {
            label: float(np.mean([model.value for model in models]))
            for label, models in self.bins.items()
        }

    @property
    def table(self) -> np.ndarray:
        """The root-CE2 of every run, `[losses, seeds]`."""
        return np.array(
            [[procedure.root(model.value) for model in models] for models in self.bins.values()]
        )

    @property
    def pooled(self) -> Pooled:
        """The variance between seeds."""
        return pooling.pooled(self.table)

    def compare(self, first: str, second: str, pooled: Pooled) -> Value:
        """Compare two losses by the procedure."""
        of_validation = 0.0
        if self.resampled:
            several = np.mean(self.resampled[first] - self.resampled[second], axis=1)
            of_validation = float(np.var(several, ddof=1))
        return procedure.difference(
            self.bins[first], self.bins[second], pooled, of_validation, self.name
        )


def trainings(entries: Iterable[Entry]) -> dict[str, dict[str, Training]]:
    """Group the trainings of entries into blocks: by name, then by label."""
    blocks: dict[str, dict[str, Training]] = {}
    for entry in entries:
        for training in entry.runs.values():
            if training.seeds >= SEEDS and training.keep != "none":
                name = f"{training.config} {training.alias}".strip()
                same = blocks.setdefault(name, {})
                if training.alias or not training.changes:
                    same.setdefault(training.label, training)
    return {name: block for name, block in blocks.items() if len(block) > 2}


def read(folder: pathlib.Path, name: str, block: dict[str, Training]) -> list[Block]:
    """Read the runs of a block, and compute every statistic and phase that the records allow."""
    runs = {
        label: [records.read(folder, training, seed, ()) for seed in range(1, SEEDS + 1)]
        for label, training in block.items()
        if all(records.path_of(folder, training, seed).is_file() for seed in range(1, SEEDS + 1))
    }
    read_blocks = []
    for phase in PHASES:
        kept = {
            label: seeds
            for label, seeds in runs.items()
            if phase == "before" or all(isinstance(run.test, Predictions) for run in seeds)
        }
        if len(kept) < 2:
            continue
        commits = frozenset(str(run.about["commit"]) for seeds in kept.values() for run in seeds)
        chosen = {
            label: [_resampled_temperatures(run.validation_logits) for run in seeds]
            for label, seeds in kept.items()
            if phase == "after"
        }
        for statistic, binned in BINNED.items():
            bins = {
                label: [binned(run.test if phase == "before" else run.scaled) for run in seeds]
                for label, seeds in kept.items()
            }
            resampled = {
                label: np.stack(
                    [
                        _at_temperatures(run.logits, temperatures, statistic)
                        for run, temperatures in zip(kept[label], of_seeds, strict=True)
                    ],
                    axis=1,
                )
                for label, of_seeds in chosen.items()
            }
            title = f"{name}, {statistic} {phase} T"
            read_blocks.append(Block(title, bins, resampled, commits))
    return read_blocks


def _resampled_temperatures(validation: Predictions) -> np.ndarray:
    """Fit the papers' temperature on resamples of the validation set, by the ECE on the grid."""
    count = len(validation.labels)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    return GRID[np.argmin(resampled_eces(validation, draws.astype(np.float32)), axis=0)]


def resampled_eces(validation: Predictions, weights: np.ndarray) -> np.ndarray:
    """Compute the plug-in ECE `[temperatures, resamples]` under weights `[resamples, rows]`."""
    count = len(validation.labels)
    right = validation.right
    eces = []
    for temperature in GRID:
        logits = validation.logits.astype(np.float64) / temperature
        confidence = np.exp(logits.max(axis=-1) - scipy.special.logsumexp(logits, axis=-1))
        bins = np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)
        gaps = np.zeros((count, NUM_BINS), np.float32)
        gaps[np.arange(count), bins] = confidence - right
        eces.append(np.sum(np.abs(weights @ gaps), axis=1) / count)
    return np.array(eces)


def _at_temperatures(
    test: Predictions, temperatures: Sequence[float] | np.ndarray, statistic: str
) -> np.ndarray:
    """Compute a statistic of the test set at several temperatures, each distinct one once."""
    distinct, places = np.unique(temperatures, return_inverse=True)
    values = [BINNED[statistic](test.scaled(float(t))).value for t in distinct]
    return np.array(values)[places]
