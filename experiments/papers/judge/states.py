"""The states of claims, and the kinds that no headline counts."""

from collections import Counter
from collections.abc import Iterable

from experiments.papers import claims
from experiments.papers.judge import rules
from experiments.papers.judge.values import Value

HOLDS, CONTRADICTED, MOSTLY = "holds", "contradicted here", "mostly"
UNDECIDED, OUTSIDE, NOT_TESTABLE = "undecided", "outside the regime", "not testable"
STATES = (HOLDS, CONTRADICTED, MOSTLY, UNDECIDED, OUTSIDE, NOT_TESTABLE)
TRAINED, TOY = "trained network or cost", "toy problem"
IDENTITY, RECOUNT = "identity or unit test", "recount of a published table"
KINDS = (TRAINED, TOY, IDENTITY, RECOUNT)
IN_HEADLINE = (TRAINED,)


def kind_of(claim: claims.Claim) -> str:
    """Return the kind of a claim's test.

    Identities and unit tests evaluate a formula, and recounts count rows that a paper prints. They
    are no evidence about trained networks.
    """
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
    """Check for known counts, such as 10 of 11, that are all above half of their rows.

    >>> _is_mostly({"lowest": Value(10, rows=11)}), _is_mostly({"lowest": Value(5, rows=11)})
    (True, False)
    """
    return bool(values) and all(
        value.deviation is None
        and float(value.value).is_integer()
        and value.rows / 2 < value.value <= value.rows
        for value in values.values()
    )


def counts(kinds_and_states: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Count the states by kind, as the rows of a table."""
    numbers = Counter(kinds_and_states)
    rows = [[kind, *(str(numbers[kind, state]) for state in STATES)] for kind in KINDS]
    return [["kind", *STATES], *rows]
