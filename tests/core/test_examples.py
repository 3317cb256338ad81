"""Examples in memory, the weights of their labels, and sources that are read."""

import numpy as np
import pytest

from calib_jax.core import examples
from calib_jax.core.examples import Draw, Examples, InMemory
from tests.test_doctests import docstrings_of

LABELS = np.array([[0, 1], [2, 0], [1, 1]])
INPUTS = {"image": np.ones((3, 4, 5), np.float32), "length": np.arange(3.0)}


class Views(InMemory):
    """A source with random views: here the draw itself."""

    def drawn(self, index, draw):
        return Examples(np.stack([[draw.seed, draw.epoch, draw.copy]] * len(index)), index)


def test_arrays_in_memory():
    source = InMemory(INPUTS, LABELS, np.array([1.0, 0, 2]))
    assert len(source) == 3
    assert source.nbytes == 4 * 60 + 8 * 3 + 8 * 6 + 8 * 3
    inputs, labels, weights = source[np.array([2, 0])]
    assert inputs["image"].shape == (2, 4, 5)
    assert inputs["length"].tolist() == [2, 0]
    assert labels.tolist() == [[1, 1], [0, 1]]
    assert weights.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("weights", "mask"),
    [
        (None, [[1, 1], [1, 1], [1, 1]]),
        ([0.5, 0, 1], [[1, 1], [0, 0], [1, 1]]),
        ([[0.5, 0], [0, 1], [0, 3]], [[1, 0], [0, 1], [0, 1]]),
    ],
)
def test_a_weight_of_a_row_or_of_each_label_marks_the_labels(weights, mask):
    weights = None if weights is None else np.array(weights)
    _, actual = examples.weighted_labels(InMemory(INPUTS, LABELS, weights))
    np.testing.assert_array_equal(actual, np.array(mask, bool))


def test_a_draw_is_read_from_a_source_with_views_alone():
    index = np.array([2, 0])
    stored, views = InMemory(LABELS, LABELS[:, 0]), Views(LABELS, LABELS[:, 0])
    for source, draw in ((stored, None), (stored, Draw(7, 3)), (views, None)):
        np.testing.assert_array_equal(examples.read(source, index, draw).inputs, LABELS[index])
    np.testing.assert_array_equal(examples.read(views, index, Draw(7, 3)).inputs, [[7, 3, 0]] * 2)


test_docstring = docstrings_of("core")
