"""The state of every claim, and the table that --list prints."""

import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from calib_jax.core.files import reading
from calib_jax.report import tables
from experiments.papers import claims, entry, scales
from experiments.papers.judge import states, verdicts
from experiments.papers.store import records, runs

NOT_RUN, ABSENT = "not run", "data absent"  # why a claim has no verdict
# Minutes of one training on two cores, by config, where no run of the config is recorded.
MINUTES = {"cifar10_resnet8": 10, "cifar10_lenet5": 4, "digits": 0.5}

# The keys of files of verdicts that are printed, with the types of their values.
_TEXT, _NUMBER, _NONE = (str,), (int, float), type(None)
KEYS: dict[str, dict[str, tuple[type, ...]]] = {
    "record": {
        **{"entry": _TEXT, "note": _TEXT, "seconds": _NUMBER},
        **dict.fromkeys(("claims", "beside", "provenance"), (dict,)),
        **dict.fromkeys(("runs", "figures"), (list,)),
    },
    "provenance": {
        **dict.fromkeys(("date", "commit", "processor"), _TEXT),
        **{"cores": _NUMBER, "versions": (dict,)},
    },
    "claim": {"values": (dict,)},
    "run": {
        **dict.fromkeys(("training", "commit", "date", "processor"), (*_TEXT, _NONE)),
        **{"seed": (int,), "minutes": _NUMBER},
    },
    "value": {
        **{"value": _NUMBER, "of_rows": _NUMBER, "note": _TEXT},
        **{"seeds": (int,), "rows": (int,)},
        **dict.fromkeys(("deviation", "freedom"), (*_NUMBER, _NONE)),
    },
}

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


def read(
    folder: pathlib.Path, by_claim: Mapping[str, entry.Entry] | None = None
) -> dict[str, verdicts.Verdict]:
    """Read all verdicts in a folder, by claim, as `verdicts.read`.

    It also raises an error if a file lacks what is printed.
    """
    for path in sorted(folder.glob("*.json")):
        advice = verdicts.AGAIN.format(name=path.stem)
        record = reading.json_mapping(path, "verdicts", advice)
        with reading.guard(path, "verdicts", advice):
            _check(record)
            if record["entry"] != path.stem:
                raise ValueError(f"it holds the verdicts of {record['entry']}")
    return verdicts.read(folder, by_claim)


def _check(record: dict[str, Any]) -> None:
    """Raise an error if a file of verdicts lacks what is printed."""
    records.check_keys(record, KEYS["record"], "it")
    records.check_keys(record["provenance"], KEYS["provenance"], "its provenance")
    records.check_keys(record["provenance"]["versions"], {"jax": _TEXT}, "its versions")
    for number, run in enumerate(record["runs"], start=1):
        records.check_keys(run, KEYS["run"], f"run {number}")
    values = dict(record["beside"])
    for claim, part in record["claims"].items():
        records.check_keys(part, KEYS["claim"], claim)
        values |= part["values"]
    for name, value in values.items():
        records.check_keys(value, KEYS["value"], f"the value {name!r}")


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
      folder: the folder of the records of runs.
      standing: the verdicts that were read.
      data_dir: folder of the data sets.
      look_for_data: whether claims whose data is not in `data_dir` lack it; those whose data nobody
        here has always do.
      by_claim: the entries at the scale of the verdicts; by default as they stand in their files.
    """
    by_claim = entry.of_claims() if by_claim is None else by_claim
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
    return states.headline(row.standing.state for row in of_kind(listed, states.TRAINED))


def counts(listed: Iterable[Row]) -> list[list[str]]:
    """Count the states of the claims about trained networks, by source and in all."""
    trained = of_kind(listed, states.TRAINED)
    by_source = [(row.claim.source, row.standing.state) for row in trained]
    groups = claims.sources(row.claim for row in trained)
    everything = [("all", state) for _, state in by_source]
    return states.counts([*groups, "all"], [*by_source, *everything], "source")
