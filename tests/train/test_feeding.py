"""Orders, and the two ways that examples reach the devices."""

import threading

import jax
import numpy as np
import pytest

from calib_jax import losses, train
from calib_jax.core import Examples
from calib_jax.train.devices import parallel
from calib_jax.train.feeds import prefetching
from tests.train import tasks

OBJECTIVE = losses.objective("recall", alpha=0.5)


class OnDisk:
    """A source that is not in memory; `fail_at` stands for a damaged file."""

    def __init__(self, source, fail_at=None):
        self.source, self.fail_at, self.read = source, fail_at, []

    def __len__(self):
        return len(self.source)

    def __getitem__(self, index):
        if self.fail_at is not None and self.fail_at in index:
            raise OSError(f"example {self.fail_at} cannot be read")
        self.read.append(np.array(index))
        return Examples(*self.source[index])


def reading():
    """Threads of a stream."""
    return [t.name for t in threading.enumerate() if t.name.startswith(("batches", "reading"))]


@pytest.mark.parametrize(("num_examples", "size", "multiple"), [(10, 3, 1), (10, 3, 4), (8, 4, 8)])
def test_an_order_holds_every_example_once(num_examples, size, multiple):
    order = train.in_batches(train.shuffled(num_examples, 0, 0), size, multiple=multiple)
    assert order.examples.shape[1] % multiple == 0
    assert len(order.examples) == train.steps_per_epoch(num_examples, size)
    assert sorted(order.examples[order.weights > 0].tolist()) == list(range(num_examples))
    assert set(order.weights.ravel().tolist()) <= {0.0, 1.0}


def test_the_last_batch_can_be_dropped():
    order = train.in_batches(np.arange(10), 4, drop_last=True)
    assert order.examples.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="batch_size=4 leaves no batch of 3 examples"):
        train.in_batches(np.arange(3), 4, drop_last=True)


def test_batches_hold_the_same_examples_on_any_number_of_devices():
    numbers = train.shuffled(38, seed=3, epoch=5)
    one = train.in_batches(numbers, 10)
    eight = train.in_batches(numbers, 10, multiple=8)
    for a, wa, _, b, wb, _ in zip(*one, *eight, strict=True):
        assert a[wa > 0].tolist() == b[wb > 0].tolist()


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(train.shuffled(20, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert tuple(train.shuffled(20, 1, 0)) == tuple(train.shuffled(20, 1, 0))


@pytest.mark.parametrize("num_devices", [1, 4])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_streamed_is_resident(num_devices, accumulate, x64):
    source = tasks.examples(22)
    arguments = dict(num_devices=num_devices, steps=6, batch_size=8, accumulate=accumulate)
    resident, measured = tasks.trained(OBJECTIVE, source, **arguments)
    streamed, result = tasks.trained(OBJECTIVE, OnDisk(source), feed=train.Streamed, **arguments)
    for a, b in zip(*map(jax.tree.leaves, map(tasks.the_only, (resident, streamed))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    for key, values in measured.items():
        np.testing.assert_allclose(values, result[key], rtol=1e-12)


def test_small_arrays_move_to_the_device_and_others_stream():
    one = train.Arrangement(train.local_devices(1))
    source = tasks.examples(22)
    assert isinstance(train.feed(source, one), train.Resident)
    assert isinstance(train.feed(source, one, resident_bytes=10), train.Streamed)
    assert isinstance(train.feed(OnDisk(source), one), train.Streamed)


def test_an_epoch_may_begin_in_its_middle():
    source = OnDisk(tasks.examples(20))
    one = train.Arrangement(train.local_devices(1))
    step = train.make_train_step(tasks.forward, OBJECTIVE, tasks.sgd(), axis_name=train.AXIS)
    runner = train.Streamed(source, one).training(step)
    order = train.in_batches(np.arange(20), 5)
    runner.begin(order, 2)
    runner(one.place([tasks.state_of(OBJECTIVE)]), [2], [4])
    assert sorted(np.concatenate(source.read).tolist()) == list(range(10, 20))


def test_an_error_while_reading_arrives_in_the_loop():
    source = OnDisk(tasks.examples(20), fail_at=13)
    order = train.in_batches(np.arange(20), 5)
    read = []
    with pytest.raises(OSError, match="example 13 cannot be read"):
        read.extend(prefetching.batches(source, order, train.local_devices(1)))
    assert not reading()


def test_dropping_the_iterator_ends_its_thread():
    order = train.in_batches(np.arange(20), 1)
    iterator = prefetching.batches(OnDisk(tasks.examples(20)), order, train.local_devices(1))
    next(iterator)
    assert reading()
    iterator.close()
    assert not reading()


# --------------------------------------------------------------------------------------------
# Devices.


def test_the_step_is_traced_once_and_the_state_is_donated():
    traced = []

    def forward(*args, **options):
        traced.append(1)
        return tasks.forward(*args, **options)

    two = train.Arrangement(train.local_devices(2))
    source = tasks.examples(20)
    step = train.make_train_step(forward, OBJECTIVE, tasks.sgd(), axis_name=train.AXIS)
    runner = train.Resident(source, two).training(step)
    states = two.place([tasks.state_of(OBJECTIVE)])
    counts = []
    for epoch in range(3):
        before = states
        runner.begin(train.in_batches(train.shuffled(20, 0, epoch), 4, multiple=2), 0)
        for start, stop in ((0, 1), (1, 4), (4, 5)):
            states, _ = runner(states, [start], [stop])
        jax.block_until_ready(states)
        counts.append(len(traced))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert counts[0] == counts[-1]


def test_rows_are_dealt_so_that_parts_stay_whole():
    dealt = parallel.rows_of_devices(np.arange(12), num_devices=2, accumulate=3, axis=0)
    assert dealt.tolist() == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]


def test_copies_that_differ_are_named():
    devices = train.local_devices(3)
    same = train.replicate({"a": np.ones(2), "b": np.zeros(2)}, devices)
    assert tasks.differing(same) == []
    other = train.split({"a": np.ones((3, 2)), "b": np.arange(3.0)}, devices)
    assert tasks.differing(other) == ["b"]


def test_what_comes_to_the_host_is_not_a_view_of_the_device():
    devices = train.local_devices(1)
    state = train.replicate(np.ones(1000, np.float32), devices)
    double = train.data_parallel(lambda x: 2 * x, devices, donate=(0,))
    host = train.first(state)
    jax.block_until_ready(double(state))
    assert (host == 1).all()


def test_more_devices_than_there_are():
    with pytest.raises(ValueError, match=r"there are \d+ devices, so 99 cannot be used"):
        train.local_devices(99)
