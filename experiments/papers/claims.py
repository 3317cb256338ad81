"""The claims of the sources, from experiments/published/claims.csv."""

import csv
import difflib
import functools
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

PUBLISHED = pathlib.Path(__file__).parents[1] / "published"


class Claim(NamedTuple):
    """One claim, as a row of the file.

    Attributes:
      id: its name, which begins with the source.
      source: guo, mukhoti, adafocal, bsce-gra or recall.
      where: the section, table or figure.
      claim: the sentence.
      published: the published numbers.
      test: how it is tested here.
      scale: exact, toy, table, cpu or gpu.
      data: the data that the test needs; "absent: NAME" if nobody here has them.
      verdict_rule: when it holds, and when it does not.
    """

    id: str
    source: str
    where: str
    claim: str
    published: str
    test: str
    scale: str
    data: str
    verdict_rule: str


@functools.cache
def read(path: pathlib.Path = PUBLISHED / "claims.csv") -> dict[str, Claim]:
    """Read all claims by id; raise an error for a file with other columns or an id twice."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != Claim._fields:
            raise ValueError(f"{path} must have the columns {', '.join(Claim._fields)}.")
        claims: dict[str, Claim] = {}
        for row in rows:
            claim = Claim(**row)
            if claim.id in claims:
                raise ValueError(f"{path} has two claims {claim.id}.")
            claims[claim.id] = claim
    return claims


def sources(claims: Iterable[Claim]) -> list[str]:
    """List the sources in the order of the file."""
    return list(dict.fromkeys(claim.source for claim in claims))


def unknown(name: str, known: Iterable[str]) -> ValueError:
    """Build the error for an unknown id, with the near ones."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "--list names all."
    return ValueError(f"there is no claim or entry {name!r}; {hint}")
