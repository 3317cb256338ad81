"""The Stanford Sentiment Treebank: sentences of film reviews as trees with labels at all nodes."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.core.inputs import checks
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import archives, files
from calib_jax.data.text.dependencies import ordered, padded_dependencies, read_dependencies
from calib_jax.data.text.trees import Nodes, Tree, padded, parse_tree, plain_words
from calib_jax.data.text.vocabulary import Vocabulary
from calib_jax.data.text.word_vectors import read_vectors
from calib_jax.data.text.wordpiece import WordPiece

_PARTS = {"train": "train", "validation": "dev", "test": "test"}
_ARCHIVE = "trainDevTestTrees_PTB.zip"
_ABOUT = About(
    title="Stanford Sentiment Treebank, 11,855 sentences as binary trees",
    licence="none stated; the authors ask to be cited",
    # Without the sentences whose root is neutral, of 8,544 + 1,101 and 2,210.
    counts={"train": 6_920 + 872, "test": 1_821},
    official=(_ARCHIVE, "trees", "train.txt", "train.txt.gz"),
    by_hand=f"download https://nlp.stanford.edu/sentiment/{_ARCHIVE} and leave it packed",
    size=800_000,
)
_MAX_BYTES = 1 << 27
_NEUTRAL = 1
UNKNOWN = "<unknown>"
_VOCABULARIES = ("train", "all")


@register("sst", _ABOUT)
def sst(
    *,
    data_dir: str | None = None,
    vocabulary: str = "all",
    vectors: str | None = None,
    leaves: int = 56,
    pieces: str | None = None,
    dependencies: str | None = None,
    seed: int = 1,
) -> Dataset:
    """Load the binary task of Mukhoti et al. 2020: 6,920, 872 and 1,821 sentences of polar roots.

    The five published labels become three: negative (0 and 1), neutral (2) and positive (3 and 4).
    Sentences whose root is neutral are left out. Training has a label at every node; validation and
    test have the root's alone (the other nodes have weight 0).

    Inputs are a dictionary of "words" `[leaves]`, word numbers from 1, and "children"
    `[leaves - 1, 2]`, as `models.tree_lstm` takes them; labels are `[2 leaves - 1]`.

    With `dependencies`, inputs are "words" `[leaves]` and "parents" `[leaves]`, as
    `models.child_sum_tree_lstm` takes them, and labels are `[leaves]`. A word has the label of its
    phrase, that is of the word and all that depend on it, if the binary tree has this phrase; the
    root has the label of the sentence. All other words have weight 0.

    With `pieces`, the sentences have no trees: inputs are a dictionary of "tokens", the numbers of
    the word pieces between [CLS] and [SEP] with padding of 0 at the end, as `models.bert` takes
    them, and labels are the root labels, negative (0) and positive (1).

    Args:
      data_dir: the folder of the data sets. None uses the environment variable CALIB_JAX_DATA_DIR,
        then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      vocabulary: the sentences whose words have a number: "all", as in the released code, or those
        of "train"; the other words then share the number 1.
      vectors: a file of word vectors, also in `data_dir`, for the initial values of the network's
        layer "embedding".
        As in the released code, words that it lacks are drawn from N(-0.05, 0.05^2).
      leaves: the number of words to which sentences are padded; the longest has 52 in training and
        56 in test.
      pieces: a folder of Hugging Face with the vocabulary of a BERT (`vocab.txt`); the other
        options are then not used. The longest sentence defines the number of pieces.
      dependencies: a folder with dependency trees of all sentences, in the order of the published
        files, as `train.conllu`, `dev.conllu` and `test.conllu`.
      seed: seed of the vectors that are drawn.

    References:
      Socher et al. 2013, Recursive Deep Models for Semantic Compositionality Over a Sentiment
      Treebank; Mukhoti et al. 2020, appendix, and its released code.
    """
    checks.one_of("vocabulary", vocabulary, _VOCABULARIES)
    located = files.find("sst", _ABOUT, data_dir)
    if pieces and (vectors or dependencies):
        raise ValueError("give pieces, or vectors and dependencies, not both: BERT takes no trees.")
    parsed = {part: _parsed(located.path, name) for part, name in _PARTS.items()}
    trees = {part: [tree for tree in parsed[part] if _is_polar(tree)] for part in parsed}
    if pieces:
        return _sentences(trees, files.given(pieces, "sst", data_dir), str(located))
    counted = ["train"] if vocabulary == "train" else list(trees)
    texts = [tree.words for part in counted for tree in trees[part]]
    distinct = Vocabulary.of(texts, size=1 + sum(map(len, texts))).words
    known = Vocabulary((UNKNOWN, *distinct))
    table, origin = None, ""
    if vectors:
        read = read_vectors(files.given(vectors, "sst", data_dir), known.words)
        table = _completed(read.table, read.known, seed)
        origin = (
            f" Word vectors of {pathlib.Path(vectors).name} for {read.known.sum():,} of"
            f" {len(distinct):,} words."
        )
    if dependencies:
        folder = files.given(dependencies, "sst", data_dir)
        nodes = {
            part: _of_dependencies(folder / f"{name}.conllu", parsed[part], leaves)
            for part, name in _PARTS.items()
        }
    else:
        nodes = {part: padded(trees[part], leaves) for part in trees}
    sources: dict[str, Any] = {
        part: _source(nodes[part], trees[part], known, all_nodes=part == "train") for part in trees
    }
    return Dataset(
        name="sst",
        class_names=("negative", "neutral", "positive"),
        **sources,
        description=(
            f"SST, sentences with a polar root: {len(trees['train'])} to train, with a label at"
            f" every node, {len(trees['validation'])} to validate and {len(trees['test'])} to test,"
            f" with the root's; {len(distinct):,} words of"
            f" {'all' if vocabulary == 'all' else 'training'} sentences; {located}. Socher et al."
            f" 2013.{' Dependency trees of another parser.' * bool(dependencies)}{origin}"
        ),
        embedding=table,
        vocabulary=known,
    )


def _sentences(trees: Mapping[str, list[Tree]], folder: pathlib.Path, located: str) -> Dataset:
    """Number the word pieces of sentences."""
    known = WordPiece.of_folder(folder)
    # The longest text has [CLS], its pieces and [SEP].
    texts = {part: [plain_words(" ".join(tree.words)) for tree in trees[part]] for part in trees}
    length = 2 + max(len(known.pieces(text)) for part in texts.values() for text in part)
    sources: dict[str, Any] = {}
    for part, of_part in trees.items():
        labels = np.array([int(tree.labels[-1] > _NEUTRAL) for tree in of_part], np.int32)
        sources[part] = InMemory(known.tokens(texts[part], length), labels)
    return Dataset(
        name="sst",
        class_names=("negative", "positive"),
        **sources,
        description=(
            f"SST, sentences with a polar root: {len(trees['train'])} to train,"
            f" {len(trees['validation'])} to validate and {len(trees['test'])} to test; at most"
            f" {length} word pieces of {folder.name}'s {len(known):,}; {located}."
            " Socher et al. 2013."
        ),
        vocabulary=known,
    )


def _parsed(path: pathlib.Path, name: str) -> list[Tree]:
    """Read the trees of a part; errors name the line and the column."""
    kind, advice = "trees in brackets", "download the file again"
    with reading.guard(path, kind, advice):
        if path.suffix == ".zip":
            member = f"trees/{name}.txt"
            content = archives.read(path, [member], _MAX_BYTES)[member]
            place = f"{path}, {member}"
        else:
            file = (path if path.is_dir() else path.parent) / f"{name}.txt"
            if not file.exists():
                file = file.with_name(f"{name}.txt.gz")
            content = files.content(file, kind, advice, at_most=_MAX_BYTES)
            place = str(file)
    trees = []
    for number, line in enumerate(_decoded(place, content).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            trees.append(_three_labels(parse_tree(line.rstrip("\r"))))
        except ValueError as error:
            raise reading.Unreadable(f"{place}, line {number}, {error}.") from None
    if not trees:
        raise reading.Unreadable(f"{place} holds no tree: {advice}.")
    return trees


def _decoded(place: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise reading.Unreadable(f"{place}, line {line}, is not UTF-8.") from None


def _three_labels(tree: Tree) -> Tree:
    return tree._replace(labels=tuple(int(label > 1) + int(label > 2) for label in tree.labels))


def _is_polar(tree: Tree) -> bool:
    return tree.labels[-1] != _NEUTRAL


def _of_dependencies(path: pathlib.Path, parsed: list[Tree], leaves: int) -> Nodes:
    """Read the dependency trees of all sentences, and keep the trees with polar roots."""
    sentences = read_dependencies(path)
    if len(sentences) != len(parsed):
        raise reading.Unreadable(
            f"{path} has {len(sentences):,} sentences, and the binary trees {len(parsed):,}."
        )
    trees = []
    for number, (sentence, tree) in enumerate(zip(sentences, parsed, strict=True), start=1):
        try:
            trees.append(ordered(sentence, tree))
        except ValueError as error:
            raise reading.Unreadable(f"{path}, sentence {number}: {error}.") from None
    kept = [graph for graph, tree in zip(trees, parsed, strict=True) if _is_polar(tree)]
    return padded_dependencies(kept, leaves)


def _source(nodes: Nodes, trees: list[Tree], known: Vocabulary, *, all_nodes: bool) -> InMemory:
    words = np.zeros(nodes.order.shape, np.int32)
    unknown = known.number_of[UNKNOWN]
    for row, tree in enumerate(trees):
        numbers = np.array([known.number_of.get(word, unknown) for word in tree.words], np.int32)
        words[row, : len(numbers)] = numbers[nodes.order[row, : len(numbers)]]
    weights = nodes.labeled.astype(np.float32)
    if not all_nodes:
        weights = np.zeros_like(weights)
        weights[np.arange(len(trees)), nodes.root] = 1
    return InMemory({"words": words, **nodes.structure}, nodes.labels, weights)


def _completed(table: np.ndarray, known: np.ndarray, seed: int) -> np.ndarray:
    """Draw the vectors of words without one, and put padding before the first word."""
    drawn = np.random.default_rng(seed).normal(-0.05, 0.05, table.shape).astype(np.float32)
    rows = np.where(known[:, None], table, drawn)
    return np.concatenate([np.zeros((1, table.shape[1]), np.float32), rows])
