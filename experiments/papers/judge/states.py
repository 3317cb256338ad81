"""The states and kinds of claims, and the claims without a p-value."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from experiments.papers import claims
from experiments.papers.judge import rules
from experiments.papers.judge.values import Value

HOLDS, CONTRADICTED, MOSTLY = "holds", "contradicted here", "mostly"
UNDECIDED, OUTSIDE, NOT_TESTABLE = "undecided", "outside the regime", "not testable"
STATES = (HOLDS, CONTRADICTED, MOSTLY, UNDECIDED, OUTSIDE, NOT_TESTABLE)
TRAINED, TOY = "trained network or cost", "toy problem"
IDENTITY, RECOUNT = "identity or unit test", "recount of a published table"
CHECK = "check of a paper, no claim of it"
KINDS = (TRAINED, TOY, IDENTITY, RECOUNT)  # that are counted
IN_APPENDIX = (IDENTITY, RECOUNT, CHECK)

# Whether the numbers of a paper agree with each other is no claim of the paper.
CHECKS = (
    "mukhoti-mce-newsgroups-row-copied",
    "mukhoti-tables-agree-with-themselves",
    "bsce-gra-ablation-same-phase",
)
# Claims about trained networks without a p-value, and why.
WITHOUT_P = {
    "mukhoti-translation-temperature-one": "each loss has one seed, and its T is a step of a grid"
}


class Standing(NamedTuple):
    """The state of a claim after the adjustment for all claims of its source.

    Attributes:
      state: one of STATES.
      p: the p-value of its rule; None where nothing is random.
      holm: the p-value after Holm's method.
      share: the p-value after the method of Benjamini and Hochberg.
    """

    state: str
    p: float | None = None
    holm: float | None = None
    share: float | None = None


def kind_of(claim: claims.Claim) -> str:
    """Return the kind of a claim's test.

    Identities and unit tests evaluate a formula, and recounts count rows that a paper prints. They
    are no evidence about trained networks.
    """
    if claim.id in CHECKS:
        return CHECK
    return {"exact": IDENTITY, "table": RECOUNT, "toy": TOY}.get(claim.scale, TRAINED)


def state_of(claim: claims.Claim, judged: str | None, values: dict[str, Value]) -> str:
    """Return the state of a claim.

    Args:
      claim: the claim.
      judged: the outcome of its rule after Holm's method; None without a verdict.
      values: the values that its rule judges.
    """
    if judged is None:
        return NOT_TESTABLE
    if judged == rules.HOLDS:
        return HOLDS
    if _is_mostly(values):
        return MOSTLY
    if judged == rules.UNDECIDED:
        return UNDECIDED
    return OUTSIDE if claim.scale == "gpu" else CONTRADICTED


def _is_mostly(values: dict[str, Value]) -> bool:
    """Check for known counts, such as 10 of 11: all above half of their rows, some not all rows.

    >>> [_is_mostly({"lowest": Value(count, rows=11)}) for count in (10, 5, 11)]
    [True, False, False]
    """
    counted = all(
        value.deviation is None
        and float(value.value).is_integer()
        and value.rows / 2 < value.value <= value.rows
        for value in values.values()
    )
    return counted and any(value.value < value.rows for value in values.values())


def counts(
    groups: Iterable[str], grouped: Iterable[tuple[str, str]], title: str
) -> list[list[str]]:
    """Count the states by group, as the rows of a table.

    Args:
      groups: the groups, in the order of the rows.
      grouped: group and state of every claim.
      title: the name of the groups.
    """
    numbers = Counter(grouped)
    rows = []
    for group in groups:
        of_group = [numbers[group, state] for state in STATES]
        if any(of_group):
            rows.append([group, *map(str, of_group), str(sum(of_group))])
    return [[title, *STATES, "claims"], *rows]


def headline(of_trained: Iterable[str], on_smaller: int) -> str:
    r"""Write the counts of the claims about trained networks and their costs as sentences.

    Args:
      of_trained: the state of each claim.
      on_smaller: the number of those that hold, although they need the networks of the papers.

    >>> print(headline(["holds", "holds", "undecided"], 1).replace(". ", ".\n"))
    3 claims are about trained networks and their costs: 2 hold, 1 is undecided.
    Of those that hold, 1 was tested on smaller networks than its paper means.
    """
    numbers = Counter(of_trained)
    words = {  # of one claim, and of several
        HOLDS: ("holds", "hold"),
        CONTRADICTED: ("is contradicted here", "are contradicted here"),
        MOSTLY: ("mostly holds", "mostly hold"),
        UNDECIDED: ("is undecided", "are undecided"),
        OUTSIDE: ("was tested outside its regime", "were tested outside their regime"),
        NOT_TESTABLE: ("is not testable here", "are not testable here"),
    }
    parts = [f"{n} {words[state][n > 1]}" for state in STATES if (n := numbers[state])]
    was, mean = ("was", "its paper means") if on_smaller == 1 else ("were", "their papers mean")
    return (
        f"{numbers.total()} claims are about trained networks and their costs: {', '.join(parts)}."
        f" Of those that hold, {on_smaller} {was} tested on smaller networks than {mean}."
    )
