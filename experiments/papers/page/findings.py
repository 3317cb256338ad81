"""The findings that the first page shows: effects in points, beside the published ones.

`experiments/published/findings.csv` lists them. Most are differences of calibration between two
trainings. A verdict tests the difference d of their debiased squared errors; a reader thinks in
points of ECE. With the roots r and s of both squared errors, d = (r - s) (r + s), so d / (r + s) is
the difference of the roots, and its interval is the tested one divided by r + s.
"""

import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calib_jax import plots
from experiments.papers import claims
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import comparisons, estimates, verdicts
from experiments.papers.judge.values import LEVEL, Value
from experiments.papers.store import records

if TYPE_CHECKING:
    import matplotlib.figure

PIXELS = "segments"  # the measure that has T where a record keeps no logits
AFTER = " + T"  # behind the name of a training: after the papers' temperature


class Row(NamedTuple):
    """One row of findings.csv.

    Attributes:
      claim: the claim that the finding is about.
      finding: the finding in plain words.
      value: the name of the value in the file of the verdict.
      first: the training, as its entry names it, whose network and error are the scope; "" for a
        count of rows of the paper's tables.
      second: the training whose calibration error is subtracted; "" for another kind of value.
      published_first: the published number of `first`, in points.
      published_second: the published number of `second`, in points.
      published_for: data set and network of the published numbers.
    """

    claim: str
    finding: str
    value: str
    first: str
    second: str
    published_first: str
    published_second: str
    published_for: str


class Finding(NamedTuple):
    """A finding with its effects in points, or with a count of published rows.

    Attributes:
      row: the row of the file.
      effect: estimate, and lower and upper end of its interval; None for a count.
      counted: the number of rows of the paper's tables that are as it states, and of all rows.
      published: the published effect; None if the paper prints no numbers.
      scope: the training whose network the finding is about.
      error: its test error in percent, as the mean over seeds; None if the record has no labels.
      temperature: T of cross-entropy by the validation NLL in the same setting, as the mean over
        seeds; None if no record has it.
      commits: how many commits the compared runs have; "" for one.
    """

    row: Row
    effect: tuple[float, float, float] | None = None
    counted: tuple[int, int] | None = None
    published: float | None = None
    scope: Training | None = None
    error: float | None = None
    temperature: float | None = None
    commits: str = ""

    @property
    def of_calibration(self) -> bool:
        """Whether the effect is a difference of calibration errors of two trainings."""
        return bool(self.row.second)


@functools.cache
def read(path: pathlib.Path = claims.PUBLISHED / "findings.csv") -> list[Row]:
    """Read the rows of the file; raise an error for a claim that does not exist."""
    rows = [Row(**row) for _, row in claims.table(path, Row._fields)]
    for row in rows:
        if row.claim not in claims.read():
            raise claims.unknown(row.claim, claims.read())
    return rows


def compute(
    folder: pathlib.Path, standing: Mapping[str, verdicts.Verdict], by_claim: Mapping[str, Entry]
) -> list[Finding]:
    """Compute the effects of findings; leave out those without their value in the folder."""
    read_runs = functools.cache(functools.partial(_runs, folder))
    temperature = functools.cache(functools.partial(_temperature, folder, by_claim.values()))
    found = []
    for row in read():
        if row.claim not in standing:
            continue
        verdict = standing[row.claim]
        beside = {name: Value.of(plain) for name, plain in verdict.record["beside"].items()}
        value = (beside | verdict.values).get(row.value)
        if value is None:
            continue
        if not row.first:
            found.append(Finding(row, counted=(int(value.value), value.rows)))
            continue
        trainings = by_claim[row.claim].runs
        scale = 100.0
        if row.second:
            names = (row.first, row.second)
            binned = (
                estimates.adaptive_squared_error
                if row.value.startswith("Ada")
                else estimates.squared_error
            )
            parts = [
                [comparisons.after(run) if AFTER in name else run.test for run in runs]
                for name in names
                for runs in [read_runs(trainings[name.removesuffix(AFTER)])]
            ]
            scale /= comparisons.sum_of_roots(parts, binned)
        published = None
        if row.published_first:
            published = round(float(row.published_first) - float(row.published_second), 2)
        scope = trainings[row.first.removesuffix(AFTER)]
        effect = scale * value.value, scale * value.low, scale * value.high
        error = _error(read_runs(scope))
        commits = "".join(part for part in value.note.split("; ") if part.startswith("runs of"))
        found.append(
            Finding(row, effect, None, published, scope, error, temperature(scope), commits)
        )
    return found


def _temperature(folder: pathlib.Path, entries: Iterable[Entry], scope: Training) -> float | None:
    """Average T of cross-entropy with the config of a training, and with its alias."""
    for tested in entries:
        for name, training in tested.runs.items():
            if training.loss != "cross_entropy" or training.config != scope.config:
                continue
            if training.alias != scope.alias or (training.changes and not training.alias):
                continue
            measures = tested.measures_of(name)
            if training.keep == "logits":
                runs = _runs(folder, training)
                return float(np.mean([run.temperature_by_nll for run in runs]))
            if PIXELS in measures:
                measured = [
                    records.read(folder, training, seed, [PIXELS]).measured[PIXELS]
                    for seed in training.of_seeds
                ]
                return float(np.mean([arrays["temperature"] for arrays in measured]))
    return None


def _runs(folder: pathlib.Path, training: Training) -> list[records.Trained]:
    return [records.read(folder, training, seed) for seed in training.of_seeds]


def _error(runs: Sequence[records.Trained]) -> float | None:
    if not all(len(run.test.right) for run in runs):
        return None
    return 100 * float(np.mean([estimates.error(run.test).value for run in runs]))


def figure(found: Sequence[Finding]) -> "matplotlib.figure.Figure":
    """Draw the effects on calibration as a forest plot, beside the published ones."""
    panels = {}
    for finding in found:
        panel: dict[str, Any] = {"here": finding.effect}
        if finding.published is not None:
            panel["published"] = finding.published
        panels[finding.row.finding] = panel
    drawn = plots.intervals(
        panels,
        columns=2,
        title="Difference of calibration errors, in points",
        note="Right of 0: as the paper states. No interval is published. Intervals of one seed are"
        " over test examples alone.",
        level=LEVEL,
        width=8.5,
    )
    limits = [axes.get_xlim() for axes in drawn.axes]
    for axes in drawn.axes:
        axes.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
        axes.axvline(0.0, color="0.6", linewidth=0.8, zorder=0)
    return drawn
