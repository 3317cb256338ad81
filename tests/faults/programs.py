"""Sweep, map, evaluation and a run of two processes, killed at random moments."""

from tests.faults.kills import killed
from tests.faults.kinds import EVALUATION, MAP, SWEEP, TWO_PROCESSES


def rows(place, scale):
    """Yield the rows of this family; `scale` is the share of the tries."""
    for kind in (EVALUATION, MAP, TWO_PROCESSES, SWEEP):
        yield killed(place, kind, max(1, round(scale * 10)))
