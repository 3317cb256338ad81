"""Verdicts: judge an entry, and write and read its verdicts as JSON.

One file per entry has the values, the rule and state of each claim, the runs, and the provenance.
`read` judges the values of a file again by today's rules, so a changed rule changes the verdict at
once. Whether today's statistics still give these values, a slow test finds out.
"""

import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import scipy.stats

from calib_jax import inference, plots
from calib_jax.core.files import reading
from calib_jax.train.folder import files
from experiments.papers import claims
from experiments.papers.entry import Entry, Training
from experiments.papers.judge import rules, states
from experiments.papers.judge.blocks import Reader
from experiments.papers.judge.values import Value
from experiments.papers.store import records
from experiments.running import provenance

# The keys of files that are printed, with the types of their values.
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
AGAIN = "python -m experiments.papers --run={name} writes it again"


class Verdict(NamedTuple):
    """The verdict on one claim.

    Attributes:
      claim: its id.
      state: holds, does not hold or undecided, before the adjustment for several claims.
      p: the p-value of the hypothesis that the state rejects; None where nothing is random.
      rule: in words.
      values: those that the rule judges.
      entry: the name of the entry.
      record: the whole file, with the verdicts of today's rules.
    """

    claim: str
    state: str
    p: float | None
    rule: str
    values: dict[str, Value]
    entry: str
    record: dict[str, Any]


def compute(
    entry: Entry, folder: pathlib.Path, scale: str, blocks: Reader | None = None
) -> dict[str, Any]:
    """Compute the verdicts of an entry from the records of its runs, without training.

    Args:
      entry: the entry.
      folder: the folder of the records.
      scale: toy, cpu, gpu or tiny.
      blocks: the blocks of the runs; by default those of this entry alone.
    """
    began = time.monotonic()
    blocks = Reader(folder, [entry]) if blocks is None else blocks
    trained = blocks.attach(entry, records.read_all(folder, entry))
    arguments = (trained,) if entry.runs else ()
    record = {
        "entry": entry.name,
        "scale": scale,
        "note": entry.note if scale == "cpu" else "",  # notes describe the committed runs
        **_judge(entry, values_of(entry, *arguments)),
        "figures": _draw(entry, folder, arguments),
        "runs": [
            {
                "name": name,
                "training": _training(entry.runs[name]),
                "seed": run.seed,
                "minutes": round(run.about["seconds"] / 60, 2),
                **{key: run.about[key] for key in ("commit", "date", "device", "processor")},
            }
            for name, all_seeds in trained.items()
            for run in all_seeds
        ],
        "blocks": {
            name: pooled
            for seeds in trained.values()
            if seeds[0].block is not None
            for name, pooled in seeds[0].block.used.items()
        },
    }
    seconds = round(time.monotonic() - began, 2)
    return record | {"seconds": seconds, "provenance": provenance.published()}


def values_of(entry: Entry, *arguments: Any) -> dict[str, dict[str, Value]]:
    """Compute the statistics of an entry: the values by claim, which may share one statistic.

    Args:
      entry: the entry.
      *arguments: the trained networks, if the entry has runs.
    """
    if callable(entry.statistic):
        shared = dict(entry.statistic(*arguments))
        return dict.fromkeys(entry.claims, shared)
    return {claim: dict(entry.statistic[claim](*arguments)) for claim in entry.claims}


def _judge(entry: Entry, of_claims: Mapping[str, Mapping[str, Value]]) -> dict[str, Any]:
    """Judge the claims of an entry.

    Returns:
      "claims", with the values that each rule names; and "beside", the other shared values.
    """
    shared = callable(entry.statistic)
    judged = {}
    for claim, values in of_claims.items():
        rule = entry.claims[claim]
        absent = [name for name in rule.names if name not in values]
        if absent:
            raise LookupError(
                f"{entry.name}: the rule of {claim} needs {', '.join(absent)}; the values are"
                f" {', '.join(values)}."
            )
        outcome, first = rule.judge(values), entry.originals.get(claim)
        names = rule.names if shared and rule.names else tuple(values)
        judged[claim] = {
            **claims.read()[claim]._asdict(),
            "state": outcome.state,
            "p": outcome.p,
            "rule": rule.words,
            "original": first.judge(values).state if first else None,
            "values": {name: values[name].plain() for name in names},
        }
    named = {name for part in judged.values() for name in part["values"]}
    every = {name: value for values in of_claims.values() for name, value in values.items()}
    beside = {name: value.plain() for name, value in every.items() if shared and name not in named}
    return {"claims": judged, "beside": beside}


def _has_runs(record: Mapping[str, Any], entry: Entry) -> bool:
    """Check that the values of a file are of the runs that the entry has today."""
    wanted = {
        (name, _training(training), seed)
        for name, training in entry.runs.items()
        for seed in training.of_seeds
    }
    return wanted == {(run["name"], run["training"], run["seed"]) for run in record["runs"]}


def _training(training: Training) -> str:
    return f"{training.config} {training.label}"


def _judge_again(record: Mapping[str, Any], entry: Entry) -> dict[str, Any]:
    """Judge the values of a file by today's rules of the claims that are in it."""
    of_claims = {
        claim: {name: Value.of(plain) for name, plain in part["values"].items()}
        for claim, part in record["claims"].items()
    }
    if callable(entry.statistic):
        of_claims["beside"] = {name: Value.of(v) for name, v in record["beside"].items()}
        shared = {name: v for values in of_claims.values() for name, v in values.items()}
        of_claims = dict.fromkeys(record["claims"], shared)
    tested = {claim: of_claims[claim] for claim in entry.claims if claim in record["claims"]}
    return dict(record) | {"note": entry.note} | _judge(entry, tested)


def _draw(entry: Entry, folder: pathlib.Path, arguments: tuple[Any, ...]) -> list[str]:
    """Save the figures of an entry, and return the names of their files."""
    if entry.figures is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, figure in entry.figures(*arguments).items():
        files.append(f"{entry.name}_{name}.png")
        plots.save(figure, folder / files[-1], dpi=100)
    return files


def path_of(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the file of an entry's verdicts."""
    return folder / f"{name}.json"


def write(folder: pathlib.Path, record: Mapping[str, Any]) -> pathlib.Path:
    """Write the verdicts of an entry atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, record["entry"])
    files.replace(path, json.dumps(record, indent=1) + "\n")
    return path


def read(folder: pathlib.Path, by_claim: Mapping[str, Entry]) -> dict[str, Verdict]:
    """Read the values in a folder, and judge them by today's rules, by claim.

    Files of other runs than those of today's entries are left out. The function raises an error for
    a half-written file, and for one that lacks what is printed or a value which a rule needs.

    Args:
      folder: the folder of the files.
      by_claim: the entries at the scale of the files.
    """
    entries = {entry.name: entry for entry in by_claim.values()}
    verdicts: dict[str, Verdict] = {}
    for path in sorted(folder.glob("*.json")):
        advice = AGAIN.format(name=path.stem)
        record = reading.json_mapping(path, "verdicts", advice)
        with reading.guard(path, "verdicts", advice):
            _check(record)
            if record["entry"] != path.stem:
                raise ValueError(f"it holds the verdicts of {record['entry']}")
            entry = entries.get(record["entry"])
            if entry is None or not _has_runs(record, entry):
                continue
            record = _judge_again(record, entry)
            for claim, part in record["claims"].items():
                values = {name: Value.of(plain) for name, plain in part["values"].items()}
                verdicts[claim] = Verdict(
                    claim, part["state"], part["p"], part["rule"], values, record["entry"], record
                )
    return verdicts


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


def adjusted(verdicts: Mapping[str, Verdict]) -> dict[str, states.Standing]:
    """Return the states of all claims after Holm's method within their source.

    Every claim with a p-value is counted, also one that its rule left undecided. A verdict whose
    adjusted p-value is above .05 becomes undecided.
    """
    holm: dict[str, float] = {}
    shares: dict[str, float] = {}
    sources: dict[str, dict[str, float]] = {}
    for claim, verdict in verdicts.items():
        if verdict.p is not None:
            source = verdict.record["claims"][claim]["source"]
            sources.setdefault(source, {})[claim] = verdict.p
    for p_values in sources.values():
        values = list(p_values.values())
        holm |= dict(zip(p_values, inference.holm(values).tolist(), strict=True))
        adjusted = scipy.stats.false_discovery_control(values).tolist()
        shares |= dict(zip(p_values, adjusted, strict=True))
    known = claims.read()
    standing = {}
    for claim, verdict in verdicts.items():
        judged = verdict.state if holm.get(claim, 0.0) <= rules.SIZE else rules.UNDECIDED
        state = states.state_of(known[claim], judged, verdict.values)
        standing[claim] = states.Standing(state, verdict.p, holm.get(claim), shares.get(claim))
    return standing
