"""Runs that repeat the block of ResNet-8: the same seeds again, and other seeds at one commit.

No verdict uses them. They show how far the effects on the page depend on the seeds, the machine and
the commit of the runs.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from calib_jax.report import tables
from experiments.papers.entries import trainings
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import blocks, comparisons, estimates, pooling
from experiments.papers.judge.comparisons import Part, Seeds
from experiments.papers.judge.values import Value
from experiments.papers.store import records
from experiments.papers.store.records import Trained

AGAIN = (
    *(trainings.CE, trainings.ADAFOCAL, trainings.FLSD53, trainings.MMCE),
    *(trainings.FL3, trainings.FL5),
)
BASELINE = "cross-entropy"
COMPARED = {
    name: dataclasses.replace(training, diagnosed=False, seeds=6)
    for name, training in {
        BASELINE: trainings.CE,
        "FLSD-53": trainings.FLSD53,
        "label smoothing": trainings.LABEL_SMOOTHING,
        "Brier": trainings.BRIER,
        "BSCE-GRA": trainings.BSCE_GRA,
        "AdaFocal": trainings.ADAFOCAL,
    }.items()
}
BLOCKS = {"seeds 1 to 3": range(1, 4), "seeds 4 to 6": range(4, 7)}
SAME_SEED = """The runs called undiagnosed repeat the seeds of {losses} losses on another machine,
or at another commit: root-CE2 of the same seed differs by {same:.2f} points (root mean square of
{pairs} pairs), that of two seeds of a loss by {other:.2f}. `runs/same_training.json` has
measurements of pairs of commits whose first epochs agree to rounding."""
OTHER_SEEDS = """{losses} losses were trained again with other seeds, at commit {commit}. The table
has the change from cross-entropy, in points, with its interval at 90 %: of root-CE2 before and
after the papers' temperature, and of the error. The runs of seeds 1 to 3 are those of the verdicts.
Here a block has these losses alone, and pools the variance of its seeds from three losses on."""


def collect(folder: pathlib.Path, runs_dir: pathlib.Path, data_dir: str | None) -> None:
    """Write the missing records of finished runs."""
    records.collect(folder, Entry(claims={}, statistic={}, runs=COMPARED), runs_dir, data_dir)


def text(folder: pathlib.Path) -> list[str]:
    """Format both repetitions, each if its records are there."""
    again = [(of, trainings.undiagnosed(of, keep="columns")) for of in AGAIN]
    again = [pair for pair in again if not any(records.absent(folder, of) for of in pair)]
    parts = [_same_seeds(folder, again)] if again else []
    recorded = {
        title: {
            name: [records.read(folder, of, seed) for seed in seeds]
            for name, of in COMPARED.items()
            if all(records.path_of(folder, of, seed).is_file() for seed in seeds)
        }
        for title, seeds in BLOCKS.items()
    }
    names = [name for name in COMPARED if all(name in runs for runs in recorded.values())]
    if BASELINE in names and len(names) > 1:
        both = [{name: runs[name] for name in names} for runs in recorded.values()]
        commits = {run.about["commit"] for seeds in both[1].values() for run in seeds}
        about = {"losses": len(names), "commit": " and ".join(sorted(commits))}
        parts.append(OTHER_SEEDS.format(**about))
        parts.append(tables.in_markdown(list(_table(both))))
    return ["## Repetitions", *parts] if parts else []


def _same_seeds(folder: pathlib.Path, again: Sequence[tuple[Training, Training]]) -> str:
    roots = np.array(
        [
            [[_root(records.read(folder, of, seed)) for seed in of.of_seeds] for of in pair]
            for pair in again
        ]
    )  # [losses, both, seeds]
    same = np.sqrt(np.mean(np.square(roots[:, 0] - roots[:, 1])))
    # The difference of two seeds has twice the variance of one.
    other = np.sqrt(2 * pooling.pooled(roots.reshape(-1, roots.shape[-1])).variance)
    return SAME_SEED.format(
        losses=len(again), pairs=roots[:, 0].size, same=100 * same, other=100 * other
    )


def _root(run: Trained) -> float:
    return pooling.root(estimates.squared_error(run.test).value)


def _table(both: Iterable[Mapping[str, list[Trained]]]) -> Iterable[list[str]]:
    of_blocks = [_attached(title, runs) for title, runs in zip(BLOCKS, both, strict=True)]
    yield ["loss", *(f"{what}, {title}" for what in CHANGES for title in BLOCKS)]
    for name in of_blocks[0]:
        if name != BASELINE:
            changes = [
                of(runs[name], runs[BASELINE]) for of in CHANGES.values() for runs in of_blocks
            ]
            yield [name, *map(Value.percent, changes)]


def _change_of_root(first: Seeds, second: Seeds, part: Callable[[Trained], Part]) -> Value:
    both = ([part(run) for run in seeds] for seeds in (first, second))
    return comparisons.ce2(first, second, part).times(1 / comparisons.sum_of_roots(both))


CHANGES: dict[str, Callable[[Seeds, Seeds], Value]] = {
    "root-CE2": functools.partial(_change_of_root, part=comparisons.before),
    "root-CE2 after T": functools.partial(_change_of_root, part=comparisons.after),
    "error": functools.partial(comparisons.difference, statistic=estimates.error),
}


def _attached(title: str, runs: Mapping[str, list[Trained]]) -> dict[str, list[Trained]]:
    """Return runs with the block that they are."""
    block = blocks.Block(title, runs)
    return {
        name: [dataclasses.replace(run, block=block) for run in seeds]
        for name, seeds in runs.items()
    }
