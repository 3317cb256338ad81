"""The page of the procedure: its rules, blocks, size and power, and the verdicts before it."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from calib_jax.core.files import reading
from calib_jax.report import tables
from experiments.papers.judge import procedure, simulation, states
from experiments.papers.page import listing

BLOCKS = """Points are the standard deviation of root-CE2 between training seeds, times 100. A block
is pooled where p of homogeneity is .05 or more. Its runs can be of several commits."""
REPEATED = """The runs called undiagnosed repeat seeds of six losses on another machine, or at
another commit: root-CE2 of the same seed differs by 1.10 points (root mean square of 18 pairs),
that of two seeds by 1.10. `runs/same_training.json` has measurements of pairs of commits whose
first epochs agree to rounding."""
WITHOUT_P = """Every claim about trained networks with a verdict has a p-value, with these
exceptions. Identities and recounts of published tables have no random data."""
BEFORE = """Before this procedure, every comparison used the variance of its own three seeds, and
counts had no p-value. The verdicts before it were recorded once; they, too, are after Holm's
method. The table has the claims about trained networks whose state changed."""
FILE, PREVIOUS = "judge/README.md", "judge/before.json"
AGAIN = "restore it from the repository"


def text(
    folder: pathlib.Path, listed: list[listing.Row], records: Iterable[Mapping[str, Any]]
) -> str:
    """Format the page.

    Args:
      folder: the folder of the verdicts, with the verdicts before.
      listed: the states of all claims.
      records: the files of the verdicts.
    """
    before = reading.json_mapping(folder / PREVIOUS, "verdicts", AGAIN)
    simulated = reading.json_mapping(simulation.PATH, "a simulation", "run the simulation again")
    parts = [
        "# Procedure",
        (procedure.__doc__ or "").strip(),
        "## Blocks",
        BLOCKS,
        _blocks(records),
    ]
    parts += [
        "## Size and power",
        (simulation.__doc__ or "").partition("simulation\n\n")[2].strip(),
    ]
    for name, methods in simulated["scenarios"].items():
        columns = list(next(iter(methods.values())))
        rows = [
            [method, *(f"{s:.3f}" for s in shares.values())] for method, shares in methods.items()
        ]
        parts += [f"### {name}", tables.in_markdown([["method", *columns], *rows])]
    ran = simulated["provenance"]["commit"]
    parts.append(f"{simulated['times']:,} simulated blocks of each scenario, at commit {ran}.")
    without = [f"- {claim}: {why}." for claim, why in states.WITHOUT_P.items()]
    parts += ["## Claims without a p-value", WITHOUT_P, "\n".join(without)]
    parts += ["## Verdicts before", BEFORE, _changes(before["claims"], listed)]
    parts.append(f"Verdicts before the procedure were computed at commit {before['commit']}.")
    return "\n\n".join(parts) + "\n"


def _blocks(records: Iterable[Mapping[str, Any]]) -> str:
    """Format the pooled variances of all entries, each once."""
    pooled = {name: row for record in records for name, row in record.get("blocks", {}).items()}
    table = [["block", "losses", "points", "degrees of freedom", "p of homogeneity", "commits"]]
    for name, row in sorted(pooled.items()):
        numbers = f"{row['points']:.2f}", str(row["freedom"]), f"{row['homogeneity']:.2g}"
        table.append([name, str(row["losses"]), *numbers, str(row["commits"])])
    return tables.in_markdown(table)


def _changes(before: Mapping[str, Mapping[str, Any]], listed: list[listing.Row]) -> str:
    """Format the claims whose verdict the procedure changed."""
    table = [["claim", "before", "p before", "now", "p", "Holm", "BH"]]
    for row in listed:
        old = before.get(row.claim.id)
        if old and row.kind == states.TRAINED and old["state"] != row.standing.state:
            numbers = map(listing.p_value, (old["p"], *row.standing[1:]))
            p_before, *now = numbers
            table.append([row.claim.id, old["state"], p_before, row.standing.state, *now])
    return tables.in_markdown(table)
