"""Verdicts: judge an entry, and write and read its verdicts as JSON.

One file per entry has the values, the rule and state of each claim, the runs, and the provenance.
A file of another rule or other runs than those of today's entry is not used: its verdict is
"outdated" until the entry runs again.
"""

import hashlib
import itertools
import json
import pathlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from calib_jax import plots, train
from calib_jax.core import reading
from experiments import provenance
from experiments.papers import claims, records, rules, same_training
from experiments.papers.entry import FOLDER, Entry
from experiments.papers.values import Value

KEYS = {"entry", "digest", "claims", "beside", "runs", "figures", "seconds", "provenance"}
_NO_CODE = r'^\s*(#.*$|r?"""[\s\S]*?""")'
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
      record: the whole file.
    """

    claim: str
    state: str
    p: float | None
    rule: str
    values: dict[str, Value]
    entry: str
    record: dict[str, Any]


def digest(entry: Entry) -> str:
    """Return a checksum of the rules, the runs and the code of an entry."""
    parts = {
        "code": _code(entry.name),
        "rules": {claim: rule.words for claim, rule in sorted(entry.claims.items())},
        "runs": {
            name: f"{training.config} {training.label} {training.seeds} {training.checkpoint}"
            for name, training in sorted(entry.runs.items())
        },
        "measures": entry.measures,
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _code(name: str) -> str:
    """Return the code of an entry's file without docstrings, lines of comments and white space."""
    path = FOLDER / f"{name}.py"
    if not path.is_file():
        return ""
    code = re.sub(_NO_CODE, "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return "".join(code.split())


def compute(entry: Entry, folder: pathlib.Path, scale: str) -> dict[str, Any]:
    """Compute the verdicts of an entry from the records of its runs, without training."""
    began = time.monotonic()
    trained = records.read_all(folder, entry)
    bridged = _check_commits(entry, trained, folder)
    arguments = (trained,) if entry.runs else ()
    if callable(entry.statistic):
        shared = dict(entry.statistic(*arguments))
        of_claims = dict.fromkeys(entry.claims, shared)
    else:
        shared = {}
        of_claims = {claim: dict(entry.statistic[claim](*arguments)) for claim in entry.claims}
    judged = {
        claim: _judge(entry.name, claim, rule, of_claims[claim], bool(shared))
        for claim, rule in entry.claims.items()
    }
    names = [name for part in judged.values() for name in part["values"]]
    record = {
        "entry": entry.name,
        "scale": scale,
        "digest": digest(entry),
        "note": entry.note,
        "claims": judged,
        "beside": {name: value.plain() for name, value in shared.items() if name not in names},
        "figures": _draw(entry, folder, arguments),
        "runs": [
            {
                "name": name,
                "training": f"{entry.runs[name].config} {entry.runs[name].label}",
                "seed": run.seed,
                "minutes": round(run.about["seconds"] / 60, 2),
                **{key: run.about[key] for key in ("commit", "date", "device", "processor")},
            }
            for name, all_seeds in trained.items()
            for run in all_seeds
        ],
        "same_training": bridged,
    }
    seconds = round(time.monotonic() - began, 2)
    return record | {"seconds": seconds, "provenance": provenance.published()}


def _judge(
    entry: str, claim: str, rule: rules.Rule, values: Mapping[str, Value], shared: bool
) -> dict[str, Any]:
    """Judge one claim, and keep its values: of a shared statistic those that the rule names."""
    absent = [name for name in rule.names if name not in values]
    if absent:
        raise LookupError(
            f"{entry}: the rule of {claim} needs {', '.join(absent)}, which its statistic does not"
            f" return; it returns {', '.join(values)}."
        )
    outcome = rule.judge(values)
    names = rule.names if shared and rule.names else tuple(values)
    return {
        **claims.read()[claim]._asdict(),
        "state": outcome.state,
        "p": outcome.p,
        "rule": rule.words,
        "values": {name: values[name].plain() for name in names},
    }


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


def _check_commits(
    entry: Entry, trained: Mapping[str, Sequence[records.Trained]], folder: pathlib.Path
) -> list[str]:
    """Raise an error if runs that are compared are of commits that train differently.

    Returns:
      The measurements which show that commits with different code train the same.
    """
    measured, used = same_training.read(folder), []
    for commits in compared(entry, trained):
        others = same_training.others((entry.runs[name], commit) for name, _, commit in commits)
        if not all(same_training.is_same(other, measured) for other in others):
            by_commit: dict[str, list[str]] = {}
            for name, seed, commit in commits:
                by_commit.setdefault(commit, []).append(f"{name} {seed}")
            described = "; ".join(
                f"{commit}: {', '.join(names[:3])}" + ", ..." * (len(names) > 3)
                for commit, names in by_commit.items()
            )
            raise ValueError(
                f"the runs of {entry.name} are of commits with different code ({described}): they"
                " are not mixed.\nTrain the older ones again, or let --same_training measure"
                " whether both train the same."
            )
        used += [other.key for other in others]
    return used


def compared(
    entry: Entry, trained: Mapping[str, Sequence[records.Trained]]
) -> list[list[tuple[str, int, str]]]:
    """List the name, seed and commit of all runs, in groups that are compared with each other."""
    of_names = {
        name: [(name, run.seed, run.about["commit"]) for run in all_seeds]
        for name, all_seeds in trained.items()
    }
    if entry.compared:
        return [list(itertools.chain(*of_names.values()))]
    return list(of_names.values())


def path_of(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the file of an entry's verdicts."""
    return folder / f"{name}.json"


def write(folder: pathlib.Path, record: Mapping[str, Any]) -> pathlib.Path:
    """Write the verdicts of an entry atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, record["entry"])
    train.files.replace(path, json.dumps(record, indent=1) + "\n")
    return path


def read(folder: pathlib.Path) -> dict[str, Verdict]:
    """Read all verdicts in a folder, by claim; raise an error for a half-written file."""
    verdicts: dict[str, Verdict] = {}
    for path in sorted(folder.glob("*.json")):
        advice = AGAIN.format(name=path.stem)
        record = reading.json_mapping(path, "verdicts", advice)
        with reading.guard(path, "verdicts", advice):
            absent = KEYS - record.keys()
            if absent:
                raise ValueError(f"it has no {', '.join(sorted(absent))}")
            for claim, part in record["claims"].items():
                values = {name: Value.of(plain) for name, plain in part["values"].items()}
                verdicts[claim] = Verdict(
                    claim, part["state"], part["p"], part["rule"], values, record["entry"], record
                )
    return verdicts


def adjusted(verdicts: Mapping[str, Verdict]) -> dict[str, tuple[str, float | None]]:
    """Return the state of every claim, and its p-value after Holm within its source.

    A state whose adjusted p-value is above .05 becomes undecided. Every claim with a p-value is
    counted, also one that its rule left undecided, whose p-value is not returned.
    """
    states: dict[str, tuple[str, float | None]] = {}
    sources: dict[str, dict[str, float]] = {}
    for claim, verdict in verdicts.items():
        states[claim] = (verdict.state, None)
        if verdict.p is not None:
            source = verdict.record["claims"][claim]["source"]
            sources.setdefault(source, {})[claim] = verdict.p
    for p_values in sources.values():
        for claim, p in rules.holm(p_values).items():
            if verdicts[claim].state != rules.UNDECIDED:
                kept = p <= rules.SIZE
                states[claim] = (verdicts[claim].state if kept else rules.UNDECIDED, p)
    return states
