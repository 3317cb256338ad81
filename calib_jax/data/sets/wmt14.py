"""WMT 2014: sentences of news, parliament and the web in English and German, from TFDS."""

from calib_jax.core import checks
from calib_jax.data.dataset import About, Dataset, register
from calib_jax.data.formats import files, tfds
from calib_jax.data.text.sentence_pairs import DIRECTIONS, Parallel, parallel, translation

_PARTS = {"train": "train", "validation": "validation", "test": "test"}
_ABOUT = About(
    title="WMT 2014, English and German",
    licence="that of each corpus; see statmt.org/wmt14",
    counts={"train": 4_508_785 + 3_000, "test": 3_003},
    tfds="wmt14_translate/de-en",
    size=1_580_000_000,
)


@register("wmt14", _ABOUT)
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
    checks.at_least("learned_from", learned_from, 1)
    located = files.find("wmt14", _ABOUT, data_dir)
    languages = direction.split("-")
    parts: dict[str, Parallel] = {}
    for part, name in _PARTS.items():
        texts = tfds.texts(located.path, name, tuple(languages))
        if part == "train":
            pairs = zip(*texts, strict=True)
            filled = [pair for pair in pairs if all(map(str.strip, pair))]
            texts = [list(side) for side in zip(*filled, strict=True)]
        names = [f"{language} of {name} in {located.path}" for language in languages]
        parts[part] = parallel((names[0], names[1]), (texts[0], texts[1]))
    return translation(
        "wmt14",
        parts,
        about=f"{_ABOUT.title}, {located}",
        direction=direction,
        words=words,
        length=length,
        subwords=subwords,
        learned_from=learned_from,
        in_memory=False,
    )
