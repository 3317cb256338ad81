"""Signals at random moments, and in the middle of a checkpoint."""

import random
import signal

from tests.faults.kinds import KINDS, ONE_SEED, SWEEP
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


def saved(place, kind, tries):
    """Ask a run to stop while it writes a checkpoint: the first, the second and so on."""
    row = Row(f"SIGTERM while a checkpoint is written: {kind.name}")
    for count in range(1, tries + 1):
        stop = ("tests.faults.before:signal_in_save", int(signal.SIGTERM), count)
        place.hit(row, kind, place.new(kind), before=[stop])
    return row


def paused(place, kind, tries):
    """Stop a run and let it go on, three times in its life."""
    row = Row(f"SIGSTOP, and SIGCONT after .2 seconds: {kind.name}")
    chance = random.Random(f"{kind.name} paused")
    whole = place.whole(kind)
    for _ in range(tries):
        folder = place.new(kind)
        run = place.start(kind, folder)
        for _ in range(3):
            if run.wait(chance.uniform(0, whole.seconds / 3)) is None:
                run.send_signal(signal.SIGSTOP)
                run.wait(0.2)
                run.send_signal(signal.SIGCONT)
        row.add(*place.judge(row, kind, folder, run))
    return row


def rows(place, scale):
    """Yield the rows of this family; `scale` is the share of the tries."""
    for kind in KINDS:
        yield killed(place, kind, max(1, round(scale * 12)))
    yield killed(place, ONE_SEED, max(1, round(scale * 8)), signal.SIGTERM)
    yield saved(place, ONE_SEED, max(1, round(scale * 8)))
    yield paused(place, ONE_SEED, max(1, round(scale * 4)))
    yield paused(place, SWEEP, max(1, round(scale * 2)))
