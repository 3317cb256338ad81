"""Trees in brackets, and the SST made of them."""

import gzip

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


@pytest.mark.parametrize("seed", [0, 1, 6, 19])
def test_a_tree_is_that_of_a_recursive_parser(seed):
    line = tiny.tree(np.random.default_rng(seed), size=1 + seed)
    tree = data.parse_tree(line)
    assert rebuilt(tree, len(tree.labels) - 1) == recursive(line)
    assert len(tree.words) == 1 + seed
    assert len(tree.labels) == 2 * len(tree.words) - 1


def test_padding_keeps_every_node():
    drawn = np.random.default_rng(0)
    parsed = [data.parse_tree(tiny.tree(drawn, size=size)) for size in (1, 2, 5, 9)]
    arrays = trees.padded(parsed, 9)
    assert arrays.children.shape == (4, 8, 2)
    assert trees.padded(parsed[:2], 2).children.shape == (2, 1, 2)
    for row, tree in enumerate(parsed):
        assert arrays.labeled[row].sum() == len(tree.labels)
        assert arrays.labels[row, arrays.root[row]] == tree.labels[-1]
        assert arrays.labeled[row, arrays.root[row]]
        np.testing.assert_array_equal(arrays.labels[row, arrays.labeled[row]], tree.labels)
        for number, pair in enumerate(arrays.children[row, : len(tree.children)]):
            assert all(arrays.labeled[row, child] and child < 9 + number for child in pair)
    with pytest.raises(ValueError, match="leaves must be at least 9, got 8"):
        trees.padded(parsed, 8)


def test_the_sst_is_the_same_in_its_archive(folder):
    place = tiny.sst(folder)
    expected = data.sst(data_dir=str(folder))
    names = ("train", "dev", "test")
    texts = {name: gzip.decompress((place / f"{name}.txt.gz").read_bytes()) for name in names}
    members = {f"trees/{name}.txt": text for name, text in texts.items()}
    tiny.packed(place / "trainDevTestTrees_PTB.zip", members)
    dataset = data.sst(data_dir=str(folder))
    assert "trainDevTestTrees_PTB.zip" in dataset.description
    for part in ("train", "validation", "test"):
        ours, theirs = getattr(dataset, part).examples, getattr(expected, part).examples
        np.testing.assert_array_equal(ours.inputs["words"], theirs.inputs["words"])
        np.testing.assert_array_equal(ours.weights, theirs.weights)
    assert dataset.class_names == ("negative", "neutral", "positive")


def test_training_has_every_node_and_evaluation_the_polar_roots(folder):
    place = tiny.sst(folder)
    dataset = data.sst(data_dir=str(folder))
    for part, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
        lines = gzip.decompress((place / f"{name}.txt.gz").read_bytes()).decode().splitlines()
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
    with gzip.open(place / "test.txt.gz", "at", encoding="utf-8") as file:
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


def test_sentences_as_word_pieces(folder):
    place = tiny.sst(folder)
    lines = "(3 (2 -LRB-) (2 good\\/bad))\n(2 a)\n(0 (2 A) (1 film))\n"
    (place / "test.txt.gz").write_bytes(gzip.compress(lines.encode()))
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
