"""Multi30k: descriptions of photographs in German and English."""

from calib_jax.core import checks
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files
from calib_jax.data.text.sentence_pairs import (
    DIRECTIONS,
    Parallel,
    parallel,
    read_lines,
    translation,
)

_PARTS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
_ABOUT = About(
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


@register("multi30k", _ABOUT)
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
    located = files.find("multi30k", _ABOUT, data_dir)

    def part(name: str) -> Parallel:
        source, target = (
            located.path.with_name(f"{name}.{language}.gz") for language in direction.split("-")
        )
        return parallel((source, target), (read_lines(source), read_lines(target)))

    parts = {part_name: part(name) for part_name, name in _PARTS.items()}
    if training_size is not None:
        checks.whole("training_size", training_size)
        checks.between("training_size", training_size, 1, len(parts["train"].source))
        parts["train"] = Parallel(*(side[:training_size] for side in parts["train"]))
    return translation(
        "multi30k",
        parts,
        about=f"{_ABOUT.title}, {located}; {_ABOUT.licence}",
        direction=direction,
        words=words,
        length=length,
        subwords=subwords,
    )
