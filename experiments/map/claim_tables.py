"""The page of the claims that the map's records decide, as lines of Markdown."""

import numpy as np

from experiments.map import claims, findings, statistics
from experiments.map.statistics import LEVEL, Records
from experiments.map.tables import BANDS, table
from experiments.papers import verdicts as published

_STATES = (findings.HOLDS, findings.UNDECIDED, findings.FAILS)


def sections(found: Records) -> list[str]:
    """Tabulate the states of every claim by band of T, and then in every place."""
    rows = {name: claims.judge(found, claim) for name, claim in claims.CLAIMS.items()}
    lines = [
        "# Claims of the papers, on a network with one layer on frozen vectors",
        "",
        "Written by `python -m experiments.map.report`. Every state belongs to the regime of its"
        " row: the data set, T and the error of cross-entropy. The rules are in"
        " `experiments/map/README.md`.",
        "",
        "## By temperature of cross-entropy",
        "",
        "Places in which the claim holds / is undecided / does not hold.",
        *_by_band(rows),
        "A star below marks p < .05 after Holm's correction over all places and claims of a source;"
        " places without records count as p = 1. The printed difference is the least favourable of"
        " the claim's conditions.",
        "",
    ]
    stars = claims.adjusted(rows)
    for name, of_claim in rows.items():
        lines += _claim(name, of_claim, stars[name] < LEVEL)
    return lines


def _by_band(rows: dict[str, list[claims.Row]]) -> list[str]:
    body = []
    for name, of_claim in rows.items():
        judged = [row for row in of_claim if row.state]
        bands = statistics.band_of(np.array([row.temperature for row in judged]))
        line = [f"{claims.CLAIMS[name].title} [{name}](#{name})"]
        for band in range(len(BANDS)):
            states = [row.state for row, of in zip(judged, bands, strict=True) if of == band]
            counts = " / ".join(str(states.count(state)) for state in _STATES)
            line.append(counts if states else "")
        body.append([*line, f"{len(judged)} of {len(claims.CLAIMS[name].places)}"])
    return table(["claim", *(f"T {band}" for band in BANDS), "places with records"], body)


def _claim(name: str, rows: list[claims.Row], stars: np.ndarray) -> list[str]:
    """Tabulate a claim in the places that have all records, by T."""
    claim, source = claims.CLAIMS[name], published.read()[name]
    unit, factor = claim.unit
    judged = [(row, star) for row, star in zip(rows, stars, strict=True) if row.state]
    judged.sort(key=lambda pair: pair[0].temperature)
    body = []
    for row, star in judged:
        value, low, high = (factor * number for number in row.value)
        body.append(
            [
                *(f"{row.temperature:.2f}", f"{100 * row.error:.1f}", row.place.name),
                row.state + "*" * int(star),
                f"{row.condition}: {value:+.2f} [{low:+.2f}, {high:+.2f}]",
            ]
        )
    lines = [f"## {name}", "", claim.title, "", f"Rule of the claim: {source.rule}."]
    if not body:
        return [*lines, "", "No place has the records of all its losses yet.", ""]
    header = ["T", "error of cross-entropy, %", "place", "state", f"difference, in {unit}"]
    return [*lines, *table(header, body)]
