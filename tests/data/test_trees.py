"""Trees in brackets, the SST made of them, and what is refused by line and column."""

import gzip
import zipfile

import numpy as np
import pytest

from calib_jax import data
from calib_jax.data.text import trees
from tests.data import tiny


def recursive(line):
    """Parse a tree by recursion: (label, word) or (label, left, right)."""
    tokens = line.replace("(", " ( ").replace(")", " ) ").split()

    def node():
        assert tokens.pop(0) == "("
        label = int(tokens.pop(0))
        if tokens[0] != "(":
            word = tokens.pop(0)
            assert tokens.pop(0) == ")"
            return label, word
        left, right = node(), node()
        assert tokens.pop(0) == ")"
        return label, left, right

    return node()


def rebuilt(tree, number):
    """Write a parsed tree as `recursive` does, from a node down."""
    count = len(tree.words)
    if number < count:
        return tree.labels[number], tree.words[number]
    left, right = tree.children[number - count]
    assert max(left, right) < number
    return tree.labels[number], rebuilt(tree, left), rebuilt(tree, right)


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_is_that_of_a_recursive_parser(seed):
    line = tiny.tree(np.random.default_rng(seed), size=1 + seed)
    tree = data.parse_tree(line)
    assert rebuilt(tree, len(tree.labels) - 1) == recursive(line)
    assert len(tree.words) == 1 + seed
    assert len(tree.labels) == 2 * len(tree.words) - 1


def test_words_with_spaces_and_of_other_scripts():
    line = "(3 (2 R  ock) (4 2\xa0R) )"
    assert data.parse_tree(line).words == ("R  ock", "2\xa0R")


@pytest.mark.parametrize("end", ["\n", "\r\n", " \t\n"])
def test_white_space_at_the_ends_of_a_line_is_ignored(end):
    assert data.parse_tree(f"\t (2 a){end}") == data.parse_tree("(2 a)")
    with pytest.raises(ValueError, match="column 10: 1 bracket is not closed"):
        data.parse_tree(f" (3 (2 a){end}")
    with pytest.raises(ValueError, match="column 1: there is no tree"):
        data.parse_tree(end)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(3 (2 a) (2 b) (2 c))", "column 1: a node must hold one word or two nodes"),
        ("(3 (2 (2 a)) (2 b))", "column 4: a node must hold one word or two nodes"),
        ("(2 a (2 b))", "column 1: a node must hold one word or two nodes"),
        ("(5 a)", "column 2: the label '5' is none of 0 to 4"),
        ("(-1 a)", "column 2: the label '-1' is none"),
        ("(\u0663 a)", "column 2: the label '\u0663' is none"),
        ("3 a", "column 1: '3 a' is in no bracket"),
        ("(2 a) (2 b)", "column 7: a second tree begins"),
        ("(2 a))", "column 6: this bracket was never opened"),
        ("(3 (2 not) (1 bad)", "column 19: 1 bracket is not closed"),
        ("((", "column 2: the label '' is none"),
        ("", "column 1: there is no tree"),
    ],
)
def test_malformed_trees_are_refused_by_column(line, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        data.parse_tree(line)
    assert str(caught.value).startswith(message)


def test_padding_keeps_every_node():
    drawn = np.random.default_rng(0)
    parsed = [data.parse_tree(tiny.tree(drawn, size=size)) for size in (1, 2, 5, 9)]
    arrays = trees.padded(parsed, 9)
    assert arrays.structure["children"].shape == (4, 8, 2)
    for row, tree in enumerate(parsed):
        assert arrays.labeled[row].sum() == len(tree.labels)
        assert arrays.labels[row, arrays.root[row]] == tree.labels[-1]
        assert arrays.labeled[row, arrays.root[row]]
        np.testing.assert_array_equal(arrays.labels[row, arrays.labeled[row]], tree.labels)
        for number, pair in enumerate(arrays.structure["children"][row, : len(tree.children)]):
            assert all(arrays.labeled[row, child] and child < 9 + number for child in pair)
    with pytest.raises(ValueError, match="leaves must be at least 9, got 8"):
        trees.padded(parsed, 8)


@pytest.mark.parametrize("form", ["txt", "txt.gz", "zip"])
def test_the_sst_is_the_same_in_every_form(folder, form):
    place = tiny.sst(folder)
    expected = data.sst(data_dir=str(folder))
    names = ("train.txt", "dev.txt", "test.txt")
    if form == "zip":
        with zipfile.ZipFile(place / "trainDevTestTrees_PTB.zip", "w") as archive:
            for name in names:
                archive.write(place / name, f"trees/{name}")
    if form == "txt.gz":
        for name in names:
            (place / f"{name}.gz").write_bytes(gzip.compress((place / name).read_bytes()))
    if form != "txt":
        for name in names:
            (place / name).unlink()
    dataset = data.sst(data_dir=str(folder))
    for part in ("train", "validation", "test"):
        ours, theirs = getattr(dataset, part).examples, getattr(expected, part).examples
        np.testing.assert_array_equal(ours.inputs["words"], theirs.inputs["words"])
        np.testing.assert_array_equal(ours.weights, theirs.weights)
    assert dataset.class_names == ("negative", "neutral", "positive")


def test_training_has_every_node_and_evaluation_the_polar_roots(folder):
    place = tiny.sst(folder)
    dataset = data.sst(data_dir=str(folder))
    for part, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
        lines = (place / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        parsed = [data.parse_tree(line) for line in lines]
        polar = [tree for tree in parsed if tree.labels[-1] != 2]
        assert 0 < len(polar) < len(parsed)
        examples = getattr(dataset, part).examples
        assert len(examples.labels) == len(polar)
        nodes = [len(tree.labels) if part == "train" else 1 for tree in polar]
        np.testing.assert_array_equal(examples.weights.sum(axis=1), nodes)
        counted = examples.labels[examples.weights > 0]
        if part == "train":
            three = np.digitize(np.concatenate([tree.labels for tree in polar]), [2, 3])
            np.testing.assert_array_equal(np.bincount(counted), np.bincount(three))
        else:
            np.testing.assert_array_equal(counted, [2 * (t.labels[-1] > 2) for t in polar])


def test_words_without_a_number_or_a_vector(folder, tmp_path):
    place = tiny.sst(folder)
    with open(place / "test.txt", "a", encoding="utf-8") as file:
        file.write("(4 (2 unseen) (4 good))\n")
    vectors = tmp_path / "vectors.txt"
    data.write_vectors(vectors, {"unseen": np.full(500, 7.0)})
    everything = data.sst(data_dir=str(folder), vectors=str(vectors))
    training = data.sst(data_dir=str(folder), vocabulary="train")
    assert everything.test.inputs["words"][-1, 0] == everything.vocabulary.number_of["unseen"]
    assert training.test.inputs["words"][-1, 0] == 1
    table = everything.embedding
    assert not table[0].any()
    np.testing.assert_array_equal(table[everything.vocabulary.number_of["unseen"]], 7)
    others = np.delete(table, [0, everything.vocabulary.number_of["unseen"]], axis=0)
    assert abs(others.mean() + 0.05) < 5 * 0.05 / others.size**0.5
    assert abs(others.std() / 0.05 - 1) < 5 / (2 * others.size) ** 0.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"(4 (2 a) (4 b))\n(4 (2 a) (4 b)\n", r"dev\.txt, line 2, column 15: 1 bracket is not"),
        (b"(4 (2 a) (4 \xff))\n", r"dev\.txt, line 1, is not UTF-8"),
        (b"\n \n", r"dev\.txt holds no tree"),
    ],
)
def test_damaged_files_are_refused_by_line(folder, content, message):
    (tiny.sst(folder) / "dev.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        data.sst(data_dir=str(folder))


def test_sentences_as_word_pieces(folder):
    place = tiny.sst(folder)
    (place / "test.txt").write_text(
        "(3 (2 -LRB-) (2 good\\/bad))\n(2 a)\n(0 (2 A) (1 film))\n", encoding="utf-8"
    )
    (folder / "vocab.txt").write_text(
        "\n".join(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "a", "film", "very", "(", "/"]
        )
    )
    dataset = data.sst(data_dir=str(folder), pieces=str(folder))
    assert dataset.class_names == ("negative", "positive")
    tokens, labels = dataset.test.inputs["tokens"], dataset.test.labels
    np.testing.assert_array_equal(tokens[:, :6], [[2, 9, 4, 10, 5, 3], [2, 6, 7, 3, 0, 0]])
    np.testing.assert_array_equal(labels, [1, 0])
    longest = max((part.inputs["tokens"] != 0).sum(axis=1).max() for part in _parts(dataset))
    assert tokens.shape[1] == longest


def _parts(dataset):
    return dataset.train, dataset.validation, dataset.test
