"""20 Newsgroups: messages of twenty discussion groups."""

import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from calib_jax.core import checks
from calib_jax.core.files import reading
from calib_jax.data.dataset import About, Dataset, register, shuffled, split_in_two
from calib_jax.data.formats import files
from calib_jax.data.text.numbered import texts_dataset

GROUPS = (
    *("alt.atheism", "comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware"),
    *("comp.sys.mac.hardware", "comp.windows.x", "misc.forsale", "rec.autos", "rec.motorcycles"),
    *("rec.sport.baseball", "rec.sport.hockey", "sci.crypt", "sci.electronics", "sci.med"),
    *("sci.space", "soc.religion.christian", "talk.politics.guns", "talk.politics.mideast"),
    *("talk.politics.misc", "talk.religion.misc"),
)
_PAGE = "http://qwone.com/~jason/20Newsgroups/"
_LICENCE = "none stated; public messages of 1993, collected by Ken Lang"
_BY_DATE = About(
    title="20 Newsgroups, later messages for test",
    licence=_LICENCE,
    counts={"train": 11_314, "test": 7_532},
    official=("20news-bydate.tar.gz", "20news-bydate.tar.xz"),
    by_hand=f"download {_PAGE}20news-bydate.tar.gz and leave it packed",
    size=14_500_000,
)
_ORIGINAL = About(
    title="20 Newsgroups, the original 19,997 messages in the papers' split",
    licence=_LICENCE,
    counts={"train": 15_998, "test": 3_999},
    official=("20news-19997.tar.gz",),
    by_hand=f"download {_PAGE}20news-19997.tar.gz and leave it packed",
    size=17_300_000,
)
_WHOLE = "download the archive again, and leave it packed"
_STRIPPED = ("headers", "footers", "quotes")
_QUOTE = re.compile(r"\s*[>|:]|\s*In article\b|.*\b(writes|wrote|says|said)\s*:\s*$", re.I)
_SIGNATURE = re.compile(r"\s*[-_=*]{2,}\s*$")
_SIGNATURE_LINES = 12
_Message = tuple[str, int]  # the text and the label
_Parts = dict[str, list[_Message]]
_Place = tuple[str, ...]  # the folder, the group and the name of the file of a message


@register("newsgroups", _BY_DATE)
def newsgroups(
    *,
    data_dir: str | None = None,
    length: int = 1000,
    words: int = 20_000,
    cut: str = "front",
    strip: Sequence[str] = ("headers",),
    vocabulary: str = "train",
    vectors: str | None = None,
    pieces: str | None = None,
    validation: float = 0.1,
    seed: int = 1,
) -> Dataset:
    """Load the 18,846 messages of the by-date version, without duplicates.

    The published test part has the later messages of each group. The papers' rule (`split`) takes
    the validation part from the training messages, so 10,183 train and 1,131 validate by default.
    A message is an array of word numbers, from 1 for the most frequent word to `words` - 1, with
    padding of 0 at its front. Words that are not in the vocabulary are left out.

    With `pieces`, a message is a dictionary of "tokens", the numbers of its word pieces between
    [CLS] and [SEP] with padding of 0 at its end, as `models.bert` takes them.

    Args:
      data_dir: the folder of the data sets. None uses the environment variable CALIB_JAX_DATA_DIR,
        then TFDS_DATA_DIR, then ~/tensorflow_datasets.
      length: the number of words of a message; half of the messages have at most 147 known words.
      words: the size of the vocabulary, with padding.
      cut: the end at which longer messages are cut, "front" as in the released code or "end".
      strip: parts of a message that are left out: "headers" (as in the released code), "footers"
        (signatures) and "quotes" (of other messages). All three name the group or its members, so
        that a network can recognise them instead of the subject.
      vocabulary: the messages whose words are counted: "train", or "all" as in the
        released code, test messages too.
      vectors: a file of word vectors, also in `data_dir`, for the initial values of the network's
        layer "embedding".
      pieces: a folder of Hugging Face with the vocabulary of a BERT (`vocab.txt`); `words` and
        `vocabulary` are then not used. BERT's own recipes cut messages at the "end".
      validation: the fraction of the training messages used for validation; must not be 0.
      seed: seed of the split.

    References:
      Lang 1995, NewsWeeder: Learning to Filter Netnews.
    """
    options = {**locals()}
    del options["validation"], options["seed"]
    located = files.find("newsgroups", _BY_DATE, data_dir)
    parts = _by_date(located.path)
    count = len(parts["train"])
    parted = split_in_two("newsgroups", count, validation=validation, seed=seed)
    return _dataset(
        "newsgroups",
        {
            "train": [parts["train"][i] for i in parted.train],
            "validation": [parts["train"][i] for i in parted.validation],
            "test": parts["test"],
        },
        about=f"20 Newsgroups by date, {located}; split by the papers' rule with seed {seed}",
        **options,
    )


@register("newsgroups_19997", _ORIGINAL)
def newsgroups_19997(
    *,
    data_dir: str | None = None,
    length: int = 1000,
    words: int = 20_000,
    cut: str = "front",
    strip: Sequence[str] = ("headers",),
    vocabulary: str = "train",
    vectors: str | None = None,
    pieces: str | None = None,
    seed: int = 1,
) -> Dataset:
    """Load the original 19,997 messages in the split of Mukhoti et al. 2020.

    All messages are shuffled; the first 15,098 are for training, the next 900 for validation and
    the last 3,999 for test. The version contains duplicates, so a test message may also be in the
    training part. The arguments are as in `newsgroups`.

    Args:
      data_dir, length, words, cut, strip, vocabulary, vectors, pieces, seed: as for `newsgroups`.
    """
    options = {**locals()}
    del options["seed"]
    located = files.find("newsgroups_19997", _ORIGINAL, data_dir)
    texts = [message for _, message in sorted(_messages(located.path))]
    _check_groups(str(located.path), texts)
    order = papers_parts(len(texts), seed=seed)
    return _dataset(
        "newsgroups_19997",
        {part: [texts[i] for i in index] for part, index in order.items()},
        about=f"20 Newsgroups, all 19,997 messages, {located}; the papers' split with seed {seed}",
        **options,
    )


def papers_parts(count: int, *, seed: int = 1) -> dict[str, np.ndarray]:
    """Split messages as the released code of Mukhoti et al. 2020 does.

    A fifth of the messages, rounded down, is for test, and 4.5 % are for validation (900, as in
    that code).

    >>> {part: len(index) for part, index in papers_parts(19_997).items()}
    {'train': 15098, 'validation': 900, 'test': 3999}
    """
    ends = count - int(0.2 * count) - round(0.045 * count), count - int(0.2 * count)
    parts = np.split(shuffled(count, seed=seed), ends)
    return dict(zip(("train", "validation", "test"), parts, strict=True))


def body(text: str, strip: Sequence[str] = ("headers",)) -> str:
    r"""Leave out the headers, the signature and the quoted lines of a message.

    >>> message = "From: a@b\n\nIn article <1> c writes:\n> What?\nThis.\n--\nA. B., C University"
    >>> body(message, ("headers", "footers", "quotes"))
    'This.'
    """
    if "headers" in strip:
        text = text.partition("\n\n")[2]
    lines = text.split("\n")
    if "footers" in strip:
        for number in range(max(0, len(lines) - _SIGNATURE_LINES), len(lines)):
            if _SIGNATURE.match(lines[number]):
                lines = lines[:number]
                break
    if "quotes" in strip:
        lines = [line for line in lines if not _QUOTE.match(line)]
    return "\n".join(lines).strip("\n")


def _dataset(
    name: str, parts: _Parts, *, about: str, strip: Sequence[str], **options: Any
) -> Dataset:
    """Number the words, or the word pieces, of all messages."""
    for stripped in strip:
        checks.one_of("strip", stripped, _STRIPPED)
    return texts_dataset(
        name,
        GROUPS,
        {part: [body(text, strip) for text, _ in messages] for part, messages in parts.items()},
        {part: np.array([k for _, k in messages]) for part, messages in parts.items()},
        about=f"{about}, {', '.join(strip) or 'nothing'} stripped",
        **options,
    )


def _by_date(path: pathlib.Path) -> _Parts:
    parts: _Parts = {"train": [], "test": []}
    for (folder, *_), message in sorted(_messages(path)):
        part = folder.rpartition("-")[2]
        if part in parts:
            parts[part].append(message)
    for part, messages_there in parts.items():
        _check_groups(f"the {part} part of {path}", messages_there)
    return parts


def _messages(path: pathlib.Path) -> Iterator[tuple[_Place, _Message]]:
    """Yield the place of each message, by which the released code sorts, its text and label."""
    for name, content in files.contents(path, _is_message):
        place = tuple(name.split("/")[-3:])
        # The messages of 1993 declare no encoding; latin-1 maps every byte to one character.
        yield place, (content.decode("latin-1"), GROUPS.index(place[1]))


def _is_message(name: str) -> bool:
    place = name.split("/")[-3:]
    return len(place) == 3 and place[1] in GROUPS and not place[2].startswith(".")


def _check_groups(where: str, messages: Sequence[_Message]) -> None:
    """Raise an error that names the groups without a message."""
    there = {label for _, label in messages}
    if missing := [group for label, group in enumerate(GROUPS) if label not in there]:
        raise reading.Unreadable(f"{where} has no message of {missing[0]}: {_WHOLE}.")
