"""Streams: exact wherever they are stopped, whoever reads them, and always at an end."""

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
from calib_jax.train.devices import parallel
from calib_jax.train.feeds import ordering, prefetching
from tests.data import tiny_imagenet2012
from tests.memory import resident_bytes
from tests.train import tasks

OBJECTIVE = losses.objective("cross_entropy")
OPTIONS = {"validation_per_class": 2, "size": 16, "resize": 16}


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


ONE = train.Arrangement(train.local_devices(1))


def echo(state, batch):
    """A step that trains nothing and tells what it was given."""
    return state, {"inputs": batch.inputs, "index": batch.index, "weights": batch.weights}


def read_through(runner, order, cuts, draw):
    """Everything that comes, where a new stream begins at every cut."""
    states = ONE.place([tasks.state_of(OBJECTIVE)])
    result = []
    for start, stop in zip([0, *cuts], [*cuts, order.num_steps], strict=True):
        runner.begin(order, start, draw)
        states, measured = runner(states, [start], [stop])
        result += runner.measured_in(measured, [start], [stop])
    return jax.tree.map(lambda *parts: np.concatenate(parts), *result)


def reading():
    """Threads of a stream."""
    return [t.name for t in threading.enumerate() if t.name.startswith(("batches", "reading"))]


# --------------------------------------------------------------------------------------------
# What comes.


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    tiny_imagenet2012.folders(folder)
    return data.named("imagenet", data_dir=str(folder), **OPTIONS)


def test_a_stream_goes_on_where_it_was_stopped(photographs):
    """Ten times at random, element for element, with the random views of the epoch."""
    order = train.in_batches(train.shuffled(18, seed=4, epoch=2), 4)
    runner = train.Streamed(photographs.train, ONE, threads=3).training(echo)
    whole = read_through(runner, order, [], Draw(4, 2))
    expected = photographs.train.drawn(order.examples.reshape(-1), Draw(4, 2)).inputs
    np.testing.assert_array_equal(whole["inputs"].reshape(expected.shape), expected)
    for cut in np.random.default_rng(0).integers(1, order.num_steps, 10).tolist():
        again = read_through(runner, order, [cut], Draw(4, 2))
        assert jax.tree.all(jax.tree.map(np.array_equal, again, whole))
    other = read_through(runner, order, [], Draw(4, 3))
    assert np.array_equal(other["index"], whole["index"])
    assert not np.array_equal(other["inputs"], whole["inputs"])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_do_not_change_what_comes(photographs, threads):
    order = train.in_batches(np.arange(12), 5)
    seen = list(prefetching.read_ahead(photographs.test, order, threads=threads))
    for result, index in zip(seen, order.examples, strict=True):
        assert jax.tree.all(jax.tree.map(np.array_equal, result, photographs.test[index]))
    big = train.in_batches(np.arange(100), 40)  # in pieces, which are ready in another order
    late = Numbers(100, wait=lambda index: time.sleep(0.002 * (index[0] % 16 < 8)))
    seen = list(prefetching.read_ahead(late, big, draw=Draw(1, 2), threads=threads))
    values = np.concatenate([part.inputs for part in seen])
    np.testing.assert_array_equal(values[:, 0], big.examples.reshape(-1))
    assert (values[:, 1:] == [1, 2]).all()


def test_training_is_drawn_and_evaluation_is_not():
    class Everything:
        @staticmethod
        def stat(batch):
            return Joint({"all": Rows({"inputs": batch.inputs, "weights": batch.weights})})

    fed = train.feed(Numbers(10), ONE, threads=2)
    assert isinstance(fed, train.Streamed)
    evaluate = fed.evaluation(lambda state, batch: Everything.stat(batch), 4)
    (result,) = evaluate(ONE.place([tasks.state_of(OBJECTIVE)]), [True])
    rows = result["all"]
    real = rows["inputs"][rows["weights"] > 0]
    np.testing.assert_array_equal(real, np.stack([np.arange(10), *np.zeros((2, 10))], axis=1))
    order = train.in_batches(np.arange(10), 5)
    seen = read_through(fed.training(echo), order, [], Draw(6, 7))["inputs"]
    assert (seen[..., 1:] == [6, 7]).all()
    assert sorted(seen[..., 0].reshape(-1)) == list(range(10))


@pytest.mark.parametrize(("accumulate", "local"), [(1, 1), (1, 2), (2, 1), (3, 2)])
def test_three_processes_together_read_the_whole(accumulate, local):
    numbers = train.shuffled(50, seed=0, epoch=0)
    order = train.in_batches(numbers, 20, multiple=3 * local, accumulate=accumulate)
    shards = [ordering.of_process(order, p, 3, accumulate=accumulate) for p in range(3)]
    for step in range(order.num_steps):
        whole = parallel.rows_of_devices(order.examples[step], 3 * local, accumulate, 0)
        parts = [
            parallel.rows_of_devices(shard.examples[step], local, accumulate, 0) for shard in shards
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    # Nothing is left out and nothing comes twice.
    seen = np.concatenate([shard.examples[shard.weights > 0] for shard in shards])
    assert sorted(seen.tolist()) == list(range(50))


def test_a_process_reads_its_own_rows_only():
    """As if each of three devices belonged to another process."""
    order = train.in_batches(train.shuffled(24, 0, 0), 6, multiple=3)
    read = []
    for process in range(3):
        source, three = Numbers(24), train.Arrangement(train.local_devices(3))
        vars(three)["local"] = three.devices[process : process + 1]
        batches = train.Streamed(source, three)._batches(order, None)
        assert sum(batch.inputs.shape[1] for batch in batches) == 8
        assert len(source.seen) == 8
        read += source.seen
    assert sorted(read) == list(range(24))


def test_feeds_that_cannot_run_are_refused():
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        train.feed(Numbers(4), ONE, threads=0)
    side_by_side = train.Arrangement(train.local_devices(1), 2, "vmap")
    with pytest.raises(ValueError, match="over='vmap' needs resident examples"):
        train.feed(Numbers(4), side_by_side)


# --------------------------------------------------------------------------------------------
# What is kept in memory, and how it ends.


def test_few_batches_are_read_ahead():
    source = Numbers(1000)
    order = train.in_batches(np.arange(1000), 10)
    stream = prefetching.batches(source, order, train.local_devices(1), threads=4)
    # The batch of the caller, those on the devices, and those that are being read.
    most = 1 + prefetching.BATCHES_AHEAD + prefetching.BATCHES_READ_AHEAD
    for taken in range(3):
        next(stream)
        before = -1
        while before < len(source.seen):  # until nothing more is read
            before = len(source.seen)
            time.sleep(0.05)
        assert before <= 10 * (taken + most)
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
    source, devices = Large(len(order.examples)), train.local_devices(1)
    for _ in prefetching.batches(source, order, devices, threads=2):
        after.append(resident_bytes())
    assert max(after) - before < 9 * batch


def test_the_first_error_of_the_order_is_raised_and_everything_ends():
    def fail(index):
        time.sleep(0.02 * (index[0] < 50))  # the later one is met first
        for number in {33, 77} & {*index.tolist()}:
            raise ValueError(f"example {number} is bad")

    order = train.in_batches(np.arange(100), 40)
    stream = prefetching.batches(Numbers(100, fail), order, train.local_devices(1), threads=8)
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
        (lambda e: e._replace(inputs=e.inputs[:1]), r"a row for each of the 8 numbers.*\(1, 3\)"),
        (lambda e: e._replace(labels=e.labels[:1]), r"a row for each of the 8 numbers.*\(1,\)"),
        (lambda e: Examples(e.inputs[0], e.labels[0]), "a row for each of the 8 numbers"),
        (lambda e: e._replace(inputs=e.inputs[:, :1]), r"float32 \[n, 1\] beside float32 \[n, 3\]"),
        (lambda e: e._replace(inputs=e.inputs + 0.5j), r"complex64 \[n, 3\] beside float32"),
        (lambda e: e._replace(inputs=e.inputs.astype(int)), r"int64 \[n, 3\] beside float32"),
        (lambda e: e._replace(weights=np.ones(8)), r"float64 \[n\] beside nothing in \.weights"),
    ],
)
def test_rows_that_would_be_repeated_or_rounded_are_refused(change, message):
    order = ordering.in_batches(np.arange(16), 16)
    with pytest.raises((TypeError, ValueError), match=message):
        list(prefetching.read_ahead(OtherRows(change), order))


def test_ctrl_c_while_waiting_ends_the_stream():
    # Where the tests run in the background, Python leaves SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    stopped = threading.Event()

    def slow(index):
        stopped.wait(0.3)

    order = train.in_batches(np.arange(1000), 10)
    stream = prefetching.batches(Numbers(1000, slow), order, train.local_devices(1), threads=1)
    main = threading.main_thread().ident
    threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    finally:
        signal.signal(signal.SIGINT, before)
    stopped.set()
    assert not reading()


PROGRAM = """
import signal, sys, time
import numpy as np
from calib_jax import train
from calib_jax.core.examples import Examples
from calib_jax.train.feeds import prefetching

class Slow:
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        time.sleep(0.05)
        return Examples(index, index)

order = train.in_batches(np.arange(10_000), 50)
stream = prefetching.batches(Slow(), order, train.local_devices(1), threads=2)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
next(stream)
print("reading", flush=True)
time.sleep(60)
"""


def test_ctrl_c_elsewhere_ends_the_process():
    """Also while the stream is still held, and its threads are at work."""
    environment = os.environ | {"XLA_FLAGS": ""}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        _, error_output = process.communicate(timeout=20)
    assert error_output.strip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
