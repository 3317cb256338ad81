"""Signals that ask a run to stop or to wait, at random moments and while it is saved."""

import random
import signal

from tests.faults.kills import killed
from tests.faults.kinds import ONE_SEED, SWEEP
from tests.faults.table import Row


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
    yield killed(place, ONE_SEED, max(1, round(scale * 8)), signal.SIGTERM)
    yield saved(place, ONE_SEED, max(1, round(scale * 8)))
    yield paused(place, ONE_SEED, max(1, round(scale * 4)))
    yield paused(place, SWEEP, max(1, round(scale * 2)))
