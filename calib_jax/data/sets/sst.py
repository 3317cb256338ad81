"""The Stanford Sentiment Treebank: sentences of film reviews as trees with labels at all nodes."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.examples import InMemory
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files
from calib_jax.data.text.numbered import texts_dataset
from calib_jax.data.text.trees import Tree, padded, parse_tree, plain_words
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
    official=(_ARCHIVE, "trees", "train.txt.gz"),
    by_hand=f"download https://nlp.stanford.edu/sentiment/{_ARCHIVE} and leave it packed",
    size=800_000,
)
_MAX_BYTES = 1 << 27
_NEUTRAL = 1
UNKNOWN = "<unknown>"


@register("sst", _ABOUT)
def sst(
    *,
    data_dir: str | None = None,
    vocabulary: str = "all",
    vectors: str | None = None,
    leaves: int = 56,
    pieces: str | None = None,
    seed: int = 1,
) -> Dataset:
    """Load the binary task of Mukhoti et al. 2020: 6,920, 872 and 1,821 sentences of polar roots.

    The five published labels become three: negative (0 and 1), neutral (2) and positive (3 and 4).
    Sentences whose root is neutral are left out. Training has a label at every node; validation and
    test have the root's alone (the other nodes have weight 0).

    Inputs are a dictionary of "words" `[leaves]`, word numbers from 1, and "children"
    `[leaves - 1, 2]`, as `models.tree_lstm` takes them; labels are `[2 leaves - 1]`.

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
      seed: seed of the vectors that are drawn.

    References:
      Socher et al. 2013, Recursive Deep Models for Semantic Compositionality Over a Sentiment
      Treebank; Mukhoti et al. 2020, appendix, and its released code.
    """
    checks.one_of("vocabulary", vocabulary, ("train", "all"))
    located = files.find("sst", _ABOUT, data_dir)
    if pieces and vectors:
        raise ValueError("give pieces or vectors, not both: word pieces have no file of vectors.")
    trees = {part: _polar(located.path, name) for part, name in _PARTS.items()}
    if pieces:
        about = f"SST, sentences with a polar root, {located}, Socher et al. 2013"
        return _sentences(trees, pieces, about, data_dir)
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
    sources: dict[str, Any] = {
        part: _source(trees[part], leaves, known, all_nodes=part == "train") for part in trees
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
            f" 2013.{origin}"
        ),
        embedding=table,
        vocabulary=known,
    )


def _sentences(trees: Mapping[str, list[Tree]], pieces: str, about: str, data_dir: Any) -> Dataset:
    """Number the word pieces of sentences."""
    known = WordPiece.of_folder(files.given(pieces, "sst", data_dir))
    texts = {part: [plain_words(" ".join(tree.words)) for tree in trees[part]] for part in trees}
    labels = {part: np.array([t.labels[-1] > _NEUTRAL for t in trees[part]]) for part in trees}
    # The longest text has [CLS], its pieces and [SEP].
    length = 2 + max(len(known.pieces(text)) for part in texts.values() for text in part)
    options: dict[str, Any] = {"words": 2, "cut": "end", "vocabulary": "all", "vectors": None}
    options |= {"about": about, "data_dir": data_dir, "length": length, "pieces": pieces}
    return texts_dataset("sst", ("negative", "positive"), texts, labels, **options)


def _polar(path: pathlib.Path, name: str) -> list[Tree]:
    """Read the trees of a part whose root is not neutral; errors name the line."""
    member, advice = f"trees/{name}.txt", "download the file again"
    if path.suffix == ".gz":
        place = path.with_name(f"{name}.txt.gz")
        content = files.content(place, "trees in brackets", advice, at_most=_MAX_BYTES)
    else:
        place = path / member
        found = [coded for _, coded in files.contents(path, lambda name: name == member)]
        content = found[0] if found else b""
    trees = []
    with reading.guard(place, "trees in brackets", advice):
        lines = content.decode("utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            tree = parse_tree(line)
        except ValueError as error:
            raise reading.Unreadable(f"{place}, line {number}: {error}.") from None
        trees.append(
            tree._replace(labels=tuple(int(label > 1) + int(label > 2) for label in tree.labels))
        )
    if not trees:
        raise reading.Unreadable(f"{place} holds no tree: {advice}.")
    return [tree for tree in trees if tree.labels[-1] != _NEUTRAL]


def _source(trees: list[Tree], leaves: int, known: Vocabulary, *, all_nodes: bool) -> InMemory:
    nodes, unknown = padded(trees, leaves), known.number_of[UNKNOWN]
    words = np.zeros((len(trees), leaves), np.int32)
    for row, tree in enumerate(trees):
        numbers = [known.number_of.get(word, unknown) for word in tree.words]
        words[row, : len(numbers)] = numbers
    weights = nodes.labeled.astype(np.float32)
    if not all_nodes:
        weights = np.zeros_like(weights)
        weights[np.arange(len(trees)), nodes.root] = 1
    return InMemory({"words": words, "children": nodes.children}, nodes.labels, weights)


def _completed(table: np.ndarray, known: np.ndarray, seed: int) -> np.ndarray:
    """Draw the vectors of words without one, and put padding before the first word."""
    drawn = np.random.default_rng(seed).normal(-0.05, 0.05, table.shape).astype(np.float32)
    rows = np.where(known[:, None], table, drawn)
    return np.concatenate([np.zeros((1, table.shape[1]), np.float32), rows])
