"""Orders, and the two ways that examples reach the devices: the same bits, and always an end."""

import threading
import time
from collections import Counter

import jax
import numpy as np
import pytest
from scipy import stats

from calib_jax import data, losses, train
from calib_jax.core.examples import Draw, Examples
from calib_jax.train import feeds
from tests.data import tiny_photographs
from tests.train import tasks

LABELS = np.repeat([0, 2, 3, 4], [16, 9, 4, 1])  # no example of class 1
OBJECTIVE = losses.objective("recall", alpha=0.5)
OPTIONS = {"validation_per_class": 2, "size": 16, "resize": 16}
ONE = train.local_devices(1)


class Numbers:
    """A source whose examples are their numbers, and whose random views tell the draw."""

    def __init__(self, size, wait=lambda index: None):
        self.size, self.wait, self.seen = size, wait, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self._read(index, np.full((len(index), 3), -1))

    def drawn(self, index, draw):
        return self._read(index, np.tile([*draw], (len(index), 1)))

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
    return [t.name for t in threading.enumerate() if t.name.startswith("reading")]


# --------------------------------------------------------------------------------------------
# Orders.


def test_the_last_batch_can_be_dropped():
    order = train.in_batches(np.arange(10), 4, drop_last=True)
    assert order.examples.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="batch_size=4 leaves no batch of 3 examples"):
        train.in_batches(np.arange(3), 4, drop_last=True)


def test_every_device_has_its_share_of_each_part():
    parts = train.in_batches(np.arange(12), 12, multiple=2, accumulate=3)
    shares = feeds.shares(parts, train.local_devices(2), accumulate=3)
    assert shares.examples.tolist() == [[[0, 1, 4, 5, 8, 9]], [[2, 3, 6, 7, 10, 11]]]


@pytest.mark.parametrize("sampled", [False, True])
def test_epochs_and_seeds_have_orders_of_their_own(sampled):
    def order(seed, epoch):
        if sampled:
            return tuple(train.class_balanced(LABELS)(seed, epoch))
        return tuple(train.shuffled(30, seed, epoch))

    assert len({order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert order(1, 2) == order(1, 2)
    assert len(order(1, 2)) == len(LABELS)


# --------------------------------------------------------------------------------------------
# Class-balanced sampling, with copies.


@pytest.mark.parametrize(
    ("power", "shares"),
    [
        (0.0, [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        (0.5, [0.4, 0.3, 0.2, 0.1]),
        (1.0, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
    ],
)
def test_classes_have_the_frequencies_of_the_formula(power, shares):
    shuffle = np.random.default_rng(0).permutation(len(LABELS))
    labels = LABELS[shuffle]
    order = train.class_balanced(labels, power=power, num_samples=40_000)(7, 3)
    by_class = np.bincount(labels[order], minlength=5)
    assert by_class[1] == 0
    assert stats.chisquare(by_class[[0, 2, 3, 4]], 40_000 * np.array(shares)).pvalue > 1e-4
    by_example = np.bincount(order, minlength=len(labels))
    for k in (0, 2, 3):  # the examples of a class are equally frequent
        assert stats.chisquare(by_example[labels == k]).pvalue > 1e-4


def test_absent_examples_are_never_sampled():
    present = np.arange(len(LABELS)) % 3 > 0
    order = train.class_balanced(LABELS, present, num_samples=500)(0, 0)
    assert set(order.tolist()) == set(np.flatnonzero(present).tolist())
    by_class = np.bincount(LABELS[order], minlength=5)[np.unique(LABELS[present])]
    assert stats.chisquare(by_class).pvalue > 1e-4


@pytest.mark.parametrize(("multiple", "accumulate"), [(1, 1), (4, 1), (2, 3)])
def test_copies_are_numbered_in_training_order(multiple, accumulate):
    numbers = train.class_balanced(LABELS)(0, 0)
    order = train.in_batches(numbers, 8, multiple=multiple, accumulate=accumulate)
    real = order.weights > 0
    np.testing.assert_array_equal(order.examples[real], numbers)
    seen, expected = Counter(), []
    for number in numbers.tolist():
        expected.append(seen[number])
        seen[number] += 1
    assert max(expected) > 2
    assert order.copies[real].tolist() == expected
    keys = order.keys(len(LABELS))[real]
    assert len(set(keys.tolist())) == len(numbers)
    assert (keys % len(LABELS) == numbers).all()
    once = train.in_batches(train.shuffled(30, 0, 0), 8, multiple=multiple, accumulate=accumulate)
    np.testing.assert_array_equal(once.keys(30), once.examples)
    # Every example is there once, in batches of 8, and the padding of each is example 0.
    present = once.weights > 0
    assert present.sum(axis=1).tolist() == [8, 8, 8, 6]
    assert sorted(once.examples[present].tolist()) == list(range(30))
    assert set(once.weights.ravel().tolist()) <= {0.0, 1.0}
    assert not once.examples[~present].any()


def test_the_copies_of_an_example_are_augmented_separately():
    """Resident and streamed; the copies of one batch included."""
    source = tasks.examples(4)
    order = train.in_batches(np.array([2, 2, 0, 2, 2, 1]), 3)
    step = lambda state, batch: (state, {"key": batch.index})  # noqa: E731
    for feed in (train.Resident, train.Streamed):
        state = train.replicate(tasks.state_of(OBJECTIVE), ONE)
        _, read = feed(source, ONE).training(step)(state, order, None, 0, 2)
        assert read()["key"].tolist() == [[2, 6, 0], [10, 14, 1]]


def test_the_copies_of_an_example_have_views_of_their_own():
    order = train.in_batches(train.class_balanced(LABELS, num_samples=50)(0, 0), 20)
    run_steps = train.Streamed(Numbers(30), ONE, threads=3).training(echo)
    seen = read_through(run_steps, order, [], Draw(0, 0))["inputs"]
    np.testing.assert_array_equal(seen[..., 0], order.examples)
    np.testing.assert_array_equal(seen[..., 3], order.copies)
    assert order.copies.max() > 2
    plain = read_through(run_steps, order, [], None)["inputs"]
    assert (plain[..., 1:] == -1).all()


# --------------------------------------------------------------------------------------------
# Both feeds.


def test_streamed_is_resident(x64):
    source = tasks.examples(22)
    arguments = dict(num_devices=4, steps=6, batch_size=8, accumulate=2)
    resident, measured = tasks.trained(OBJECTIVE, source, **arguments)
    streamed, result = tasks.trained(
        OBJECTIVE, tasks.OnDisk(source), feed=train.Streamed, **arguments
    )
    for a, b in zip(*map(jax.tree.leaves, map(train.first, (resident, streamed))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    for key, values in measured.items():
        np.testing.assert_allclose(values, result[key], rtol=1e-12)


# --------------------------------------------------------------------------------------------
# Streams.


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenet")
    tiny_photographs.folders(folder)
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
    big = train.in_batches(np.arange(100), 10)  # in batches, which are ready in another order
    late = Numbers(100, wait=lambda index: time.sleep(0.002 * (index[0] % 16 < 8)))
    run_steps = train.Streamed(late, ONE, threads=threads).training(echo)
    values = read_through(run_steps, big, [], Draw(1, 2))["inputs"].reshape(-1, 4)
    np.testing.assert_array_equal(values[:, 0], big.examples.reshape(-1))
    assert (values[:, 1:] == [1, 2, 0]).all()


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


def test_the_first_error_of_the_order_is_raised_and_everything_ends():
    def fail(index):
        time.sleep(0.02 * (index[0] < 50))  # the later one is met first
        for number in {33, 77} & {*index.tolist()}:
            raise ValueError(f"example {number} is bad")

    order = train.in_batches(np.arange(100), 40)
    run_steps = train.Streamed(Numbers(100, fail), ONE, threads=8).training(echo)
    with pytest.raises(ValueError, match="example 33 is bad"):
        read_through(run_steps, order, [], Draw(0, 0))
    assert not reading()


def test_a_stream_goes_on_once_its_examples_can_be_read():
    """At the step where it stopped, by the same program, as after a network drive came back."""
    broken = []
    source = Numbers(12, lambda index: broken and 1 / 0)
    order, state = (
        train.in_batches(np.arange(12), 2),
        train.replicate(tasks.state_of(OBJECTIVE), ONE),
    )
    run_steps = train.Streamed(source, ONE, threads=1).training(echo)
    state, _ = run_steps(state, order, None, 0, 1)
    broken.append(True)
    with pytest.raises(ZeroDivisionError):
        run_steps(state, order, None, 1, 6)
    broken.clear()
    state = train.replicate(tasks.state_of(OBJECTIVE), ONE)
    _, read = run_steps(state, order, None, 1, 6)
    assert read()["index"].ravel().tolist() == [*range(2, 12)]
