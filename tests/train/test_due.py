"""The timetable of a run, tested without devices, clocks or files."""

import dataclasses
import itertools

import pytest

from calib_jax.train import Plan
from calib_jax.train.loop.timetable import CHUNK_SECONDS, Chunk, Timetable

PLAN = Plan(num_epochs=9, batch_size=1, checkpoint_every_epochs=2, checkpoint_every_minutes=10)
QUIET = {"step": 15, "failed": False, "better": False, "ended": False, "seconds": 1.0}


def is_saved(plan=PLAN, **change):
    return Timetable(plan, epoch_steps=5).is_saved(**QUIET | change)


def test_a_failed_run_is_never_saved():
    truths = itertools.product((0, 10, 15), *[(False, True)] * 2, (0.0, 1e9))
    for step, better, ended, seconds in truths:
        change = {"step": step, "better": better, "ended": ended, "seconds": seconds}
        assert not is_saved(failed=True, **change)


@pytest.mark.parametrize(
    ("change", "saved"),
    [
        ({}, False),
        ({"better": True}, True),
        ({"ended": True}, True),
        ({"step": 20}, True),  # the end of the fourth epoch
        ({"step": 17}, False),
        ({"seconds": 600.0}, False),
        ({"seconds": 601.0}, True),
        ({"seconds": 601.0, "step": 17}, True),
    ],
)
def test_what_a_run_is_saved_for(change, saved):
    assert is_saved(**change) == saved


def test_epochs_that_are_kept_for_good_are_saved():
    rarely = dataclasses.replace(PLAN, checkpoint_every_epochs=0, keep_every_epochs=3)
    steps = [step for step in range(5, 50, 5) if is_saved(rarely, step=step)]
    assert steps == [15, 30, 45]


@pytest.mark.parametrize("every", [0, 1, 3, 5, 7, 45, 99])
def test_no_stop_is_passed(every):
    """By brute force: every end of an epoch and every evaluation ends a chunk."""
    table = Timetable(dataclasses.replace(PLAN, eval_every_steps=every), epoch_steps=5)
    ends = [step for step in range(1, 46) if step % 5 == 0]
    evaluations = [step for step in range(1, 46) if step % (every or 5) == 0] + [45]
    assert table.total_steps == 45
    assert [step for step in range(1, 46) if table.ends_epoch(step)] == ends
    assert [step for step in range(1, 46) if table.is_evaluated(step)] == sorted({*evaluations})
    for step in range(45):
        assert table.next_stop(step) == min(s for s in (*ends, *evaluations) if s > step)


def test_the_warm_up_ends_with_its_epochs():
    table = Timetable(dataclasses.replace(PLAN, warm_up_epochs=2), epoch_steps=5)
    assert [step for step in range(20) if table.is_warm_up(step)] == [*range(10)]
    assert not Timetable(PLAN, epoch_steps=5).is_warm_up(0)
    assert table.progress_at(14) == (14, 2, 9)


def test_a_chunk_takes_its_seconds():
    chunk = Chunk()
    sizes = []
    for seconds_per_step in (1e-9, 1e-9, 1e-3, 1e-3, 1e3):
        chunk.begin()
        chunk.add(chunk.size, 0.0)
        chunk.add(1, 0.0)  # runs in the warm-up take as many steps or fewer
        chunk.adapt(chunk.size * seconds_per_step)
        sizes.append(chunk.size)
    assert sizes == [64, 64**2, CHUNK_SECONDS / 1e-3, CHUNK_SECONDS / 1e-3, 1]
    chunk.begin()
    chunk.adapt(1.0)  # nothing was trained
    assert chunk.size == 1
