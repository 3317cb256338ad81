"""The page of the procedure: its rules, blocks, size and power, and the verdicts before it."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from calib_jax.core.files import reading
from calib_jax.report import tables
from experiments.papers.judge import procedure, simulation, states, verdicts
from experiments.papers.page import listing, repetitions

BLOCKS = """Points are the standard deviation of root-CE2 between training seeds, times 100. A block
is pooled where p of homogeneity is .05 or more. Its runs can be of several commits."""
WITHOUT_P = """Every claim about trained networks with a verdict has a p-value, with these
exceptions. Identities and recounts of published tables have no random data."""
BEFORE = """Before this procedure, every comparison used the variance of its own three seeds, and
counts had no p-value. The verdicts before it were recorded once; they, too, are after Holm's
method. The table has the claims about trained networks whose state changed."""
CHANGED = """Every claim whose rule differs from the one that was written before any run, with both
verdicts on today's values, before Holm's method. Where today's values cannot be judged by the first
rule, there is one. The pages of the sources have both rules and the reasons."""
FILE, PREVIOUS = "judge/README.md", "judge/before.json"
AGAIN = "restore it from the repository"


def text(
    folder: pathlib.Path, listed: list[listing.Row], standing: Mapping[str, verdicts.Verdict]
) -> str:
    """Format the page.

    Args:
      folder: the folder of the verdicts, with the verdicts before.
      listed: the states of all claims.
      standing: the verdicts.
    """
    before = reading.json_mapping(folder / PREVIOUS, "verdicts", AGAIN)
    simulated = reading.json_mapping(simulation.PATH, "a simulation", "run the simulation again")
    parts = [
        "# Procedure",
        (procedure.__doc__ or "").strip(),
        "## Blocks",
        BLOCKS,
        _blocks(standing),
        *repetitions.text(folder),
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
    parts += ["## Changed rules", CHANGED, _rules(listed, standing)]
    parts += ["## Verdicts before", BEFORE, _changes(before["claims"], listed)]
    parts.append(f"Verdicts before the procedure were computed at commit {before['commit']}.")
    return "\n\n".join(parts) + "\n"


def _blocks(standing: Mapping[str, verdicts.Verdict]) -> str:
    """Format the pooled variances of all entries, each once."""
    pooled: dict[str, dict[str, Any]] = {}
    for verdict in standing.values():
        pooled |= verdict.record.get("blocks", {})
    table = [["block", "losses", "points", "degrees of freedom", "p of homogeneity", "commits"]]
    for name, row in sorted(pooled.items()):
        numbers = f"{row['points']:.2f}", str(row["freedom"]), f"{row['homogeneity']:.2g}"
        table.append([name, str(row["losses"]), *numbers, str(row["commits"])])
    return tables.in_markdown(table)


def _rules(listed: Iterable[listing.Row], standing: Mapping[str, verdicts.Verdict]) -> str:
    """Format the claims whose rule was changed, with the verdicts of both rules."""
    table = [["claim", "changed", "by the first rule", "by the rule", "state"]]
    for row in listed:
        if row.claim.changed and not row.missing:
            verdict = standing[row.claim.id]
            first = verdict.record["claims"][row.claim.id]["original"] or ""
            changed = row.claim.changed[:10]
            table.append([row.claim.id, changed, first, verdict.state, row.standing.state])
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
