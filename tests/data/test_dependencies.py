"""Dependency trees: the form CoNLL-U, and the labels of phrases, derived by hand."""

import numpy as np
import pytest

from calib_jax import data
from calib_jax.data.text.dependencies import ordered
from calib_jax.data.text.trees import parse_tree
from tests.data import tiny

BINARY = "(4 (2 (2 the) (2 film)) (3 (2 is) (1 (2 not) (4 (2 very) (3 good)))))"
HEADS = (2, 6, 6, 6, 6, 0)  # of "the film is not very good", by their numbers in the file


def conllu(words, heads):
    """Write a sentence; the columns that are not read hold underscores."""
    rows = [
        [number, word, *"____", head, *"___"]
        for number, (word, head) in enumerate(zip(words, heads, strict=True), start=1)
    ]
    return "\n".join("\t".join(map(str, row)) for row in rows) + "\n\n"


def test_sentences_are_read(tmp_path):
    path = tmp_path / "test.conllu"
    first = conllu(("a", "film"), (2, 0)).replace("2\tfilm", "1-2\tafilm" + 8 * "\t_" + "\n2\tfilm")
    path.write_bytes(f"# text = a film\r\n{first}\n{conllu(('Good',), (0,)).rstrip()}".encode())
    trees = data.read_dependencies(path)
    assert trees == [(("a", "film"), (1, -1)), (("Good",), (-1,))]


def test_words_follow_their_dependents_and_have_the_labels_of_their_phrases():
    binary = parse_tree(BINARY)
    tree = data.DependencyTree(binary.words, tuple(head - 1 for head in HEADS))
    result = ordered(tree, binary)
    words = [binary.words[place] for place in result.order]
    assert words == ["the", "film", "is", "not", "very", "good"]
    np.testing.assert_array_equal(result.parents, [1, 5, 5, 5, 5, 5])
    # "the film" is a phrase of the binary tree; the root has the label of the sentence.
    np.testing.assert_array_equal(result.labels, [2, 2, 2, 2, 2, 4])
    assert result.labeled.all()
    # "film" with "the" and "is" is no phrase of the binary tree, nor is "the ... good".
    crossed = ordered(tree._replace(heads=(5, 5, 1, 5, 5, -1)), binary)
    labeled = dict(zip((binary.words[w] for w in crossed.order), crossed.labeled, strict=True))
    assert labeled == {
        **{"the": True, "is": True, "not": True, "very": True, "good": True},
        "film": False,
    }


def words_of_tiny(folder, name):
    lines = (folder / "sst" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [parse_tree(line) for line in lines]


def test_the_data_set_reads_them(folder):
    tiny.sst(folder)
    for name in ("train", "dev", "test"):
        # Every word depends on the next one.
        trees = words_of_tiny(folder, name)
        text = "".join(conllu(tree.words, [*range(2, len(tree.words) + 1), 0]) for tree in trees)
        (folder / f"{name}.conllu").write_text(text, encoding="utf-8")
    dataset = data.sst(data_dir=str(folder), dependencies=str(folder), leaves=13)
    binary = data.sst(data_dir=str(folder), leaves=13)
    for part in ("train", "validation", "test"):
        chain, tree = getattr(dataset, part), getattr(binary, part)
        np.testing.assert_array_equal(chain.inputs["words"], tree.inputs["words"])
        lengths = (chain.inputs["words"] != 0).sum(axis=1)
        parents = [[*range(1, n), n - 1, *range(n, 13)] for n in lengths]
        np.testing.assert_array_equal(chain.inputs["parents"], parents)
        roots = chain.labels[np.arange(len(lengths)), lengths - 1]
        ends = chain.weights[np.arange(len(lengths)), lengths - 1]
        assert set(roots) == {0, 2}
        assert ends.all()
    # A chain is labelled where the binary tree has a phrase from the first word on.
    assert dataset.train.weights.sum() < binary.train.weights.sum()
    np.testing.assert_array_equal(dataset.test.weights.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\ta\n\n", "line 1: it has 2 columns and not 10"),
        (conllu(("a", "b"), (0, 0)), "line 3: the sentence has 2 roots and not 1"),
        (conllu(("a", "b", "c"), (0, 3, 2)), "some words depend on each other in a circle"),
        (conllu(("a",), (5,)), "a word depends on word 5 of 1"),
        (conllu(("a",), ("x",)), "the words must be numbered from 1"),
        (conllu(("a", "b"), (0, 1)).replace("2\t", "2 \t"), "line 2: the words must be numbered"),
        (conllu(("a", "b"), (0, 1)).replace("2\t", "\t"), "line 2: the words must be numbered"),
    ],
)
def test_other_trees_are_refused(tmp_path, text, message):
    path = tmp_path / "train.conllu"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        data.read_dependencies(path)
    assert str(path) in str(error.value)


def test_other_sentences_are_refused(folder):
    tiny.sst(folder)
    for name in ("train", "dev", "test"):
        trees = words_of_tiny(folder, name)
        text = "".join(conllu(("other",), (0,)) for _ in trees)
        (folder / f"{name}.conllu").write_text(text)
    with pytest.raises(ValueError, match=r"train\.conllu, sentence 1: .* has other words"):
        data.sst(data_dir=str(folder), dependencies=str(folder))
    (folder / "train.conllu").write_text(conllu(("other",), (0,)))
    with pytest.raises(ValueError, match=r"has 1 sentences, and the binary trees 60"):
        data.sst(data_dir=str(folder), dependencies=str(folder))
