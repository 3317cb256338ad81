"""The state of every claim, and the table that --list prints."""

import pathlib
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from calib_jax.report import tables
from experiments.papers import claims, entry, records, runs, verdicts

NOT_RUN, ABSENT, OUTDATED = "not run", "data absent", "outdated"
STATES = ("holds", "does not hold", "undecided", NOT_RUN, ABSENT, OUTDATED)
# Minutes of one training on two cores, by config; configs without a figure are not for a CPU.
MINUTES = {"cifar10_resnet8": 10, "cifar10_lenet5": 4, "digits": 0.5}


class Row(NamedTuple):
    """The state of one claim.

    Attributes:
      claim: the claim.
      state: one of STATES.
      data: that it needs, with "absent" where nobody here has it.
      minutes: of training that is still to be done; empty if it is unknown.
      entry: the file that tests it; empty if there is none.
    """

    claim: claims.Claim
    state: str
    data: str
    minutes: str
    entry: str


def current(
    standing: Mapping[str, verdicts.Verdict], by_claim: Mapping[str, entry.Entry] | None = None
) -> dict[str, verdicts.Verdict]:
    """Return the verdicts whose rules and runs are those of today's entries.

    Args:
      standing: the verdicts that were read.
      by_claim: the entries at the scale of the verdicts; by default as they stand in their files.
    """
    by_claim = entry.of_claims() if by_claim is None else by_claim
    return {
        claim: verdict
        for claim, verdict in standing.items()
        if claim in by_claim and verdict.record["digest"] == verdicts.digest(by_claim[claim])
    }


def rows(
    folder: pathlib.Path,
    standing: Mapping[str, verdicts.Verdict],
    data_dir: str | None = None,
    *,
    look_for_data: bool = False,
    by_claim: Mapping[str, entry.Entry] | None = None,
) -> list[Row]:
    """Return the state of every claim in the order of the file.

    Args:
      folder: of the records of runs.
      standing: the verdicts that were read.
      data_dir: folder of the data sets.
      look_for_data: whether claims whose data is not in `data_dir` are "data absent"; those whose
        data nobody here has always are.
      by_claim: the entries at the scale of the verdicts; by default as they stand in their files.
    """
    by_claim = entry.of_claims() if by_claim is None else by_claim
    of_today = current(standing, by_claim)
    states = verdicts.adjusted(of_today)
    listed = []
    for claim in claims.read().values():
        tested_by = by_claim.get(claim.id)
        if claim.id in of_today:
            state = states[claim.id][0]
        elif claim.id in standing:
            state = OUTDATED
        elif claim.data.startswith("absent") or (
            look_for_data and tested_by and _absent(tested_by, data_dir)
        ):
            state = ABSENT
        else:
            state = NOT_RUN
        minutes = _minutes(tested_by, folder) if tested_by else ""
        listed.append(Row(claim, state, claim.data, minutes, tested_by.name if tested_by else ""))
    return listed


def _absent(tested_by: entry.Entry, data_dir: str | None) -> bool:
    names = {runs.config_of(training)["data"]["name"] for training in tested_by.runs.values()}
    return any(runs.missing_data(name, data_dir) for name in names | set(tested_by.data))


def _minutes(tested_by: entry.Entry, folder: pathlib.Path) -> str:
    """Estimate the minutes of the trainings whose records are missing."""
    missing = [
        training
        for training in tested_by.runs.values()
        for seed in training.of_seeds
        if not records.path_of(folder, training, seed).is_file()
    ]
    if any(training.config not in MINUTES for training in missing):
        return "?"
    return f"{tested_by.minutes + sum(MINUTES[training.config] for training in missing):.0f}"


def text(listed: list[Row]) -> str:
    """Format the table of all claims, and the counts of states by source."""
    table = [["claim", "state", "device", "minutes", "data", "entry"]]
    for row in listed:
        device = "gpu" if row.claim.scale == "gpu" and not row.entry else "cpu"
        cells = (row.claim.id, row.state, device, row.minutes, row.data, row.entry)
        table.append(list(cells))
    return "\n\n".join([tables.aligned(table), tables.aligned(counts(listed))])


def counts(listed: list[Row]) -> list[list[str]]:
    """Count the states by source and kind of claim."""
    by_kind: dict[tuple[str, str], Counter] = {}
    for row in listed:
        by_kind.setdefault((row.claim.source, row.claim.scale), Counter())[row.state] += 1
    total: Counter = sum(by_kind.values(), Counter())
    table = [["source", "kind", *STATES, "claims"]]
    for (source, kind), of_kind in [*by_kind.items(), (("all", ""), total)]:
        numbers = [str(of_kind[state]) for state in STATES]
        table.append([source, kind, *numbers, str(sum(of_kind.values()))])
    return table
