"""Intents of short queries: BANKING77 and CLINC150."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register, split_in_two
from calib_jax.data.formats import files
from calib_jax.data.text.numbered import texts_dataset

_BANKING77 = About(
    title="BANKING77, questions to a bank with 77 intents",
    licence="CC BY 4.0",
    counts={"train": 10_003, "test": 3_080},
    official=("train.csv", "train.csv.gz", "intents/banking77_train.csv.gz"),
    by_hand=(
        "download train.csv and test.csv of banking_data from"
        " https://github.com/PolyAI-LDN/task-specific-datasets"
    ),
    size=1_080_000,
)
_CLINC150 = About(
    title="CLINC150, queries with 150 intents, and out-of-scope queries",
    licence="CC BY 3.0",
    counts={"train": 18_000, "test": 4_500},
    official=("data_full.json", "data_full.json.gz", "intents/clinc150_data_full.json.gz"),
    by_hand="download data/data_full.json from https://github.com/clinc/oos-eval",
    size=2_300_000,
)
_KIND, _ADVICE = "a file of queries", "download it anew"
_AT_MOST = 1 << 26  # bytes of a file
# The parts of data_full.json by scope; the published validation part validates.
_SCOPES = {
    "in": {"train": "train", "validation": "val", "test": "test"},
    "out": {"train": "oos_train", "validation": "oos_val", "test": "oos_test"},
}
_OUTSIDE = "oos"  # the intent of the out-of-scope queries
_Query = tuple[str, str]  # the text and the intent
_Queries = Mapping[str, Sequence[_Query]]  # by part


@register("banking77", _BANKING77)
def banking77(
    *,
    data_dir: str | None = None,
    length: int = 128,
    words: int = 5_000,
    cut: str = "end",
    vocabulary: str = "train",
    vectors: str | None = None,
    pieces: str | None = None,
    validation: float = 0.1,
    seed: int = 1,
) -> Dataset:
    """Load 13,083 questions of customers to a bank, with 77 intents.

    The published test part has 40 questions of each intent. The papers' rule (`split`) takes the
    validation part from the published training part, so 9,003 train and 1,000 validate by default.

    Args:
      data_dir: the folder of the data sets, see `cifar10`.
      length: the number of words or word pieces of a question.
      words, cut, vocabulary, vectors, pieces: as for `newsgroups`.
      validation: the fraction of the published training part that validates; must not be 0.
      seed: seed of the split.

    References:
      Casanueva et al. 2020, Efficient Intent Detection with Dual Sentence Encoders.
    """
    options = {**locals()}
    del options["validation"], options["seed"]
    located = files.find("banking77", _BANKING77, data_dir)
    training = _table(located.path)
    test = _table(located.path.with_name(located.path.name.replace("train", "test")))
    names = _intents("banking77", located.path, training, 77)
    parted = split_in_two("banking77", len(training), validation=validation, seed=seed)
    parts = {
        "train": [training[i] for i in parted.train],
        "validation": [training[i] for i in parted.validation],
        "test": test,
    }
    about = f"BANKING77, {located}; split by the papers' rule with seed {seed}"
    return _dataset("banking77", parts, names, located.path, about=about, **options)


@register("clinc150", _CLINC150)
def clinc150(
    *,
    data_dir: str | None = None,
    scope: str = "in",
    length: int = 40,
    words: int = 10_000,
    cut: str = "end",
    vocabulary: str = "train",
    vectors: str | None = None,
    pieces: str | None = None,
) -> Dataset:
    """Load the 22,500 queries of CLINC150 with 150 intents, or its out-of-scope queries.

    The parts are the published ones: each intent has 100 queries to train, 20 to validate and 30 to
    test. The out-of-scope queries (100, 100 and 1,000) belong to no intent: their labels are 0 with
    weight 0. As `evaluate --ood=clinc150:scope=out`, they measure out-of-distribution detection.

    Args:
      data_dir: the folder of the data sets, see `cifar10`.
      scope: "in" for the queries of the 150 intents, "out" for the out-of-scope queries.
      length: the number of words or word pieces of a query.
      words, cut, vocabulary, vectors, pieces: as for `newsgroups`. The words of both scopes are
        counted in the queries of the 150 intents.

    References:
      Larson et al. 2019, An Evaluation Dataset for Intent Classification and Out-of-Scope
      Prediction.
    """
    options = {**locals()}
    del options["scope"]
    checks.one_of("scope", scope, _SCOPES)
    located = files.find("clinc150", _CLINC150, data_dir)
    with reading.guard(located.path, _KIND, _ADVICE):
        stored = json.loads(files.content(located.path, _KIND, _ADVICE, at_most=_AT_MOST))
        parts = {part: _pairs(stored, name) for part, name in _SCOPES[scope].items()}
        of_intents = {part: _pairs(stored, name) for part, name in _SCOPES["in"].items()}
    names = _intents("clinc150", located.path, of_intents["train"], 150)
    about = f"CLINC150, {located}, the published parts" + ", out of scope" * (scope == "out")
    if vocabulary == "train":
        of_intents = {"train": of_intents["train"]}
    counted = [text for queries in of_intents.values() for text, _ in queries]
    return _dataset("clinc150", parts, names, located.path, about=about, counted=counted, **options)


def _table(path: pathlib.Path) -> list[_Query]:
    table = files.read_table(path, _KIND, ("text", "category"))
    return [*zip(table["text"], table["category"], strict=True)]


def _pairs(stored: Any, name: str) -> list[_Query]:
    """Read a part of data_full.json: a list of [query, intent]."""
    pairs = stored.get(name) if isinstance(stored, Mapping) else None
    if not isinstance(pairs, list):
        raise ValueError(f"it has no list {name!r}")
    for pair in pairs:
        if not (isinstance(pair, list) and [type(text) for text in pair] == [str, str]):
            raise ValueError(f"{str(pair)[:60]} in {name!r} is no [query, intent]")
    return [(text, intent) for text, intent in pairs]


def _intents(
    name: str, path: pathlib.Path, training: Sequence[_Query], count: int
) -> tuple[str, ...]:
    """Return the intents of the training queries in alphabetic order."""
    names = tuple(sorted({intent for _, intent in training}))
    if len(names) != count:
        raise reading.Unreadable(
            f"{path} has training queries of {len(names)} intents, and {name} has {count}:"
            f" {_ADVICE}."
        )
    return names


def _dataset(
    name: str,
    parts: _Queries,
    names: tuple[str, ...],
    path: pathlib.Path,
    *,
    about: str,
    counted: Sequence[str] | None = None,
    **options: Any,
) -> Dataset:
    """Number the texts and the intents of all queries."""
    number = {intent: label for label, intent in enumerate(names)}
    for part, queries in parts.items():
        for row, (text, intent) in enumerate(queries):
            if not text or intent not in {*number, _OUTSIDE}:
                raise reading.Unreadable(
                    f"query {row} of the {part} part of {path}, {text[:40]!r}, has the intent"
                    f" {intent[:40]!r}, which no training query has: {_ADVICE}."
                )
    texts = {part: [text for text, _ in queries] for part, queries in parts.items()}
    intents = {part: [intent for _, intent in queries] for part, queries in parts.items()}
    labels = {part: np.array([number.get(k, 0) for k in some]) for part, some in intents.items()}
    inside = {
        part: np.array([k in number for k in some], np.float32) for part, some in intents.items()
    }
    weights = None if all(part.all() for part in inside.values()) else inside
    return texts_dataset(
        name, names, texts, labels, about=about, counted=counted, weights=weights, **options
    )
