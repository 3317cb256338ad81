"""Training that is killed at random moments."""

import random
import signal

from tests.faults.kinds import TRAININGS
from tests.faults.table import Row

MOST_HITS_OF_A_RUN = 4


def killed(place, kind, tries, number=signal.SIGKILL):
    """Hit a run again and again at random moments of its life, and let it end.

    After `MOST_HITS_OF_A_RUN` signals the run is left alone, and compared.
    """
    row = Row(f"{number.name} at random moments: {kind.name}")
    whole = place.whole(kind)
    chance = random.Random(f"{kind.name} {number}")
    while row.counts.total() < tries:
        folder, hits = place.new(kind), 0
        most = min(MOST_HITS_OF_A_RUN, tries - row.counts.total())
        run = place.start(kind, folder)
        while hits < most and run.wait(chance.uniform(0, whole.seconds)) is None:
            run.send_signal(number)
            run.wait()
            row.read(run)
            hits += 1
            run = place.start(kind, folder)
        outcome, note = place.judge(row, kind, folder, run)
        row.add("lost" if outcome == "refused" else outcome, note, tries=hits)
    return row


def rows(place, scale):
    """Yield the rows of this family; `scale` is the share of the tries."""
    for kind in TRAININGS:
        yield killed(place, kind, max(1, round(scale * 12)))
