"""Write the page of the procedure: blocks, simulated size and power, verdicts before and after.

    python -m experiments.papers.judge.side_by_side

Verdicts are judged again from the values in the committed files. A value is computed anew by the
procedure where two losses of a block have exactly this difference; other values stay as they are.
"""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from calib_jax.core.files import reading
from calib_jax.report import tables
from calib_jax.train.folder import files
from experiments.papers import claims, entry
from experiments.papers.judge import blocks, procedure, rules, simulation, states, verdicts
from experiments.papers.judge.blocks import Block
from experiments.papers.judge.pooling import Pooled
from experiments.papers.judge.values import Value
from experiments.running import provenance

FOLDER = pathlib.Path("experiments/results/papers")
EQUAL = 1e-9  # two values of the same difference differ by rounding alone


def main() -> None:
    """Judge again, and write the record and the page."""
    by_claim = entry.of_claims()
    standing = verdicts.read(FOLDER, by_claim)
    grouped = blocks.trainings(by_claim.values())
    listed = [block for name, of in grouped.items() for block in blocks.read(FOLDER, name, of)]
    pooled = {block.name: block.pooled for block in listed}
    judged = {
        claim: judge_again(verdict, by_claim, listed, pooled) for claim, verdict in standing.items()
    }
    record = {
        "blocks": {block.name: _described(block, pooled[block.name]) for block in listed},
        "claims": compared(standing, judged),
        "provenance": provenance.published(),
    }
    files.replace(FOLDER / "judge" / "procedure.json", json.dumps(record, indent=1) + "\n")
    simulated = reading.json_mapping(simulation.PATH, "a simulation", "run the simulation again")
    files.replace(FOLDER / "judge" / "README.md", text(record, simulated))


def judge_again(
    verdict: verdicts.Verdict,
    by_claim: Mapping[str, entry.Entry],
    listed: list[Block],
    pooled: Mapping[str, Pooled],
) -> tuple[verdicts.Verdict, int]:
    """Judge a verdict by the procedure; return it with the number of values computed anew."""
    tested_by = by_claim[verdict.claim]
    labels = {training.label for training in tested_by.runs.values()}
    configs = {training.config for training in tested_by.runs.values()}
    candidates = [block for block in listed if block.name.split()[0].rstrip(",") in configs]
    values, anew = dict(verdict.values), 0
    for name, value in verdict.values.items():
        for block, first, second in _pairs(candidates, labels):
            is_compared = value.seeds == blocks.SEEDS and "CE2" in name
            if is_compared and _is_of(value, block, first, second):
                values[name] = block.compare(first, second, pooled[block.name])
                anew += 1
                break
    outcome = tested_by.claims[verdict.claim].judge(values)
    return verdict._replace(state=outcome.state, p=outcome.p, values=values), anew


def _pairs(listed: list[Block], labels: set[str]) -> Iterator[tuple[Block, str, str]]:
    for block in listed:
        known = [label for label in block.bins if label in labels]
        yield from ((block, a, b) for a in known for b in known if a != b)


def _is_of(value: Value, block: Block, first: str, second: str) -> bool:
    """Check whether a recorded value is the difference of two losses."""
    difference = block.means[first] - block.means[second]
    return abs(value.value - difference) <= EQUAL


def _described(block: Block, pooled: Pooled) -> dict[str, Any]:
    return {
        "losses": len(block.bins),
        "points": 100 * pooled.variance**0.5,
        "freedom": pooled.freedom,
        "homogeneity": pooled.homogeneity,
        "commits": len(block.commits),
    }


def compared(
    standing: Mapping[str, verdicts.Verdict],
    judged: Mapping[str, tuple[verdicts.Verdict, int]],
) -> dict[str, dict[str, Any]]:
    """Compare all verdicts before and after, with the p-values of both and their adjustments."""
    new = {claim: verdict for claim, (verdict, _) in judged.items()}
    before, after = verdicts.adjusted(standing), verdicts.adjusted(new)
    holm: dict[str, float] = {}
    shares: dict[str, float] = {}
    for source in claims.sources(claims.read().values()):
        of_source = {
            c: v.p for c, v in new.items() if claims.read()[c].source == source and v.p is not None
        }
        holm |= rules.holm(of_source)
        shares |= procedure.benjamini_hochberg(of_source)
    rows = {}
    for claim in claims.read().values():
        verdict = new.get(claim.id)
        state = after[claim.id][0] if verdict else None
        rows[claim.id] = {
            "source": claim.source,
            "kind": states.kind_of(claim),
            "before": before[claim.id][0] if verdict else "no verdict",
            "after": state or "no verdict",
            "state": states.state_of(claim, state, verdict.values if verdict else {}),
            "p before": standing[claim.id].p if verdict else None,
            "p after": verdict.p if verdict else None,
            "Holm": holm.get(claim.id),
            "BH": shares.get(claim.id),
            "values computed anew": judged[claim.id][1] if verdict else 0,
        }
    return rows


def text(record: Mapping[str, Any], simulated: Mapping[str, Any]) -> str:
    """Format the page."""
    docstring = (procedure.__doc__ or "").strip()
    parts = ["# Procedure", docstring, "## Blocks", BLOCKS]
    parts.append(
        tables.in_markdown(
            [
                ["block", "losses", "points", "degrees of freedom", "p of homogeneity", "commits"],
                *(
                    [
                        name,
                        str(b["losses"]),
                        f"{b['points']:.2f}",
                        str(b["freedom"]),
                        f"{b['homogeneity']:.2g}",
                        str(b["commits"]),
                    ]
                    for name, b in record["blocks"].items()
                ),
            ]
        )
    )
    parts += [
        "## Size and power",
        (simulation.__doc__ or "").partition("simulation\n\n")[2].strip(),
    ]
    for name, methods in simulated["scenarios"].items():
        columns = list(next(iter(methods.values())))
        parts += [
            f"### {name}",
            tables.in_markdown(
                [
                    ["method", *columns],
                    *(
                        [method, *(f"{share:.3f}" for share in shares.values())]
                        for method, shares in methods.items()
                    ),
                ]
            ),
        ]
    rows = record["claims"]
    parts += [
        "## States",
        STATES,
        tables.in_markdown(states.counts((row["kind"], row["state"]) for row in rows.values())),
    ]
    parts += [
        "## Before and after",
        BEFORE,
        tables.in_markdown(
            [
                ["claim", "before", "after", "state", "p before", "p after", "Holm", "BH"],
                *(
                    [
                        claim,
                        row["before"],
                        row["after"],
                        row["state"],
                        *(_p(row[key]) for key in ("p before", "p after", "Holm", "BH")),
                    ]
                    for claim, row in rows.items()
                    if row["p after"] is not None or row["p before"] is not None
                ),
            ]
        ),
    ]
    made, ran = record["provenance"], simulated["provenance"]
    parts.append(
        f"Verdicts computed at commit {made['commit']}, {made['date'][:10]}; {simulated['times']:,}"
        f" simulated blocks of each scenario at commit {ran['commit']}."
    )
    return "\n\n".join(parts) + "\n"


BLOCKS = """Points are the standard deviation of root-CE2 between training seeds, times 100. Blocks
with runs of several commits are named by their number of commits."""
STATES = """Headline counts are those of trained networks. Identities, unit tests and recounts of
published tables stand apart, as do toy problems. A claim that does not hold here is *outside the
regime* if it needs the networks of the papers, and *contradicted here* otherwise."""
BEFORE = """Claims with a p-value. *Before*: every comparison uses the variance of its own three
seeds. *After*: the procedure above. Both are adjusted by Holm's method within a source; Holm and BH
are the adjusted p-values after."""


def _p(p: float | None) -> str:
    return "" if p is None else f"{p:.2g}"


if __name__ == "__main__":
    main()
