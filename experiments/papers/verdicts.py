"""The verdicts on the claims of the papers, and the findings of the first page, as data."""

import csv
import difflib
import pathlib
from typing import NamedTuple

FOLDER = pathlib.Path(__file__).parents[1] / "results" / "papers"
# The last commit with the software that computed every verdict, and with all its records.
WHOLE = "e194caf4688523821403ab5903e9e28b54e96ff6"
SOURCES = {
    "guo": "Guo et al. 2017",
    "mukhoti": "Mukhoti et al. 2020, focal loss",
    "adafocal": "Ghosh et al. 2022, AdaFocal",
    "bsce-gra": "Lin et al. 2025, BSCE-GRA",
    "recall": "Tian et al. 2021, recall loss",
}
TRAINED = "trained networks"
STATES = ("holds", "does not hold", "undecided", "one seed", "not testable")


class Verdict(NamedTuple):
    """A row of verdicts.csv; an empty text is a number that does not exist.

    Attributes:
      id: the name of the claim.
      source: a key of `SOURCES`.
      where: section, table or figure.
      sentence: the claim.
      kind: trained networks, toy problem, formula, recount or check of a published table.
      published: the published numbers.
      measured: the value that decides, of those that the rule needs.
      unit: the unit of the effect.
      effect: the value, with the 90 % interval `low` to `high`.
      p: two-sided, of the hypothesis that the state rejects.
      p_holm: p after Holm's method over the claims of the source with three or more seeds.
      seeds: number of seeds.
      network: the network, its `data` and its `error` in percent.
      temperature: T of cross-entropy by the validation NLL in the same setting.
      state: one of `STATES`, or "mostly" for a count above half of the rows of a table.
      smaller: "yes" if the claim is about larger networks than those trained here.
      commit: the commits of the runs, or of the computation.
      rule: when the claim holds, and when it does not.
    """

    id: str
    source: str
    where: str
    sentence: str
    kind: str
    published: str
    measured: str
    unit: str
    effect: str
    low: str
    high: str
    p: str
    p_holm: str
    seeds: str
    network: str
    data: str
    error: str
    temperature: str
    state: str
    smaller: str
    commit: str
    rule: str

    @property
    def commits(self) -> frozenset[str]:
        """The commits of the runs."""
        return frozenset(self.commit.split())


class Finding(NamedTuple):
    """A row of findings.csv: an effect in points beside the published one.

    Attributes:
      claim: the claim that the finding is about.
      finding: the finding in plain words; positive if it is right.
      effect: the effect with its 90 % interval `low` to `high`; "" for a count.
      counted: how many rows of the paper's table are as the finding says, such as "10 of 11".
      published: the published effect, for `published_for`.
      seeds: number of seeds.
      network: the network, its `data`, its `error` in percent, `temperature` of cross-entropy.
      of_calibration: "yes" for a difference of calibration errors.
      first: the training of the network.
      second: the training that is subtracted.
      state: the state of the claim.
    """

    claim: str
    finding: str
    effect: str
    low: str
    high: str
    counted: str
    published: str
    published_for: str
    seeds: str
    network: str
    data: str
    error: str
    temperature: str
    of_calibration: str
    first: str
    second: str
    state: str


def read(folder: pathlib.Path = FOLDER) -> dict[str, Verdict]:
    """Read all verdicts by the name of the claim."""
    return {row["id"]: Verdict(**row) for row in _rows(folder / "verdicts.csv", Verdict._fields)}


def findings(folder: pathlib.Path = FOLDER) -> list[Finding]:
    """Read the findings of the first page."""
    return [Finding(**row) for row in _rows(folder / "findings.csv", Finding._fields)]


def _rows(path: pathlib.Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != columns:
            raise ValueError(f"{path} must have the columns {', '.join(columns)}.")
        rows = list(reader)
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ValueError(f"row {number} of {path} has not {len(columns)} cells: correct it.")
    return rows


def chosen(name: str, runnable: list[str]) -> Verdict:
    """Return the verdict of a row that can be run; an error names the rows.

    Args:
      name: the name of a claim.
      runnable: the rows that can be trained and judged again.
    """
    known = read()
    if name in runnable:
        return known[name]
    rows = ", ".join(runnable)
    if name in known:
        raise LookupError(
            f"{name} is not trained again by this version: its verdict stands in verdicts.csv, and"
            f" its software at commit {WHOLE[:12]}. The rows are {rows}."
        )
    near = difflib.get_close_matches(name, runnable, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise LookupError(f"there is no row {name!r}.{hint} The rows are {rows}.")
