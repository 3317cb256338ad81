"""The page of verdicts: results/papers/README.md, from the files in that folder alone."""

import pathlib
from collections.abc import Mapping
from typing import Any

from calib_jax import train
from calib_jax.report import tables
from experiments.papers import listing, verdicts
from experiments.papers.values import Value

HEAD = """# Verdicts on the claims of the papers

`python -m experiments.papers --page` writes this page from the JSON files in this folder, and
`python -m experiments.papers --run=ENTRY --recompute` computes an entry's verdicts again, from the
records of its runs in `runs/`, without training. Intervals are at 90 %; seeds and test examples are
both random. Calibration errors are compared by the debiased squared error, because noise raises a
plug-in error by an amount that depends on the model. p-values are adjusted for the number of tested
claims of a source (Holm); a verdict that does not survive this is undecided. [Tables](tables.md)
show the trained networks beside the published ones.
"""


def text(listed: list[listing.Row], standing: Mapping[str, verdicts.Verdict]) -> str:
    """Format the page."""
    standing = listing.current(standing)
    states = verdicts.adjusted(standing)
    parts = [HEAD, "## Counts", tables.in_markdown(listing.counts(listed))]
    for name in dict.fromkeys(row.entry for row in listed if row.entry):
        of_entry = [row for row in listed if row.entry == name and row.claim.id in standing]
        if not of_entry:
            continue
        record = standing[of_entry[0].claim.id].record
        parts.append(f"## {name}")
        if record["note"]:
            parts.append(record["note"])
        for row in of_entry:
            parts.append(_claim(standing[row.claim.id], states[row.claim.id]))
        parts += [f"![{file.removesuffix('.png')}]({file})" for file in record["figures"]]
        parts.append(_cost(record))
    untested = [["claim", "state", "needs"]]
    untested += [
        [row.claim.id, row.state, row.data] for row in listed if row.claim.id not in standing
    ]
    parts += ["## Without a verdict", tables.in_markdown(untested)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _claim(verdict: verdicts.Verdict, adjusted: tuple[str, float | None]) -> str:
    state, p = adjusted
    lines = [f"**{verdict.claim}: {state}**" + (f", adjusted p {p:.2g}" if p is not None else "")]
    if state != verdict.state:
        lines.append(f"Without the adjustment for several claims: {verdict.state}.")
    part = verdict.record["claims"][verdict.claim]
    lines += [f"> {part['claim']}", f"Published: {part['published']}. Rule: {verdict.rule}."]
    lines += ["\n".join(f"- {name}: {value.text()}" for name, value in verdict.values.items())]
    return "\n\n".join(lines)


def _cost(record: dict[str, Any]) -> str:
    made = record["provenance"]
    minutes = sum(run["minutes"] for run in record["runs"])
    trained = (
        f"{len(record['runs'])} runs, {minutes:.0f} minutes of training"
        f" ({record['runs'][0]['processor']}, commit"
        f" {', '.join(sorted({run['commit'] for run in record['runs']}))}); "
        if record["runs"]
        else ""
    )
    if record.get("same_training"):
        trained += "these commits were measured to train the same (`runs/same_training.json`); "
    beside = ""
    if record["beside"]:
        texts = (f"- {name}: {Value.of(value).text()}" for name, value in record["beside"].items())
        beside = "\n".join(["Beside them:\n", *texts]) + "\n\n"
    return (
        f"{beside}Cost: {trained}{record['seconds']:.0f} s for the verdicts, {made['date'][:10]},"
        f" commit {made['commit']}, {made['processor']}, {made['cores']} cores, JAX"
        f" {made['versions']['jax']}."
    )


def write(
    folder: pathlib.Path, listed: list[listing.Row], standing: Mapping[str, verdicts.Verdict]
) -> pathlib.Path:
    """Write the page."""
    path = folder / "README.md"
    train.files.replace(path, text(listed, standing))
    return path
