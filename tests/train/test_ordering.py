"""Orders of examples: class-balanced sampling, its frequencies, its copies, and resumed runs."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from calib_jax import losses, train
from calib_jax.core.examples import Draw, Examples
from calib_jax.train import feeds
from tests.train import tasks

LABELS = np.repeat([0, 2, 3, 4], [16, 9, 4, 1])  # no example of class 1
OBJECTIVE = losses.objective("cross_entropy")


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


def test_seeds_and_epochs_sample_independently():
    sample = train.class_balanced(LABELS)
    orders = {tuple(sample(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert len(sample(0, 0)) == len(LABELS)
    np.testing.assert_array_equal(sample(1, 2), train.class_balanced(LABELS)(1, 2))


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


def test_the_copies_of_an_example_are_augmented_separately():
    """Resident and streamed; the copies of one batch included."""
    source = tasks.examples(4)
    order = train.in_batches(np.array([2, 2, 0, 2, 2, 1]), 3)
    one = train.local_devices(1)
    step = lambda state, batch: (state, {"key": batch.index})  # noqa: E731
    for feed in (train.Resident, train.Streamed):
        state = train.replicate(tasks.state_of(OBJECTIVE), one)
        _, read = feed(source, one).training(step)(state, order, None, 0, 2)
        assert read()["key"].tolist() == [[2, 6, 0], [10, 14, 1]]


class Views:
    """A source whose inputs are the number of the example, and of the copy of a random view."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return Examples(np.stack([index, -np.ones_like(index)], 1), index)

    def drawn(self, index, draw):
        return Examples(np.stack([index, np.full_like(index, draw.copy)], 1), index)


def test_the_copies_of_an_example_have_views_of_their_own():
    order = train.in_batches(train.class_balanced(LABELS, num_samples=50)(0, 0), 20)
    read = list(feeds.read_ahead(Views(), order, draw=Draw(0, 0), threads=3))
    for batch, numbers, copies in zip(read, order.examples, order.copies, strict=True):
        np.testing.assert_array_equal(batch.inputs, np.stack([numbers, copies], 1))
        np.testing.assert_array_equal(batch.labels, numbers)
    assert order.copies.max() > 2
    (plain, *_) = feeds.read_ahead(Views(), order)
    assert (plain.inputs[:, 1] == -1).all()


# --------------------------------------------------------------------------------------------
# Runs.
