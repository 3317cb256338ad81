"""List the data sets, find the installed ones, show how to get the others, and look into them.

    python -m experiments.data --list --data_dir=DIR
    python -m experiments.data --prepare=tiny_imagenet --data_dir=DIR
    python -m experiments.data --check=cifar10 --data_dir=DIR
    python -m experiments.data --show=sst --example=0 --data_dir=DIR
    python -m experiments.data --word_vectors=BERT --words_of=sst --width=300 --out=FILE

--list prints for every data set its folder, the size of its download, its licence, and the commands
that fetch it: nothing is downloaded here. --prepare unpacks a downloaded archive after comparing
its checksum. --check counts the examples of every class in every form on disk, and compares
the counts and the checksums of downloads with the published ones. --show prints an example of each
part as a network gets it. --word_vectors writes a file in the form of GloVe for the vocabulary of a
data set, from a BERT in a folder of Hugging Face: the principal components of its mean output for
each word. The data set's option `vectors` reads it.
"""

from absl import flags

from experiments.datasets import files as data_files
from experiments.datasets.text_encoder import write_word_vectors
from experiments.running import building, cli

flags.declare_key_flag("data_dir")  # defined by `building`, whose other flag is for weights
_LIST = flags.DEFINE_bool("list", False, "List every data set.")
_PREPARE = flags.DEFINE_string("prepare", None, "Unpack the archive of this data set.")
_CHECK = flags.DEFINE_string(
    "check", None, "Compare the files of this data set with the published ones."
)
_SHOW = flags.DEFINE_string(
    "show", None, "Print an example of each part of this data set as a network gets it."
)
_EXAMPLE = flags.DEFINE_integer("example", 0, "Number of the example to show.", lower_bound=0)
_WORD_VECTORS = flags.DEFINE_string(
    "word_vectors", None, "Write word vectors from the BERT in this folder to --out."
)
_WORDS_OF = flags.DEFINE_string("words_of", "newsgroups", "Data set of the words.")
_WIDTH = flags.DEFINE_integer("width", 300, "Size of a word vector.", lower_bound=1)
_OUT = flags.DEFINE_string("out", None, "File of the word vectors.")
_UNCHECKED = flags.DEFINE_bool(
    "unchecked", False, "Also unpack an archive that differs from the published one."
)


def main() -> int:
    """List, prepare, check or show data sets, or write word vectors."""
    named = (_PREPARE.value, _CHECK.value, _SHOW.value, _WORD_VECTORS.value)
    if _LIST.value + sum(value is not None for value in named) != 1:
        raise cli.Refused(
            "give one of --list, --prepare=NAME, --check=NAME, --show=NAME and --word_vectors=BERT."
        )
    data_dir = building.DATA_DIR.value
    if _WORD_VECTORS.value is not None:
        if not _OUT.value:
            raise cli.Refused("--word_vectors needs --out=FILE, the file to write.")
        options = (_OUT.value, _WORD_VECTORS.value, _WORDS_OF.value, _WIDTH.value)
        print(cli.refusing(write_word_vectors, *options, data_dir=data_dir))
        return 0
    if _LIST.value:
        print(cli.refusing(data_files.listed, data_dir))
        return 0
    if _SHOW.value is not None:
        print(cli.refusing(data_files.shown, _SHOW.value, _EXAMPLE.value, data_dir))
        return 0
    if _PREPARE.value is not None:
        lines = data_files.prepare(_PREPARE.value, data_dir, _UNCHECKED.value)
        while line := cli.refusing(next, lines, None):
            print(line)
        return 0
    agrees = True
    checked = data_files.check(str(_CHECK.value), data_dir)
    while result := cli.refusing(next, checked, None):
        line, as_published = result
        print(line)
        agrees &= as_published
    if not agrees:
        raise cli.Failed(f"{_CHECK.value} is not as it was published.")
    return 0


if __name__ == "__main__":
    cli.run(main)
