"""Signals at random moments: SIGKILL, SIGTERM, and SIGSTOP with SIGCONT."""

import random
import signal

from tests.faults.kinds import KINDS
from tests.faults.table import Row

MOST_KILLS_OF_A_RUN = 4


def killed(place, kind, tries, number=signal.SIGKILL):
    """Hit a run again and again at random moments of its life, and let it end.

    After `MOST_KILLS_OF_A_RUN` signals the run is left alone, and compared.
    """
    row = Row(f"{number.name} at random moments: {kind.name}")
    whole = place.whole(kind)
    chance = random.Random(f"{kind.name} {number}")
    while row.counts.total() < tries:
        folder, hits = place.new(kind), 0
        most = min(MOST_KILLS_OF_A_RUN, tries - row.counts.total())
        while True:
            run = place.start(kind, folder)
            code = run.wait(chance.uniform(0, whole.seconds)) if hits < most else run.wait(300)
            if code is not None:  # it has ended by itself
                break
            run.send_signal(number)
            run.wait()
            row.read(run.output())
            hits += 1
        row.read(run.output())
        if code != 0:
            row.add("lost", f"exit code {code}: {run.output()[-500:]}", tries=hits)
        elif why := place.difference(kind, folder):
            row.add("wrong", f"{why} in {folder}", tries=hits)
        else:
            row.add("survived", tries=hits)
    return row


def rows(place, scale):
    """Yield the rows of this family; `scale` is the share of the tries."""
    for kind in KINDS:
        yield killed(place, kind, max(1, round(scale * 12)))
    yield killed(place, KINDS[0], max(1, round(scale * 10)), signal.SIGTERM)
