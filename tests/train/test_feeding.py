"""Orders, and the two ways that examples reach the devices: the same bits, and always an end."""

import os
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from calib_jax import data, losses, train
from calib_jax.core.examples import Draw, Examples
from calib_jax.core.statistics import Joint, Rows
from calib_jax.train import feeds, ordering, pmap
from tests.data import tiny_imagenet2012
from tests.memory import resident_bytes
from tests.train import tasks

OBJECTIVE = losses.objective("recall", alpha=0.5)
OPTIONS = {"validation_per_class": 2, "size": 16, "resize": 16}
ONE = train.local_devices(1)


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


class Numbers:
    """A source whose examples are their numbers, and whose random views tell the draw."""

    def __init__(self, size, wait=lambda index: None):
        self.size, self.wait, self.seen = size, wait, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self._read(index, np.zeros((len(index), 2)))

    def drawn(self, index, draw):
        return self._read(index, np.tile([draw.seed, draw.epoch], (len(index), 1)))

    def _read(self, index, draws):
        self.wait(index)
        self.seen.extend(index.tolist())
        inputs = np.concatenate([index[:, None], draws], axis=1)
        return Examples(inputs.astype(np.float32), (index % 5).astype(np.int32))


def echo(state, batch):
    """A step that trains nothing and tells what it was given."""
    return state, {"inputs": batch.inputs, "index": batch.index, "weights": batch.weights}


def read_through(run_steps, order, cuts, draw):
    """Everything that comes, where the order is begun anew at every cut."""
    state = train.replicate(tasks.state_of(OBJECTIVE), ONE)
    result = []
    for start, stop in zip([0, *cuts], [*cuts, order.num_steps], strict=True):
        state, read = run_steps(state, train.Order(*order), draw, start, stop)
        result.append(read())
    return jax.tree.map(lambda *parts: np.concatenate(parts), *result)


def reading():
    """Threads of a stream."""
    return [t.name for t in threading.enumerate() if t.name.startswith(("batches", "reading"))]


# --------------------------------------------------------------------------------------------
# Orders.


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
    dealt = pmap.rows_of_devices(np.arange(12), num_devices=2, accumulate=3, axis=0)
    assert dealt.tolist() == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(train.shuffled(20, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert tuple(train.shuffled(20, 1, 0)) == tuple(train.shuffled(20, 1, 0))


@pytest.mark.parametrize(("accumulate", "local"), [(1, 1), (1, 2), (2, 1), (3, 2)])
def test_three_processes_together_read_the_whole(accumulate, local):
    numbers = train.shuffled(50, seed=0, epoch=0)
    order = train.in_batches(numbers, 20, multiple=3 * local, accumulate=accumulate)
    shards = [ordering.of_process(order, p, 3, accumulate=accumulate) for p in range(3)]
    for step in range(order.num_steps):
        whole = pmap.rows_of_devices(order.examples[step], 3 * local, accumulate, 0)
        parts = [
            pmap.rows_of_devices(shard.examples[step], local, accumulate, 0) for shard in shards
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    seen = np.concatenate([shard.examples[shard.weights > 0] for shard in shards])
    assert sorted(seen.tolist()) == list(range(50))


# --------------------------------------------------------------------------------------------
# Both feeds.


@pytest.mark.parametrize("num_devices", [1, 4])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_streamed_is_resident(num_devices, accumulate, x64):
    source = tasks.examples(22)
    arguments = dict(num_devices=num_devices, steps=6, batch_size=8, accumulate=accumulate)
    resident, measured = tasks.trained(OBJECTIVE, source, **arguments)
    streamed, result = tasks.trained(OBJECTIVE, OnDisk(source), feed=train.Streamed, **arguments)
    for a, b in zip(*map(jax.tree.leaves, map(train.first, (resident, streamed))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    for key, values in measured.items():
        np.testing.assert_allclose(values, result[key], rtol=1e-12)


def test_small_arrays_move_to_the_device_and_others_stream():
    source = tasks.examples(22)
    assert isinstance(train.feed(source, ONE), train.Resident)
    assert isinstance(train.feed(source, ONE, resident_bytes=10), train.Streamed)
    assert isinstance(train.feed(OnDisk(source), ONE), train.Streamed)
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        train.feed(Numbers(4), ONE, threads=0)


def test_an_epoch_may_begin_in_its_middle():
    source = OnDisk(tasks.examples(20))
    order = train.in_batches(np.arange(20), 5)
    state = train.replicate(tasks.state_of(OBJECTIVE), ONE)
    train.Streamed(source, ONE).training(echo)(state, order, None, 2, 4)
    assert sorted(np.concatenate(source.read).tolist()) == list(range(10, 20))


def test_the_step_is_traced_once_and_the_state_is_donated():
    traced = []

    def forward(*args, **options):
        traced.append(1)
        return tasks.forward(*args, **options)

    two = train.local_devices(2)
    step = train.make_train_step(forward, OBJECTIVE, tasks.sgd(), axis_name=train.AXIS)
    run_steps = train.Resident(tasks.examples(20), two).training(step)
    state = train.replicate(tasks.state_of(OBJECTIVE), two)
    counts = []
    for epoch in range(3):
        before = state
        order = train.in_batches(train.shuffled(20, 0, epoch), 4, multiple=2)
        for start, stop in ((0, 1), (1, 4), (4, 5)):
            state, _ = run_steps(state, order, None, start, stop)
        jax.block_until_ready(state)
        counts.append(len(traced))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert counts[0] == counts[-1]


def test_what_comes_to_the_host_is_not_a_view_of_the_device():
    state = train.replicate(np.ones(1000, np.float32), ONE)
    double = train.data_parallel(lambda x: 2 * x, ONE, donate=(0,))
    host = train.first(state)
    jax.block_until_ready(double(state))
    assert (host == 1).all()


def test_devices_are_checked():
    with pytest.raises(ValueError, match=r"there are \d+ devices, so 99 cannot be used"):
        train.local_devices(99)
    devices = train.local_devices(3)
    same = train.replicate({"a": np.ones(2), "b": np.zeros(2)}, devices)
    assert tasks.differing(same) == []
    other = train.split({"a": np.ones((3, 2)), "b": np.arange(3.0)}, devices)
    assert tasks.differing(other) == ["b"]
    with pytest.raises(ValueError, match="needs a leading axis over the 3 devices, got the shape"):
        train.split(np.ones(4), devices)


# --------------------------------------------------------------------------------------------
# Streams.


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    tiny_imagenet2012.folders(folder)
    return data.named("imagenet", data_dir=str(folder), **OPTIONS)


def test_a_stream_goes_on_where_it_was_stopped(photographs):
    """Ten times at random, element for element, with the random views of the epoch."""
    order = train.in_batches(train.shuffled(18, seed=4, epoch=2), 4)
    run_steps = train.Streamed(photographs.train, ONE, threads=3).training(echo)
    whole = read_through(run_steps, order, [], Draw(4, 2))
    expected = photographs.train.drawn(order.examples.reshape(-1), Draw(4, 2)).inputs
    np.testing.assert_array_equal(whole["inputs"].reshape(expected.shape), expected)
    for cut in np.random.default_rng(0).integers(1, order.num_steps, 10).tolist():
        again = read_through(run_steps, order, [cut], Draw(4, 2))
        assert jax.tree.all(jax.tree.map(np.array_equal, again, whole))
    other = read_through(run_steps, order, [], Draw(4, 3))
    assert np.array_equal(other["index"], whole["index"])
    assert not np.array_equal(other["inputs"], whole["inputs"])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_what_comes(threads):
    big = train.in_batches(np.arange(100), 40)  # in pieces, which are ready in another order
    late = Numbers(100, wait=lambda index: time.sleep(0.002 * (index[0] % 16 < 8)))
    seen = list(feeds.read_ahead(late, big, draw=Draw(1, 2), threads=threads))
    values = np.concatenate([part.inputs for part in seen])
    np.testing.assert_array_equal(values[:, 0], big.examples.reshape(-1))
    assert (values[:, 1:] == [1, 2]).all()


def test_training_is_drawn_and_evaluation_is_not():
    fed = train.feed(Numbers(10), ONE, threads=2)

    def everything(state, batch):
        return Joint({"all": Rows({"inputs": batch.inputs, "weights": batch.weights})})

    rows = fed.evaluation(everything, 4)(train.replicate(np.zeros(1), ONE))["all"]
    real = rows["inputs"][rows["weights"] > 0]
    np.testing.assert_array_equal(real, np.stack([np.arange(10), *np.zeros((2, 10))], axis=1))
    order = train.in_batches(np.arange(10), 5)
    seen = read_through(fed.training(echo), order, [], Draw(6, 7))["inputs"]
    assert (seen[..., 1:] == [6, 7]).all()
    assert sorted(seen[..., 0].reshape(-1)) == list(range(10))


def test_a_process_reads_its_own_rows_only(monkeypatch):
    """As if each of three devices belonged to another process."""
    order = train.in_batches(train.shuffled(24, 0, 0), 6, multiple=3)
    devices, read = train.local_devices(3), []
    for process in range(3):
        source = Numbers(24)
        own = [devices[process]]
        monkeypatch.setattr(feeds, "of_this_process", lambda devices, own=own: own)
        batches = train.Streamed(source, devices)._batches(order, None)
        assert sum(batch.inputs.shape[1] for batch in batches) == 8
        assert len(source.seen) == 8
        read += source.seen
    assert sorted(read) == list(range(24))


def test_few_batches_are_read_ahead_and_closing_ends_the_threads():
    source = Numbers(1000)
    order = train.in_batches(np.arange(1000), 10)
    stream = feeds.batches(source, order, ONE, threads=4)
    # The batch of the caller, those on the devices, and those that are being read.
    most = 1 + feeds.BATCHES_AHEAD + feeds.BATCHES_READ_AHEAD
    for taken in range(3):
        next(stream)
        before = -1
        while before < len(source.seen):  # until nothing more is read
            before = len(source.seen)
            time.sleep(0.05)
        assert before <= 10 * (taken + most)
    assert reading()
    stream.close()
    assert not reading()


def test_memory_does_not_grow():
    """By more than the batches that are ahead; on the heap it would be twice that, in holes."""

    class Large(Numbers):
        def _read(self, index, draws):
            images = np.full((len(index), 256, 256, 3), 1, np.uint8)
            return Examples(images, np.zeros(len(index), np.int32))

    order = train.in_batches(np.arange(32 * 60), 32)
    batch = 32 * 256 * 256 * 3
    before, after = resident_bytes(), []
    for _ in feeds.batches(Large(len(order.examples)), order, ONE, threads=2):
        after.append(resident_bytes())
    assert max(after) - before < 9 * batch


def test_the_first_error_of_the_order_is_raised_and_everything_ends():
    def fail(index):
        time.sleep(0.02 * (index[0] < 50))  # the later one is met first
        for number in {33, 77} & {*index.tolist()}:
            raise ValueError(f"example {number} is bad")

    order = train.in_batches(np.arange(100), 40)
    stream = feeds.batches(Numbers(100, fail), order, ONE, threads=8)
    with pytest.raises(ValueError, match="example 33 is bad"):
        list(stream)
    assert not reading()


class OtherRows(Numbers):
    """A source that returns other rows than those it is asked for, from example 8 on."""

    def __init__(self, change):
        super().__init__(20)
        self.change = change

    def __getitem__(self, index):
        examples = super().__getitem__(index)
        return self.change(examples) if index.min() >= 8 else examples


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e._replace(labels=e.labels[:1]), r"a row for each of the 8 numbers.*\(1,\)"),
        (lambda e: e._replace(inputs=e.inputs[:, :1]), r"float32 \[n, 1\] beside float32 \[n, 3\]"),
        (lambda e: e._replace(inputs=e.inputs.astype(int)), r"int64 \[n, 3\] beside float32"),
        (lambda e: e._replace(weights=np.ones(8)), r"float64 \[n\] beside nothing in \.weights"),
    ],
)
def test_rows_that_would_be_repeated_or_rounded_are_refused(change, message):
    order = ordering.in_batches(np.arange(16), 16)
    with pytest.raises((TypeError, ValueError), match=message):
        list(feeds.read_ahead(OtherRows(change), order))


PROGRAM = """
import signal, sys, time
import numpy as np
from calib_jax import train
from calib_jax.core.examples import Examples
from calib_jax.train import feeds

class Slow:
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        time.sleep(0.05)
        return Examples(index, index)

order = train.in_batches(np.arange(10_000), 50)
stream = feeds.batches(Slow(), order, train.local_devices(1), threads=2)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
next(stream)
print("reading", flush=True)
time.sleep(60)
"""


def test_ctrl_c_elsewhere_ends_the_process():
    """Also while the stream is still held, and its threads are at work."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XLA_FLAGS": ""},
    ) as process:
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        _, error_output = process.communicate(timeout=20)
    assert error_output.strip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
