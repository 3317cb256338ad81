"""The state of every claim, and the table that --list prints."""

import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from calib_jax.report import tables
from experiments.papers import claims, entry, scales
from experiments.papers.judge import states, verdicts
from experiments.papers.store import records, runs

NOT_RUN, ABSENT = "not run", "data absent"  # why a claim has no verdict
# Minutes of one training on two cores, by config, where no run of the config is recorded.
MINUTES = {"cifar10_resnet8": 10, "cifar10_lenet5": 4, "digits": 0.5}

# The minutes of all recorded runs of a config, by label of the training.
Recorded = Callable[[str], Mapping[str, list[float]]]


class Row(NamedTuple):
    """The state of one claim.

    Attributes:
      claim: the claim.
      kind: one of `states.KINDS`, or `states.CHECK`.
      standing: its state with its p-values.
      missing: why it has no verdict, NOT_RUN or ABSENT; "" if it has one.
      data: that it needs, with "absent" where nobody here has it.
      minutes: the minutes of training that is still to be done; empty if it is unknown.
      entry: the file that tests it; empty if there is none.
      is_large: whether its test needs an accelerator.
      spent: minutes that its verdict took, with the training; empty without a verdict.
      data_sets: names of the data sets of files that the test reads.
    """

    claim: claims.Claim
    kind: str
    standing: states.Standing
    missing: str
    data: str
    minutes: str
    entry: str
    is_large: bool
    spent: str = ""
    data_sets: tuple[str, ...] = ()


def rows(
    folder: pathlib.Path,
    standing: Mapping[str, verdicts.Verdict],
    by_claim: Mapping[str, entry.Entry],
    data_dir: str | None = None,
    *,
    look_for_data: bool = False,
) -> list[Row]:
    """Return the state of every claim in the order of the file.

    Args:
      folder: the folder of the records of runs.
      standing: the verdicts that were read.
      by_claim: the entries at the scale of the verdicts.
      data_dir: folder of the data sets.
      look_for_data: whether claims whose data is not in `data_dir` lack it; those whose data nobody
        here has always do.
    """
    adjusted = verdicts.adjusted(standing)
    recorded = functools.cache(functools.partial(_recorded, folder))
    listed = []
    for claim in claims.read().values():
        tested_by = by_claim.get(claim.id)
        data_sets = _data_sets(tested_by) if tested_by else ()
        minutes = _minutes(tested_by, folder, recorded) if tested_by else ""
        spent = missing = ""
        if claim.id in standing:
            minutes, spent = "0", _spent(standing[claim.id].record)
        elif claim.data.startswith("absent") or (
            look_for_data and any(runs.missing_data(name, data_dir) for name in data_sets)
        ):
            missing = ABSENT
        else:
            missing = NOT_RUN
        untested = states.Standing(states.state_of(claim, None, {}))
        listed.append(
            Row(
                claim,
                states.kind_of(claim),
                adjusted.get(claim.id, untested),
                missing,
                claim.data,
                minutes,
                tested_by.name if tested_by else "",
                any(map(_is_large, tested_by.runs.values())) if tested_by else False,
                spent,
                data_sets,
            )
        )
    return listed


def _is_large(training: entry.Training) -> bool:
    """Check whether a network is one of the papers', also in a shorter schedule."""
    network = runs.config_of(training)["model"]["name"]
    return scales.is_large(training) or network in scales.LARGE


def runs_of(record: Mapping[str, Any]) -> dict[tuple[str, ...], float]:
    """Return the minutes of every distinct run of an entry; two names may stand for one run."""
    return {
        tuple(str(run[key]) for key in ("training", "seed", "date", "commit")): run["minutes"]
        for run in record["runs"]
    }


def _spent(record: Mapping[str, Any]) -> str:
    """Return the minutes of the runs and of the statistic of an entry."""
    return f"{sum(runs_of(record).values()) + record['seconds'] / 60:.0f}"


def _data_sets(tested_by: entry.Entry) -> tuple[str, ...]:
    """Return the names of the data sets that are read from files."""
    from calib_jax import data

    names = {runs.config_of(training)["data"]["name"] for training in tested_by.runs.values()}
    known = {name: data.about(name) for name in sorted(names | set(tested_by.data))}
    return tuple(name for name, about in known.items() if about is not None and about.has_files)


def _recorded(folder: pathlib.Path, config: str) -> dict[str, list[float]]:
    """Read the minutes of all recorded runs of a config, by label of the training."""
    minutes: dict[str, list[float]] = {}
    for _, label, about in records.about_all(folder, config):
        minutes.setdefault(label, []).append(about["seconds"] / 60)
    return minutes


def _minutes(tested_by: entry.Entry, folder: pathlib.Path, recorded: Recorded) -> str:
    """Estimate the minutes of the trainings whose records are missing, by the recorded runs."""
    minutes = tested_by.minutes
    for training in tested_by.runs.values():
        absent = records.absent(folder, training)
        if not absent:
            continue
        by_label = recorded(training.config)
        similar = by_label.get(training.label) or [m for each in by_label.values() for m in each]
        if not similar and training.config not in MINUTES:
            return "?"
        mean = sum(similar) / len(similar) if similar else MINUTES[training.config]
        minutes += mean * len(absent)
    return f"{minutes:.0f}"


def text(listed: list[Row], data_dir: str | None = None) -> str:
    """Format the table of all claims, and the counts of states.

    Args:
      listed: the rows.
      data_dir: the folder in which the data sets were looked for.
    """
    table = [["claim", "state", "device", "to do", "spent", "data", "entry"]]
    for row in listed:
        device = "gpu" if row.is_large else "cpu"
        many = len(row.data_sets) > 2
        data = f"{len(row.data_sets)} data sets" if many else ", ".join(row.data_sets)
        state = row.missing or row.standing.state
        table.append([row.claim.id, state, device, row.minutes, row.spent, data, row.entry])
    notes = [
        "Minutes to do are those of missing runs, as recorded runs of the same config took; ?"
        " if none is recorded.\nMinutes spent are those of a verdict with its runs, which entries"
        " share."
    ]
    absent = {name for row in listed if row.missing == ABSENT for name in row.data_sets}
    missing = sorted(name for name in absent if runs.missing_data(name, data_dir))
    if missing:
        place = f" in {data_dir}" if data_dir else ""
        notes.append(
            f"Data absent{place}: {', '.join(missing)}. Give --data_dir=DIR, the folder that has"
            " them;\npython -m experiments.data --list shows how to get them."
        )
    notes.append(headline(listed) + " Claims of other kinds are in no count.")
    return "\n\n".join([tables.aligned(table), *notes, tables.aligned(counts(listed))])


def p_value(p: float | None) -> str:
    """Format a p-value; nothing without one."""
    return "" if p is None else f"{p:.2g}"


def of_kind(listed: Iterable[Row], kind: str) -> list[Row]:
    """Return the claims of a kind."""
    return [row for row in listed if row.kind == kind]


def headline(listed: Iterable[Row]) -> str:
    """Write the counts of the claims about trained networks as a sentence."""
    trained = of_kind(listed, states.TRAINED)
    holding = [row for row in trained if row.standing.state == states.HOLDS]
    on_smaller = sum(row.claim.scale == "gpu" for row in holding)
    return states.headline((row.standing.state for row in trained), on_smaller)


def counts(listed: Iterable[Row]) -> list[list[str]]:
    """Count the states of the claims about trained networks, by source and in all."""
    trained = of_kind(listed, states.TRAINED)
    by_source = [(row.claim.source, row.standing.state) for row in trained]
    groups = claims.sources(row.claim for row in trained)
    everything = [("all", state) for _, state in by_source]
    return states.counts([*groups, "all"], [*by_source, *everything], "source")
