"""The claims of the sources, from experiments/published/claims.csv."""

import csv
import difflib
import functools
import io
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from calib_jax.core.files import reading

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
      rule_original: the first rule, written before any run.
      rule: when the claim holds, and when it does not.
      changed: the time of the last change of the rule; "" if the rule is the original one.
      why: the reason of the change, and whether the runs were known.
    """

    id: str
    source: str
    where: str
    claim: str
    published: str
    test: str
    scale: str
    data: str
    rule_original: str
    rule: str
    changed: str
    why: str


@functools.cache
def read(path: pathlib.Path = PUBLISHED / "claims.csv") -> dict[str, Claim]:
    """Read all claims by id; raise an error for an id twice, and for a rule without its history."""
    claims: dict[str, Claim] = {}
    for _, row in table(path, Claim._fields):
        claim = Claim(**row)
        if claim.id in claims:
            raise ValueError(f"{path} has two claims {claim.id}.")
        if not (claim.rule and claim.rule_original):
            raise ValueError(f"{claim.id} in {path} has no rule: write rule and rule_original.")
        if (claim.rule != claim.rule_original) != bool(claim.changed and claim.why):
            raise ValueError(
                f"{claim.id} in {path}: a rule that differs from rule_original, and only such a"
                " one, needs the time in changed and the reason in why."
            )
        claims[claim.id] = claim
    return claims


def table(path: pathlib.Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Read the rows of a CSV file with the numbers of their lines.

    It raises an error if the file has other columns, or a row more or fewer cells.
    """
    text = reading.text(path, "a CSV file")
    lines = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    if sorted(lines.fieldnames or ()) != sorted(columns):
        raise ValueError(f"{path} must have the columns {', '.join(columns)}.")
    rows: list[tuple[int, dict[str, str]]] = []
    try:
        for row in lines:
            if None in row or None in row.values():
                raise ValueError(
                    f"line {lines.line_num} of {path} has not {len(columns)} cells: correct it."
                )
            rows.append((lines.line_num, row))
    except csv.Error as error:
        line = rows[-1][0] + 1 if rows else 2
        raise ValueError(f"the quotes of {path} do not match from line {line} on.") from error
    return rows


def sources(claims: Iterable[Claim]) -> list[str]:
    """List the sources in the order of the file."""
    return list(dict.fromkeys(claim.source for claim in claims))


def unknown(name: str, known: Iterable[str]) -> ValueError:
    """Build the error for an unknown id, with the near ones."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "--list names all."
    return ValueError(f"there is no claim or entry {name!r}; {hint}")
