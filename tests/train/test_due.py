"""What is saved after a piece of training: a pure decision, so no device is needed."""

import dataclasses
import itertools

import pytest

from calib_jax.train import Plan
from calib_jax.train.due import Standing, is_saved

PLAN = Plan(num_epochs=9, batch_size=1, checkpoint_every_epochs=2, checkpoint_every_minutes=10)
QUIET = Standing(15, failed=False, at_stop=True, better=False, ended=False, seconds=1.0)


def test_a_failed_run_is_never_saved():
    truths = itertools.product((0, 10, 15), *[(False, True)] * 3, (0.0, 1e9))
    for step, at_stop, better, ended, seconds in truths:
        assert not is_saved(Standing(step, True, at_stop, better, ended, seconds), PLAN, 5)


@pytest.mark.parametrize(
    ("change", "saved"),
    [
        ({}, False),
        ({"better": True}, True),
        ({"ended": True}, True),
        ({"step": 20}, True),  # the end of the fourth epoch
        ({"step": 20, "at_stop": False}, False),
        ({"seconds": 600.0}, False),
        ({"seconds": 601.0}, True),
        ({"seconds": 601.0, "at_stop": False, "step": 17}, True),
    ],
)
def test_what_a_run_is_saved_for(change, saved):
    assert is_saved(QUIET._replace(**change), PLAN, 5) == saved


def test_epochs_that_are_kept_for_good_are_saved():
    rarely = dataclasses.replace(PLAN, checkpoint_every_epochs=0, keep_every_epochs=3)
    steps = [step for step in range(5, 50, 5) if is_saved(QUIET._replace(step=step), rarely, 5)]
    assert steps == [15, 30, 45]
