"""Sentences in German and English: Multi30k, descriptions of photographs, and WMT 2014."""

from calib_jax.core import checks
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files, tfds
from calib_jax.data.text.sentence_pairs import (
    DIRECTIONS,
    PARTS,
    Parallel,
    parallel,
    read_lines,
    translation,
)

_FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
_MULTI30K = About(
    title="Multi30k, descriptions of photographs",
    licence="CC BY-NC-SA 4.0",
    counts={"train": 29_000 + 1_014, "test": 1_000},
    official=("train.de.gz",),
    by_hand=(
        "copy train, val and test_2016_flickr, each .de.gz and .en.gz, from data/task1/raw of"
        " https://github.com/multi30k/dataset"
    ),
    size=1_300_000,
)


@register("multi30k", _MULTI30K)
def multi30k(
    *,
    data_dir: str | None = None,
    direction: str = "de-en",
    words: int = 8_000,
    length: int = 64,
    subwords: str | None = None,
    training_size: int | None = None,
) -> Dataset:
    """Load 29,000 pairs of sentences for training, 1,014 for validation and 1,000 for test.

    Inputs are a dictionary of "source" and "target", the numbers of subwords (see
    `data.Subwords`), and labels are the next subwords of the target, with weight 0 for padding.
    Sentences keep their case; `dataset.vocabulary.text` writes the text of numbers.

    Args:
      data_dir: the folder of the data sets, with `multi30k/train.de.gz` and the others. None uses
        the environment variable CALIB_JAX_DATA_DIR, then TFDS_DATA_DIR, then
        ~/tensorflow_datasets.
      direction: "de-en" for German to English, or "en-de".
      words: the size of the vocabulary, which both languages share.
      length: the number of subwords, with the end, to which training sentences are padded; pairs
        with longer sentences are left out. Validation and test keep all pairs.
      subwords: a file of subwords of another run, `subwords.txt`; None learns them from the
        training sentences of both languages.
      training_size: use only the first training_size pairs of the training part; None uses all.

    References:
      Elliott et al. 2016, Multi30K: Multilingual English-German Image Descriptions.
    """
    checks.one_of("direction", direction, DIRECTIONS)
    located = files.find("multi30k", _MULTI30K, data_dir)

    def part(name: str) -> Parallel:
        source, target = (
            located.path.with_name(f"{name}.{language}.gz") for language in direction.split("-")
        )
        return parallel((source, target), (read_lines(source), read_lines(target)))

    parts = {part_name: part(name) for part_name, name in _FILES.items()}
    if training_size is not None:
        checks.between("training_size", training_size, 1, len(parts["train"].source))
        parts["train"] = Parallel(*(side[:training_size] for side in parts["train"]))
    return translation(
        "multi30k",
        parts,
        about=f"{_MULTI30K.title}, {located}; {_MULTI30K.licence}",
        direction=direction,
        words=words,
        length=length,
        subwords=subwords,
    )


_WMT14 = About(
    title="WMT 2014, English and German",
    licence="that of each corpus; see statmt.org/wmt14",
    # Of the 4,508,785 training pairs those with an empty line or a long sentence are left out.
    counts={"test": 3_003},
    tfds="wmt14_translate/de-en",
    size=1_580_000_000,
)


@register("wmt14", _WMT14)
def wmt14(
    *,
    data_dir: str | None = None,
    direction: str = "en-de",
    words: int = 37_000,
    length: int = 128,
    subwords: str | None = None,
    learned_from: int = 1_000_000,
) -> Dataset:
    """Load 4,508,785 pairs of sentences, with newstest2013 to validate and newstest2014 to test.

    The published training part holds empty lines, whose pairs are left out. Pairs are padded when
    they are read. Every start learns the subwords and numbers all sentences, which takes minutes;
    with `subwords`, a file of another run, it only numbers them.

    Args:
      data_dir: see `multi30k`; the folder has `wmt14_translate/de-en` as prepared by TFDS.
      direction: "en-de" for English to German, or "de-en".
      words: the size of the vocabulary, which both languages share.
      length: the number of subwords, with the end, to which training sentences are padded; pairs
        with longer sentences are left out.
      subwords: a file of subwords of another run, `subwords.txt`; None learns them.
      learned_from: the number of training pairs from which subwords are learned.

    References:
      Bojar et al. 2014, Findings of the 2014 Workshop on Statistical Machine Translation.
    """
    checks.one_of("direction", direction, DIRECTIONS)
    checks.whole("learned_from", learned_from)
    located = files.find("wmt14", _WMT14, data_dir)
    languages = direction.split("-")
    parts: dict[str, Parallel] = {}
    for part in PARTS:
        texts = tfds.texts(located.path, part, tuple(languages))
        if part == "train":
            pairs = zip(*texts, strict=True)
            filled = [pair for pair in pairs if all(map(str.strip, pair))]
            texts = [list(side) for side in zip(*filled, strict=True)]
        names = [f"{language} of {part} in {located.path}" for language in languages]
        parts[part] = parallel((names[0], names[1]), (texts[0], texts[1]))
    return translation(
        "wmt14",
        parts,
        about=f"{_WMT14.title}, {located}",
        direction=direction,
        words=words,
        length=length,
        subwords=subwords,
        learned_from=learned_from,
        in_memory=False,
    )
