"""What `experiments.data --show` prints, read back."""

import numpy as np
import pytest

from calib_jax import data
from calib_jax.core.examples import InMemory
from calib_jax.data.text.subwords import Subwords
from calib_jax.data.text.trees import padded, parse_tree
from calib_jax.data.text.vocabulary import Vocabulary
from experiments.reports import shown_examples
from tests.experiments.processes import finish, refused


def described(inputs, labels, weights=None, vocabulary=None, names=("bad", "so so", "good")):
    """The lines of the second example, without the spaces at their ends."""
    source = InMemory(inputs, labels, weights)
    dataset = data.Dataset(
        name="own",
        class_names=names,
        train=source,
        validation=source,
        test=source,
        description="",
        vocabulary=vocabulary,
    )
    return shown_examples.described(dataset, source[np.array([1])])


@pytest.mark.parametrize("words", [3, 4])
def test_a_tree_is_written_as_it_was_read(words):
    known = Vocabulary(("not", "very", "good"))
    trees = [parse_tree(line) for line in ("(1 good)", "(0 (1 not) (2 (1 very) (2 good)))")]
    arrays = padded(trees, words)
    numbers = np.zeros((2, words), np.int32)
    numbers[0, :1], numbers[1, :3] = 3, (1, 2, 3)
    inputs = {"children": arrays.children, "words": numbers}
    weights = arrays.labeled.astype(np.float32)
    lines = described(inputs, arrays.labels, weights, known)
    assert "            not very good" in lines
    assert f"  labels    int32 [{2 * words - 1}], 5 with weight" in lines
    assert lines[-1] == "  tree      (bad (so so not) (good (so so very) (good good)))"
    weights[1] = np.arange(2 * words - 1) == arrays.root[1]  # the root's label alone
    assert (
        described(inputs, arrays.labels, weights, known)[-1] == "  tree      (bad not (very good))"
    )
    first = {name: array[::-1] for name, array in inputs.items()}
    lines = described(first, arrays.labels[::-1], arrays.labeled[::-1], known)
    assert lines[-1] == "  tree      (so so good)"


def test_a_translation_shows_its_pieces_and_no_padding():
    pieces = Subwords.of(["ab"], 7)
    numbers = {piece: number for number, piece in enumerate(pieces.pieces)}
    begin, end, a = numbers["<begin>"], numbers["<end>"], numbers["a"]
    source = np.array([[a, end, 0], [a, a, end]], np.int32)
    target = np.array([[begin, a, 0], [begin, a, 0]], np.int32)
    labels = np.array([[a, end, 0], [a, end, 0]], np.int32)
    lines = described(
        {"source": source, "target": target}, labels, labels > 0, pieces, pieces.pieces
    )
    assert lines[1::2] == ["            a a <end>", "            <begin> a", "            a <end>"]


def test_pixels_are_counted_and_void_is_left_out():
    images = np.stack([np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 7, np.uint8)])
    labels = np.array([[[0, 0], [0, 0]], [[2, 2], [9, 0]]], np.int32)
    assert described(images, labels, (labels < 3).astype(np.float32)) == [
        "  input     uint8 [2, 2, 3]",
        "            values 7 to 7",
        "  labels    int32 [2, 2], 3 with weight",
        "            good 66.7%, bad 33.3%",
    ]
    whole = described(images, np.minimum(labels, 2), np.ones(2, np.float32))
    assert whole[2] == "  labels    int32 [2, 2], 4 with weight"


def test_the_binary_shows_an_example_of_each_part():
    output = finish("data", "--show=digits", "--example=400")
    lines = output.splitlines()
    label = data.digits().train.labels[400]
    assert lines[lines.index("train, example 400 of 500") + 3] == f"  label     {label}"
    assert "validation: has 297 examples, numbered from 0" in lines
    output = refused("data", "--show=digit")
    assert output == "error: no data set is called 'digit'; did you mean 'digits'?\n"
    output = refused("data", "--show=digits", "--example=1000")
    assert output == "error: --example=1000 is in no part of digits: give at most 999.\n"
